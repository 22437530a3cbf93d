"""A made Intel: root, platform, quoting enclave and signed lists, all of our own keys.

Real quotes answer one challenge of the past; these answer any, so that everything but
the silicon is exercised. ``verifier()`` trusts the made root and no other.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
)

from sealift.attest import ReferenceValues
from sealift.attest.collateral import Collateral
from sealift.attest.reference import TdxReferences
from sealift.attest.tdx.evidence import MEDIA_TYPE
from sealift.attest.tdx.platform import EXTENSION
from sealift.attest.verifier import VerifierKind
from sealift.crypto.hash import digest, sha256
from tests.sim.kinds import with_roots
from tests.sim.made_chain import AT_S, DAY_S, Issuer, der, make, moment

QE_VENDOR = bytes.fromhex("939a7233f79c4ca9940a0db3957f0607")
QE_SIGNER = bytes.fromhex("dc" * 32)
SEPT_VE_DISABLE = 1 << 28
FMSPC = bytes.fromhex("90c06f000000")
PPID = bytes(range(16))


def oid(tail: str = "") -> bytes:
    name = x509.ObjectIdentifier(EXTENSION + tail)
    encoded = x509.UnrecognizedExtension(name, b"")
    assert encoded.oid == name
    parts = [int(each) for each in name.dotted_string.split(".")]
    raw = bytes([parts[0] * 40 + parts[1]])
    for part in parts[2:]:
        digits = [part & 0x7F]
        while part := part >> 7:
            digits.append(part & 0x7F | 0x80)
        raw += bytes(reversed(digits))
    return der(0x06, raw)


def number(value: int) -> bytes:
    return der(0x02, value.to_bytes(value.bit_length() // 8 + 1))


def pck_extension(
    components: list[int], pcesvn: int, *, fmspc: bytes = FMSPC, ppid: bytes = PPID
) -> bytes:
    """The SGX extension of a platform's certificate."""

    def entry(tail: str, value: bytes) -> bytes:
        return der(0x30, oid(tail) + value)

    tcb = b"".join(entry(f".2.{i + 1}", number(n)) for i, n in enumerate(components))
    tcb += entry(".2.17", number(pcesvn)) + entry(".2.18", der(0x04, bytes(16)))
    return der(
        0x30,
        entry(".1", der(0x04, ppid))
        + entry(".2", der(0x30, tcb))
        + entry(".3", der(0x04, bytes(2)))
        + entry(".4", der(0x04, fmspc))
        + entry(".5", der(0x0A, b"\1"))
        + entry(".6", der(0x04, bytes(16)))
        + entry(".7", der(0x30, entry(".7.3", der(0x01, b"\xff")))),
    )


def raw_signature(key: Any, signed: bytes) -> bytes:
    signature = key.sign(signed, ec.ECDSA(hashes.SHA256()))
    r, s = decode_dss_signature(signature)
    return r.to_bytes(32) + s.to_bytes(32)


def stamp(at_s: int) -> str:
    return moment(at_s).strftime("%Y-%m-%dT%H:%M:%SZ")


def pem(*issuers: Issuer) -> bytes:
    return b"".join(
        each.certificate.parsed.public_bytes(Encoding.PEM) for each in issuers
    )


@dataclass
class Guest:
    """What a TD report says; change what a test is about."""

    attributes: int = SEPT_VE_DISABLE
    xfam: int = 0x602E7
    mrtd: bytes = b"\x11" * 48
    mrconfigid: bytes = bytes(48)
    rtmr: list[bytes] = field(
        default_factory=lambda: [b"\x20" * 48, b"\x21" * 48, b"\x22" * 48, bytes(48)]
    )
    tee_tcb_svn: bytes = bytes([5, 1, 2]) + bytes(13)
    mrsignerseam: bytes = bytes(48)
    seam_attributes: bytes = bytes(8)
    mrservicetd: bytes = bytes(48)

    def extend(self, digest48: bytes) -> None:
        """As the TDX module extends RTMR 3."""
        if len(digest48) != 48:
            raise OSError(22, "EINVAL")
        self.rtmr[3] = digest("sha384", self.rtmr[3], digest48)

    def report(self, report_data: bytes, *, service: bool) -> bytes:
        return (
            self.tee_tcb_svn
            + b"\x0e" * 48
            + self.mrsignerseam
            + self.seam_attributes
            + self.attributes.to_bytes(8, "little")
            + self.xfam.to_bytes(8, "little")
            + self.mrtd
            + self.mrconfigid
            + bytes(96)
            + b"".join(self.rtmr)
            + report_data
            + (self.tee_tcb_svn + self.mrservicetd if service else b"")
        )


class IntelWorld:
    """Everything that a quote and its collateral need, with knobs."""

    def __init__(self) -> None:
        self.root = make("Intel SGX Root CA", usage=(True, True))
        self.authority = make(
            "Intel SGX PCK Platform CA", self.root, path_length=0, usage=(True, True)
        )
        self.signer = make("Intel SGX TCB Signing", self.root, ca=False)
        self.components = [2, 2, 2, 2, 3, 1, 0, 5] + [0] * 8
        self.pcesvn = 11
        self.pck = self.make_pck()
        self.attestation_key: Any = ec.generate_private_key(ec.SECP256R1())
        self.guest = Guest()
        self.qe_svn = 7
        self.qe_attributes = bytes([0x11]) + bytes(15)
        self.qe_signer = QE_SIGNER
        self.qe_product = 2

    def make_pck(self, **changes: Any) -> Issuer:
        raw = pck_extension(self.components, self.pcesvn, **changes)
        extension = x509.UnrecognizedExtension(x509.ObjectIdentifier(EXTENSION), raw)
        name = "Intel SGX PCK Certificate"
        return make(name, self.authority, ca=False, extensions=(extension,))

    def verifier(self) -> VerifierKind:
        return with_roots(MEDIA_TYPE, roots=(self.root.certificate.spki_digest,))

    def references(self, **changes: Any) -> ReferenceValues:
        """What accepts the guest as it is now."""
        tdx = TdxReferences(
            mrtd=(self.guest.mrtd,),
            rtmr={str(i): (self.guest.rtmr[i],) for i in range(3)},
            mrconfigid=(self.guest.mrconfigid,),
            features=("avx", "avx-512", "protection-keys", "amx"),
        )
        return ReferenceValues(tdx=replace(tdx, **changes))

    def quote(
        self, report_data: bytes, *, version: int = 4, service: bool = False
    ) -> bytes:
        """A quote of the guest; ``service`` makes a report 1.5 (version 5 only)."""
        header = version.to_bytes(2, "little") + b"\2\0\x81\0\0\0" + bytes(4)
        header += QE_VENDOR + bytes(20)
        body = self.guest.report(report_data, service=service)
        if version == 5:
            kind = 3 if service else 2
            header += kind.to_bytes(2, "little") + len(body).to_bytes(4, "little")
        signed = header + body
        tail = raw_signature(self.attestation_key, signed) + self.key_point()
        tail += certification(6, self.certify())
        return signed + len(tail).to_bytes(4, "little") + tail

    def key_point(self) -> bytes:
        public = self.attestation_key.public_key()
        point = public.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        return bytes(point[1:])

    def certify(self) -> bytes:
        auth = bytes(range(32))
        report = self.qe_report(sha256(self.key_point(), auth) + bytes(32))
        return (
            report
            + raw_signature(self.pck.key, report)
            + len(auth).to_bytes(2, "little")
            + auth
            + certification(5, pem(self.pck, self.authority, self.root))
        )

    def qe_report(self, report_data: bytes) -> bytes:
        return (
            bytes(16 + 4 + 28)
            + self.qe_attributes
            + bytes(32 + 32)
            + self.qe_signer
            + bytes(96)
            + self.qe_product.to_bytes(2, "little")
            + self.qe_svn.to_bytes(2, "little")
            + bytes(60)
            + report_data
        )

    def tcb_info(self) -> dict[str, Any]:
        zeros = "00" * 48
        module = {
            "mrsigner": zeros,
            "attributes": "00" * 8,
            "attributesMask": "FF" * 8,
        }
        return {
            "id": "TDX",
            "version": 3,
            "issueDate": stamp(AT_S - DAY_S),
            "nextUpdate": stamp(AT_S + DAY_S),
            "fmspc": FMSPC.hex(),
            "pceId": "0000",
            "tcbType": 0,
            "tcbEvaluationDataNumber": 18,
            "tdxModule": module,
            "tdxModuleIdentities": [
                {
                    "id": "TDX_01",
                    **module,
                    "tcbLevels": [
                        svn_level(4, "UpToDate"),
                        svn_level(2, "OutOfDate", "INTEL-SA-01036"),
                        svn_level(1, "Revoked"),
                    ],
                }
            ],
            "tcbLevels": [self.level("UpToDate")],
        }

    def level(self, status: str, *advisories: str, **changes: Any) -> dict[str, Any]:
        """A level that the platform just reaches."""
        tcb = {
            "sgxtcbcomponents": [{"svn": n} for n in self.components],
            "pcesvn": self.pcesvn,
            "tdxtcbcomponents": [{"svn": n} for n in self.guest.tee_tcb_svn],
        }
        tcb.update(changes)
        found = {"tcb": tcb, "tcbDate": stamp(AT_S), "tcbStatus": status}
        return {**found, "advisoryIDs": list(advisories)} if advisories else found

    def identity(self) -> dict[str, Any]:
        return {
            "id": "TD_QE",
            "version": 2,
            "issueDate": stamp(AT_S - DAY_S),
            "nextUpdate": stamp(AT_S + DAY_S),
            "tcbEvaluationDataNumber": 17,
            "miscselect": "00000000",
            "miscselectMask": "FFFFFFFF",
            "attributes": "11" + "00" * 15,
            "attributesMask": "FBFFFFFFFFFFFFFF" + "00" * 8,
            "mrsigner": QE_SIGNER.hex().upper(),
            "isvprodid": 2,
            "tcbLevels": [
                svn_level(6, "UpToDate"),
                svn_level(4, "OutOfDate", "INTEL-SA-00477"),
                svn_level(1, "Revoked"),
            ],
        }

    def sign_list(self, name: str, plain: dict[str, Any], key: Any = None) -> bytes:
        signed = json.dumps(plain, separators=(",", ":")).encode()
        signature = raw_signature(key or self.signer.key, signed).hex().encode()
        return b'{"%s":%s,"signature":"%s"}' % (name.encode(), signed, signature)

    def collateral(
        self,
        tcb: Callable[[dict[str, Any]], object] = lambda plain: None,
        identity: Callable[[dict[str, Any]], object] = lambda plain: None,
        **items: bytes,
    ) -> Collateral:
        """Collateral of today, after changes to its lists or whole items."""
        levels, enclave = self.tcb_info(), self.identity()
        tcb(levels)
        identity(enclave)
        chain = pem(self.signer, self.root)
        found = {
            "tdx/tcb-info": self.sign_list("tcbInfo", levels),
            "tdx/tcb-info-chain": chain,
            "tdx/qe-identity": self.sign_list("enclaveIdentity", enclave),
            "tdx/qe-identity-chain": chain,
            "tdx/root-crl": self.root.revoke().der,
            "tdx/pck-crl": self.authority.revoke().der,
        }
        changed = {f"tdx/{k.replace('_', '-')}": v for k, v in items.items()}
        return Collateral(as_of_s=AT_S, items={**found, **changed})


def svn_level(svn: int, status: str, *advisories: str) -> dict[str, Any]:
    found = {"tcb": {"isvsvn": svn}, "tcbDate": stamp(AT_S), "tcbStatus": status}
    return {**found, "advisoryIDs": list(advisories)} if advisories else found


def certification(kind: int, content: bytes) -> bytes:
    return kind.to_bytes(2, "little") + len(content).to_bytes(4, "little") + content
