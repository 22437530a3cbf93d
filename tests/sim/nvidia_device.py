"""Devices, certificates and manifests of our own, in the form of NVIDIA's.

They answer any nonce, which recorded reports cannot. `trust` makes their roots those
that the code under test believes in.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import secrets
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID
from lxml import etree

from sealift.attest import collateral as anchors
from sealift.attest.nvidia import evidence as spdm
from sealift.attest.nvidia import rim as rim_format
from sealift.attest.nvidia.evidence import NvidiaBody
from sealift.ids import Digest

AT = dt.datetime(2025, 6, 1, tzinfo=dt.UTC)
AT_S = int(AT.timestamp())
CRL_AT = "http://crl.example/list.crl"
FIRMWARE = hashlib.sha384(b"firmware").digest()
FWID_HEAD = bytes.fromhex("303d06096086480165030402020430")


@dataclass
class Authority:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    @property
    def spki_digest(self) -> Digest:
        spki = self.certificate.public_key().public_bytes(
            Encoding.DER, PublicFormat.SubjectPublicKeyInfo
        )
        return Digest.of(spki)

    def revoke(
        self, *serials: int, at: dt.datetime = AT, days: int = 30
    ) -> x509.CertificateRevocationList:
        """This authority's revocation list."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(at - dt.timedelta(days=1))
            .next_update(at + dt.timedelta(days=days))
        )
        for serial in serials:
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(serial)
                .revocation_date(at - dt.timedelta(days=2))
                .build()
            )
        return builder.sign(self.key, hashes.SHA384())


def issue(
    name: str,
    issuer: Authority | None = None,
    *,
    ca: bool = True,
    serial: str = "",
    extensions: tuple[tuple[str, bytes], ...] = (),
    crl: bool = False,
    days: int = 4000,
) -> Authority:
    """A certificate for a new key."""
    key = ec.generate_private_key(ec.SECP384R1())
    parts = [
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Sealift's tests"),
        x509.NameAttribute(NameOID.COMMON_NAME, name),
    ]
    if serial:
        parts.insert(0, x509.NameAttribute(NameOID.SERIAL_NUMBER, serial))
    subject = x509.Name(parts)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(AT - dt.timedelta(days=days))
        .not_valid_after(AT + dt.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    )
    for oid, value in extensions:
        raw = x509.UnrecognizedExtension(x509.ObjectIdentifier(oid), value)
        builder = builder.add_extension(raw, critical=False)
    if crl:
        place = x509.DistributionPoint(
            [x509.UniformResourceIdentifier(CRL_AT)], None, None, None
        )
        builder = builder.add_extension(
            x509.CRLDistributionPoints([place]), critical=False
        )
    signed = builder.sign(issuer.key if issuer else key, hashes.SHA384())
    return Authority(signed, key)


def sign_raw(key: ec.EllipticCurvePrivateKey, message: bytes) -> bytes:
    """r || s over SHA-384."""
    r, s = decode_dss_signature(key.sign(message, ec.ECDSA(hashes.SHA384())))
    return r.to_bytes(48, "big") + s.to_bytes(48, "big")


@cache
def device_root() -> Authority:
    return issue("Device Identity CA of ours")


@cache
def rim_chain() -> tuple[Authority, ...]:
    """Signer first, root last."""
    root = issue("RIM root of ours")
    upper = issue("RIM CA", root, crl=True)
    return issue("RIM signer", upper, ca=False), upper, root


def trust(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the code under test believe in our roots, and in no other."""
    device, rim = device_root().spki_digest, rim_chain()[-1].spki_digest
    monkeypatch.setattr(anchors, "NVIDIA_DEVICE_ROOTS", {"ours": device})
    monkeypatch.setattr(anchors, "NVIDIA_RIM_ROOTS", {"ours": rim})


@dataclass
class SoftDevice:
    """A GPU or switch that signs with a software key.

    Attributes:
        fields: Of the report, by number; `None` leaves one out.
    """

    kind: spdm.Kind = "gpu"
    chip: str = "GH100"
    pdi: str = field(default_factory=lambda: secrets.token_hex(8))
    driver: str = "545.00"
    mode: int = 0
    links: tuple[str, ...] = ()
    fields: Mapping[int, bytes | None] = field(default_factory=dict)
    measurements: Mapping[int, bytes] = field(default_factory=dict)
    firmware: bytes = FIRMWARE
    certified: bytes = FIRMWARE

    def __post_init__(self) -> None:
        self.chain = self._issue_chain()

    @property
    def leaf(self) -> Authority:
        return self.chain[0]

    @property
    def id(self) -> str:
        return str(self.leaf.certificate.serial_number)

    @property
    def certificates(self) -> tuple[bytes, ...]:
        return tuple(each.der for each in self.chain)

    def pem(self) -> bytes:
        """The chain as NVML hands it out."""
        return b"".join(
            each.certificate.public_bytes(Encoding.PEM) for each in self.chain
        )

    def report(self, nonce: bytes) -> bytes:
        """A fresh, signed report."""
        blocks = 64 if self.kind == "gpu" else 31
        record = b"".join(
            struct.pack("<BBHBH", number, 1, 51, 1, 48) + self.measured(number - 1)
            for number in range(1, blocks + 1)
        )
        fields = self._fields()
        signed = (
            bytes.fromhex("11e001ff") + nonce + b"\0"
            + bytes.fromhex("11600000") + bytes([blocks])
            + len(record).to_bytes(3, "little") + record
            + secrets.token_bytes(32)
            + len(fields).to_bytes(2, "little") + fields
        )  # fmt: skip
        return signed + sign_raw(self.leaf.key, signed)

    def measured(self, index: int) -> bytes:
        """The measurement of that index, counted from 0."""
        return self.measurements.get(index, golden(self.kind, index))

    def body(self, nonce: bytes) -> NvidiaBody:
        return NvidiaBody(report=self.report(nonce), certificates=self.certificates)

    def _fields(self) -> bytes:
        fields = self._gpu_fields() if self.kind == "gpu" else self._switch_fields()
        return b"".join(
            struct.pack("<HH", number, len(value)) + value
            for number, value in {**fields, **self.fields}.items()
            if value is not None
        )

    def _gpu_fields(self) -> dict[int, bytes]:
        links = b"".join(bytes.fromhex(pdi)[::-1] for pdi in self.links)
        return {
            spdm.VBIOS: bytes.fromhex("005e009601000000"),
            spdm.CHIP_SKU: b"882\0",
            spdm.PROJECT: b"1010\0",
            spdm.PROJECT_SKU: b"0200\0",
            spdm.DRIVER: self.driver.encode() + b"\0",
            spdm.NVDEC0: b"\x55",
            spdm.FWID: self.firmware,
            spdm.PROTECTED_PCIE: b"\xaa" if self.mode == 2 else b"\x55",
            spdm.SWITCH_PDI: links.ljust(144, b"\0"),
            spdm.FEATURE_MODE: self.mode.to_bytes(2, "little"),
        }

    def _switch_fields(self) -> dict[int, bytes]:
        links = b"".join(bytes.fromhex(pdi) for pdi in self.links)
        return {
            spdm.VBIOS: b"96.10.55.00.01",
            spdm.SWITCH_PDI: bytes.fromhex(self.pdi),
            spdm.SWITCH_GPU_PDIS: links.ljust(64, b"\0") + bytes(64),
        }

    def _issue_chain(self) -> tuple[Authority, ...]:
        processor = "GSP" if self.kind == "gpu" else "FSP"
        identity = issue(f"{self.chip} Identity", device_root(), crl=True)
        provisioner = issue(f"{self.chip} Provisioner", identity, crl=True)
        rom = issue(
            f"{self.chip} A01 {processor} BROM",
            provisioner,
            serial=f"41{self.pdi.upper()}",
        )
        dice = FWID_HEAD + self.certified
        leaf = issue(
            f"{self.chip} A01 {processor} FMC LF",
            rom,
            ca=False,
            extensions=(("2.23.133.5.4.1", dice),),
        )
        return leaf, rom, provisioner, identity, device_root()


def golden(kind: str, index: int) -> bytes:
    """What our firmware measures."""
    return hashlib.sha384(f"{kind} {index}".encode()).digest()


def rim_document(
    version: str,
    values: Mapping[int, tuple[bytes, ...]],
    *,
    product: str = "GH100",
    payload: str = "",
) -> str:
    """A manifest's text without signature."""
    rows = "\n".join(
        f'<ns0:Resource type="Measurement" index="{index}" active="True" '
        f'alternatives="{len(each)}" '
        + "".join(f'ns2:Hash{n}="{value.hex()}" ' for n, value in enumerate(each))
        + f'name="Measurement_{index}" size="48"/>'
        for index, each in values.items()
    )
    swid = "http://standards.iso.org/iso/19770/-2/2015/schema.xsd"
    return (
        f'<SoftwareIdentity xmlns="{swid}" xmlns:ns0="{swid}" '
        'xmlns:ns2="http://www.w3.org/2001/04/xmlenc#sha384" name="GH100" tagId="a">\n'
        f'<ns0:Meta colloquialVersion="{version}" edition="GPU" product="{product}"/>\n'
        f"<ns0:Payload>\n{rows}{payload}</ns0:Payload></SoftwareIdentity>"
    )


def sign_rim(
    document: str, *, info: Mapping[str, str] | None = None, chain: Any = None
) -> bytes:
    """Sign a manifest; `info` replaces parts of what is signed."""
    signers = chain or rim_chain()
    root = etree.fromstring(document.encode())
    covered = etree.tostring(root, method="c14n")
    value = base64.b64encode(hashlib.sha384(covered).digest()).decode()
    certificates = "".join(
        f"<ds:X509Certificate>{base64.b64encode(each.der).decode()}"
        "</ds:X509Certificate>"
        for each in signers
    )
    text = signature_text(value, certificates)
    for old, new in (info or {}).items():
        assert old in text, old
        text = text.replace(old, new)
    signature = etree.fromstring(text.encode())
    root.append(signature)
    signed = etree.tostring(signature[0], method="c14n")
    made = base64.b64encode(sign_raw(signers[0].key, signed)).decode()
    signature[1].text = made
    written: bytes = etree.tostring(root)
    return written


def signature_text(digest_value: str, certificates: str) -> str:
    return (
        '<ds:Signature xmlns:ds="http://www.w3.org/2000/09/xmldsig#"><ds:SignedInfo>'
        f'<ds:CanonicalizationMethod Algorithm="{rim_format.C14N}"/>'
        f'<ds:SignatureMethod Algorithm="{rim_format.ECDSA_SHA384}"/>'
        '<ds:Reference URI=""><ds:Transforms>'
        f'<ds:Transform Algorithm="{rim_format.ENVELOPED}"/>'
        f'<ds:Transform Algorithm="{rim_format.C14N}"/></ds:Transforms>'
        f'<ds:DigestMethod Algorithm="{rim_format.SHA384}"/>'
        f"<ds:DigestValue>{digest_value}</ds:DigestValue>"
        "</ds:Reference></ds:SignedInfo><ds:SignatureValue></ds:SignatureValue>"
        f"<ds:KeyInfo><ds:X509Data>{certificates}</ds:X509Data></ds:KeyInfo>"
        "</ds:Signature>"
    )


DRIVER_INDEXES = (7, 21, 35)
VBIOS_INDEXES = (0, 1, 9)


@cache
def rims() -> dict[str, bytes]:
    """The manifests of our devices, by collateral name."""
    driver = {i: (bytes(48), golden("gpu", i)) for i in DRIVER_INDEXES[:2]}
    driver[35] = (bytes(48),)  # exempt: our video decoder is off
    vbios = {i: (golden("gpu", i),) for i in VBIOS_INDEXES}
    switch = {i: (golden("switch", i),) for i in range(31)}
    return {
        "nvidia/rim/NV_GPU_DRIVER_GH100_545.00": sign_rim(
            rim_document("545.00", driver)
        ),
        "nvidia/rim/NV_GPU_VBIOS_1010_0200_882_96005E0001": sign_rim(
            rim_document("96.00.5E.00.01", vbios)
        ),
        "nvidia/rim/NV_SWITCH_BIOS_5612_0002_890_9610550001": sign_rim(
            rim_document("96.10.55.00.01", switch, product="LS10")
        ),
    }
