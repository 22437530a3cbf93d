"""Whose key signed an SNP report: VCEK (one chip) or VLEK (an operator), to AMD's root.

Both kinds of certificate say in extensions which product and which firmware versions the
key was derived from, so that a report of older firmware cannot carry a newer key.
Source: AMD VCEK and KDS interface specification (57230) table 8; GHCB specification
(56421) section 4.1.8.1 for the certificate table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sealift.attest.binary import INTEGER, OCTET_STRING, read_number, read_value
from sealift.attest.reference import AppraisalBasis
from sealift.attest.snp.evidence import (
    PRODUCTS,
    SnpReport,
    Tcb,
    parse_report,
    parse_tcb,
)
from sealift.crypto.certificate import (
    Certificate,
    certificates_from_pem,
    read_certificate,
)
from sealift.crypto.chain import RevocationList, Revocations, verify_chain
from sealift.crypto.vendorkeys import EcdsaKey
from sealift.errors import EvidenceError, MalformedError
from sealift.ids import Digest

_ARC: Final = "1.3.6.1.4.1.3704.1"
_PRODUCT: Final = f"{_ARC}.2"
_VERSIONS: Final = {
    "boot_loader": f"{_ARC}.3.1",
    "tee": f"{_ARC}.3.2",
    "snp": f"{_ARC}.3.3",
    "microcode": f"{_ARC}.3.8",
    "fmc": f"{_ARC}.3.9",
}
_SPARE_VERSIONS: Final = tuple(f"{_ARC}.3.{number}" for number in (4, 5, 6, 7))
_HARDWARE_ID: Final = f"{_ARC}.4"
_OPERATOR: Final = f"{_ARC}.5"
_IA5_STRING: Final = 0x16
CHIP_ID_BYTES: Final = 64
_HARDWARE_ID_BYTES: Final = {"Milan": 64, "Genoa": 64, "Turin": 8}
VCEK_NAME: Final = "SEV-VCEK"
VLEK_NAME: Final = "SEV-VLEK"
_TABLE_ENTRY: Final = 24  # GUID, offset, length
_MAX_TABLE_BYTES: Final = 128 << 10
_MAX_TABLE_ENTRIES: Final = 32
_PRODUCT_KEYS: Final = {**{name: name for name in PRODUCTS}, "Siena": "Genoa"}


@dataclass(frozen=True, slots=True)
class Endorsement:
    """What a VCEK or VLEK certificate says.

    Attributes:
        product: ``Milan``, ``Genoa`` or ``Turin``, without stepping.
        tcb: What the key was derived from.
        chip_id: 64 bytes as reports have them; empty in a VLEK.
        operator: Who loaded the key (CSP id); empty in a VCEK.
    """

    product: str
    tcb: Tcb
    chip_id: bytes
    operator: str


def parse_endorsement(certificate: Certificate) -> Endorsement:
    """What the extensions say; nothing about the certificate is verified here.

    Raises:
        MalformedError: if one is missing, or not as AMD writes it.
    """
    name = _text(certificate.extension(_PRODUCT) or b"", _PRODUCT).split("-")[0]
    if name not in _PRODUCT_KEYS:
        raise MalformedError(f"the product {name[:20]!r} is unknown", field=_PRODUCT)
    product = _PRODUCT_KEYS[name]
    for oid in _SPARE_VERSIONS:
        if _version(certificate, oid, needed=False):
            raise MalformedError(
                "an unused version field of the key is not zero", field=oid
            )
    return Endorsement(
        product=product,
        tcb=Tcb(
            **{
                name: _version(certificate, oid, needed=name != "fmc")
                for name, oid in _VERSIONS.items()
            }
        ),
        chip_id=_chip_id(certificate, product),
        operator=_text(certificate.extension(_OPERATOR) or b"\x16\0", _OPERATOR),
    )


def parse_certificates(raw: bytes) -> tuple[Certificate, ...]:
    """Certificates of a collateral item: one in DER, or any number in PEM.

    Raises:
        MalformedError: if it is neither.
    """
    if raw.startswith(b"-----BEGIN"):
        return certificates_from_pem(raw)
    return (read_certificate(raw),)


def parse_table(raw: bytes) -> tuple[bytes, ...]:
    """Every certificate (DER) of a GHCB certificate table: ``auxblob`` of configfs-tsm.

    The host fills the table, so names (GUIDs) say nothing: certificates are told apart
    by their content, and entries that hold none are left out.

    Raises:
        MalformedError: if the table has no end, or an entry lies outside of it.
    """
    if len(raw) > _MAX_TABLE_BYTES:
        raise MalformedError("a certificate table is too large")
    found: list[bytes] = []
    for place in range(_MAX_TABLE_ENTRIES):
        entry = raw[place * _TABLE_ENTRY : (place + 1) * _TABLE_ENTRY]
        if len(entry) < _TABLE_ENTRY:
            break
        if not any(entry):
            return tuple(found)
        start, size = (int.from_bytes(entry[at : at + 4], "little") for at in (16, 20))
        if start + size > len(raw):
            raise MalformedError("an entry is outside of its table", offset=start)
        with suppress(MalformedError):
            found.append(Certificate(raw[start : start + size]).der)
    raise MalformedError("the certificate table has no end mark")


def _version(certificate: Certificate, oid: str, *, needed: bool) -> int:
    raw = certificate.extension(oid)
    if raw is None and not needed:
        return 0
    value = read_number(read_value(raw or b"", INTEGER))
    if value > 0xFF:
        raise MalformedError("a version does not have one byte", field=oid)
    return value


def _chip_id(certificate: Certificate, product: str) -> bytes:
    raw = certificate.extension(_HARDWARE_ID)
    if raw is None:
        return b""
    size = _HARDWARE_ID_BYTES[product]
    if len(raw) == size + 2:  # newer certificates name the type, older ones do not
        raw = read_value(raw, OCTET_STRING)
    if len(raw) != size:
        raise MalformedError(f"a chip id has {len(raw)} bytes", field=_HARDWARE_ID)
    return raw.ljust(CHIP_ID_BYTES, b"\0")


def _text(raw: bytes, oid: str) -> str:
    try:
        return read_value(raw, _IA5_STRING).decode("ascii")
    except UnicodeDecodeError:
        raise MalformedError("a value is not text", field=oid) from None


_LEAF_NAME: Final = {"VCEK": VCEK_NAME, "VLEK": VLEK_NAME}


@dataclass(frozen=True, slots=True)
class SnpVerdict:
    """A genuine report.

    Attributes:
        report: What was signed.
        endorsement: What AMD says about the key that signed it.
        revocation_checked: Whether AMD's list was looked at.
    """

    report: SnpReport
    endorsement: Endorsement
    revocation_checked: bool


def verify_report(
    raw: bytes,
    certificates: Sequence[bytes],
    basis: AppraisalBasis,
    roots: Mapping[str, Digest],
) -> SnpVerdict:
    """Verify a report down to AMD's root.

    The collateral has ``snp/crl-PRODUCT``, which only references may waive, and what
    the evidence may lack: ``snp/vcek/CHIP``, ``snp/vlek/NAME``, ``snp/chain/PRODUCT``.

    Args:
        raw: The report.
        certificates: DER, as the evidence has them.
        basis: What it is judged by.
        roots: AMD's root keys by product.

    Raises:
        MalformedError: if report or certificates do not parse.
        EvidenceError: ``snp-unsigned``, ``snp-key-missing``, ``snp-key-foreign``,
            ``snp-signature``, ``collateral-missing``, ``collateral-foreign``, or of the
            chain (``verify_chain``).
    """
    report = parse_report(raw)
    if report.signing_key == "NONE":
        raise EvidenceError(
            "the report is not signed",
            why="the host forbids signatures with the chip's key (MASK_CHIP_KEY)",
            code="snp-unsigned",
        )
    prefixes = (f"snp/vcek/{report.chip_id.hex()}", "snp/vlek/", "snp/chain/")
    others = [read_certificate(der) for der in certificates]
    for prefix in prefixes:
        for stored in basis.collateral.named(prefix).values():
            others += parse_certificates(stored)
    leaf, endorsement = _find_key(report, others)
    references = basis.references.snp
    waived = references is not None and references.revocation == "waived"
    crl = f"snp/crl-{endorsement.product}"
    lists = () if waived else (RevocationList(basis.collateral.item(crl)),)
    root = roots.get(endorsement.product)
    path = verify_chain(
        leaf,
        others,
        (root,) if root else (),
        at_s=basis.at_s,
        revocations=Revocations(lists),
    )
    if len(path) != 3:
        raise _foreign(f"a chain of {len(path)} certificates; AMD's chains have 3")
    if lists and lists[0].issuer != path[-1].subject:
        raise EvidenceError(
            "the revocation list does not belong to the root of the key",
            why=f"it was issued by {lists[0].issuer}, needed {path[-1].subject}",
            code="collateral-foreign",
        )
    key = leaf.key()
    if not isinstance(key, EcdsaKey):
        raise _foreign("its certificate has a key of another kind")
    report.verify_signature(key)
    return SnpVerdict(report, endorsement, revocation_checked=not waived)


def _find_key(
    report: SnpReport, certificates: Sequence[Certificate]
) -> tuple[Certificate, Endorsement]:
    """The certificate of the key that the report says signed it."""
    name = _LEAF_NAME[report.signing_key]
    problems = []
    for certificate in (each for each in certificates if each.subject_name == name):
        endorsement = parse_endorsement(certificate)
        problem = _difference(report, endorsement)
        if not problem:
            return certificate, endorsement
        problems.append(problem)
    if problems:
        raise _foreign(problems[0])
    raise EvidenceError(
        f"the {name} certificate is missing",
        why=(
            f"according to the report such a key signed it; chip {report.chip_id.hex()}"
        ),
        code="snp-key-missing",
    )


def _difference(report: SnpReport, endorsement: Endorsement) -> str:
    """How the certificate's facts differ from the report's; empty if they fit."""
    if report.product and report.product != endorsement.product:
        return f"the key is for {endorsement.product}, the report for {report.product}"
    if report.cpuid and not report.product:
        return f"the product of CPUID {report.cpuid} is unknown"
    try:
        reported = parse_tcb(report.reported_tcb, endorsement.product)
    except MalformedError as error:
        return f"the key is for {endorsement.product}: {error.what}"
    if reported != endorsement.tcb:
        return (
            f"the key is for {endorsement.tcb.to_text()}, the report has "
            f"{reported.to_text()}"
        )
    if report.signing_key == "VLEK":
        # The chip loaded it from its operator: it names no chip.
        named = not endorsement.chip_id and bool(endorsement.operator)
        return "" if named else "the key names no operator"
    same = endorsement.chip_id == report.chip_id and not endorsement.operator
    return "" if same else "the key belongs to another chip, or the host hides the chip"


def _foreign(why: str) -> EvidenceError:
    return EvidenceError(
        "the certificate does not belong to the key that signed the report",
        why=why,
        code="snp-key-foreign",
    )
