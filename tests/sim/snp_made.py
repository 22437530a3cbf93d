"""SEV-SNP reports of ours: a made root, signing keys and chips of every product.

No public set has a report of version 4 or 5, or one of a Turin chip. These have the
layout of AMD's document, and prove nothing about hardware.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from sealift.attest.collateral import Collateral
from sealift.attest.reference import ReferenceValues, SnpReferences
from sealift.attest.snp.evidence import SIGNED_BYTES
from sealift.crypto.certificate import Certificate
from sealift.ids import Digest

AT_S: Final = 1_790_000_000
DAY: Final = dt.timedelta(days=1)
CPUID: Final = {"Milan": (0x19, 1, 1), "Genoa": (0x19, 0x11, 1), "Turin": (0x1A, 2, 1)}
CHIP: Final = {"Milan": bytes(range(64)), "Genoa": bytes(range(1, 65)),
               "Turin": bytes(range(8)).ljust(64, b"\0")}  # fmt: skip
TCB: Final = {"boot_loader": 4, "tee": 1, "snp": 24, "microcode": 0xDB}
OPERATOR: Final = "CN=operator.example"
BOUND: Final = b"bound".ljust(32, b"\1")
_PLACES: Final = {
    "Milan": {"boot_loader": 0, "tee": 1, "snp": 6, "microcode": 7},
    "Genoa": {"boot_loader": 0, "tee": 1, "snp": 6, "microcode": 7},
    "Turin": {"fmc": 0, "boot_loader": 1, "tee": 2, "snp": 3, "microcode": 7},
}
_OIDS: Final = {"boot_loader": 1, "tee": 2, "snp": 3, "microcode": 8, "fmc": 9}
_PSS: Final = padding.PSS(padding.MGF1(hashes.SHA384()), 48)


def tcb_bytes(product: str, **versions: int) -> bytes:
    """A TCB_VERSION as the product lays it out; what is not named is as in ``TCB``."""
    raw = bytearray(8)
    for name, value in {**TCB, **versions}.items():
        raw[_PLACES[product][name]] = value
    return bytes(raw)


@dataclass(frozen=True)
class Authority:
    """A made root and the two keys under it, of one product."""

    product: str
    keys: Mapping[str, rsa.RSAPrivateKey]
    certificates: Mapping[str, x509.Certificate]

    @property
    def roots(self) -> dict[str, Digest]:
        root = Certificate(self.certificates["ark"].public_bytes(Encoding.DER))
        return {self.product: root.spki_digest}

    def der(self, name: str) -> bytes:
        return self.certificates[name].public_bytes(Encoding.DER)

    def crl(self, *revoked: str, issuer: str = "ark", at_s: int = AT_S) -> bytes:
        """A list by the root, in DER, that names certificates of ours."""
        now = dt.datetime.fromtimestamp(at_s, dt.UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificates[issuer].subject)
            .last_update(now - DAY)
            .next_update(now + 30 * DAY)
        )
        for name in revoked:
            entry = x509.RevokedCertificateBuilder(
                self.certificates[name].serial_number, now - DAY
            )
            builder = builder.add_revoked_certificate(entry.build())
        made = builder.sign(self.keys[issuer], hashes.SHA384(), rsa_padding=_PSS)
        return made.public_bytes(Encoding.DER)

    def collateral(self, *revoked: str) -> Collateral:
        """What a verifier would have fetched an hour ago."""
        items = {f"snp/crl-{self.product}": self.crl(*revoked)}
        return Collateral(as_of_s=AT_S - 3600, items=items)


@dataclass(frozen=True)
class Signer:
    """A key that signs reports, and its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: bytes

    def sign(self, raw: bytes) -> bytes:
        """The report with a signature over its first part."""
        der = self.key.sign(raw[:SIGNED_BYTES], ec.ECDSA(hashes.SHA384()))
        numbers = (part.to_bytes(72, "little") for part in decode_dss_signature(der))
        return raw[:SIGNED_BYTES] + b"".join(numbers).ljust(512, b"\0")


@cache
def authority(product: str) -> Authority:
    """The made root of a product, the same for a whole test run."""
    return make_authority(product)


def make_authority(product: str) -> Authority:
    """Another root of the same names."""
    # Shorter than AMD's 4096 bits, because making those takes a second each.
    keys = {
        name: rsa.generate_private_key(65537, 2048) for name in ("ark", "ask", "asvk")
    }
    names = {
        "ark": f"ARK-{product}",
        "ask": f"SEV-{product}",
        "asvk": f"SEV-VLEK-{product}",
    }
    made = {
        name: _certificate(names[name], keys[name].public_key(), names["ark"], keys["ark"],
                           serial=serial, ca=True)
        for serial, name in enumerate(names, 1)
    }  # fmt: skip
    return Authority(product, keys, made)


def vcek(product: str, *, chip_id: bytes | None = None, **versions: int) -> Signer:
    """A chip's key for some firmware versions."""
    hardware_id = CHIP[product] if chip_id is None else chip_id
    hardware_id = hardware_id[:8] if product == "Turin" else hardware_id
    return _signer(product, "SEV-VCEK", "ask", versions, {4: hardware_id})


def vlek(product: str, *, operator: str = OPERATOR, **versions: int) -> Signer:
    """An operator's key for some firmware versions."""
    text = operator.encode()
    return _signer(product, "SEV-VLEK", "asvk", versions, {5: _value(0x16, text)})


def report(product: str = "Milan", version: int = 3, **fields: bytes | int) -> bytes:
    """An unsigned report; fields by the names in ``_FIELDS`` replace the usual ones."""
    tcb = tcb_bytes(product)
    raw = bytearray(SIGNED_BYTES)
    usual: dict[str, bytes | int] = {
        "version": version, "policy": 0x3001F, "algorithm": 1, "platform": 0x25,
        "current_tcb": tcb, "reported_tcb": tcb, "committed_tcb": tcb, "launch_tcb": tcb,
        "report_data": BOUND, "measurement": b"\2" * 48, "host_data": b"\3" * 32,
        "report_id": b"\4" * 32, "report_id_ma": b"\xff" * 32, "chip_id": CHIP[product],
        "cpuid": bytes(CPUID[product]) if version >= 3 else b"",
        "mitigations": b"\1".ljust(16, b"\0") if version >= 5 else b"",
    }  # fmt: skip
    for name, value in {**usual, **fields}.items():
        start, size = _FIELDS[name]
        part = value.to_bytes(size, "little") if isinstance(value, int) else value
        raw[start : start + len(part)] = part
    return bytes(raw).ljust(1184, b"\0")


def references(product: str = "Milan", **changes: object) -> ReferenceValues:
    """References that accept the usual report of a product."""
    usual: dict[str, object] = {
        "measurement": (b"\2" * 48,),
        "host_data": (b"\3" * 32,),
        "min_tcb": {product: dict(TCB)},
    }
    return ReferenceValues(snp=SnpReferences(**{**usual, **changes}))  # type: ignore[arg-type]


_FIELDS: Final = {
    "version": (0x00, 4), "guest_svn": (0x04, 4), "policy": (0x08, 8), "vmpl": (0x30, 4),
    "algorithm": (0x34, 4), "current_tcb": (0x38, 8), "platform": (0x40, 8),
    "flags": (0x48, 4), "report_data": (0x50, 64), "measurement": (0x90, 48),
    "host_data": (0xC0, 32), "report_id": (0x140, 32), "report_id_ma": (0x160, 32),
    "reported_tcb": (0x180, 8), "cpuid": (0x188, 3), "chip_id": (0x1A0, 64),
    "committed_tcb": (0x1E0, 8), "launch_tcb": (0x1F0, 8), "mitigations": (0x1F8, 16),
}  # fmt: skip


def _signer(
    product: str, name: str, issuer: str, versions: Mapping[str, int], more: Mapping[int, bytes]
) -> Signer:  # fmt: skip
    known = {"fmc": 0} if product == "Turin" else {}
    extensions = {f"3.{_OIDS[each]}": _integer(value)
                  for each, value in {**known, **TCB, **versions}.items()}  # fmt: skip
    extensions |= {"1": _integer(0), "2": _value(0x16, product.encode())}
    extensions |= {str(number): value for number, value in more.items()}
    key = ec.generate_private_key(ec.SECP384R1())
    owner = authority(product)
    made = _certificate(
        name, key.public_key(), owner.certificates[issuer].subject, owner.keys[issuer],
        serial=99, extensions=extensions,
    )  # fmt: skip
    return Signer(key, made.public_bytes(Encoding.DER))


def _certificate(
    subject: str,
    key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey,
    issuer: str | x509.Name,
    issuer_key: rsa.RSAPrivateKey,
    *,
    serial: int,
    ca: bool = False,
    extensions: Mapping[str, bytes] | None = None,
) -> x509.Certificate:
    now = dt.datetime.fromtimestamp(AT_S, dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer) if isinstance(issuer, str) else issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(now - 100 * DAY)
        .not_valid_after(now + 1000 * DAY)
    )
    if ca:
        builder = builder.add_extension(
            x509.BasicConstraints(ca=True, path_length=None), True
        )
    for number, value in (extensions or {}).items():
        oid = x509.ObjectIdentifier(f"1.3.6.1.4.1.3704.1.{number}")
        builder = builder.add_extension(x509.UnrecognizedExtension(oid, value), False)
    return builder.sign(issuer_key, hashes.SHA384(), rsa_padding=_PSS)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _integer(value: int) -> bytes:
    return _value(0x02, value.to_bytes(1 + (value > 0x7F)))


def _value(tag: int, content: bytes) -> bytes:
    return bytes([tag, len(content)]) + content
