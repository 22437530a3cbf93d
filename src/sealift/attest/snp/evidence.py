"""Format of SEV-SNP evidence: a report, and the certificates of the key that signed it.

The body is canonical JSON (spec/evidence-snp.md). It has no place for runtime events:
SNP has no register that a running guest could extend, so nothing would cover them.
Reports have 1184 bytes, versions 2 to 5; every byte is signed, part of the signature, or
must be zero. Source: AMD SEV-SNP Firmware ABI (56860) revision 1.58: ATTESTATION_REPORT,
TCB_VERSION, guest policy, PLATFORM_INFO.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from sealift.attest.evidence import Body
from sealift.crypto.certificate import MAX_CHAIN
from sealift.crypto.vendorkeys import EcdsaKey
from sealift.errors import AuthenticationError, EvidenceError, MalformedError

MEDIA_TYPE: Final = "application/vnd.sealift.snp-evidence+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnpBody(Body):
    """The whole body.

    Attributes:
        report: 1184 bytes as the firmware made them.
        certificates: DER, in any order; what is missing comes from collateral.
    """

    kind = "snp"
    max_bytes = 256 << 10

    report: bytes
    certificates: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if len(self.certificates) > MAX_CHAIN:
            raise MalformedError("too many certificates", field="certificates")


REPORT_BYTES: Final = 1184
SIGNED_BYTES: Final = 0x2A0
VERSIONS: Final = (2, 3, 4, 5)
TCB_FIELDS: Final = ("fmc", "boot_loader", "tee", "snp", "microcode")
NO_MIGRATION_AGENT: Final = b"\xff" * 32
"""REPORT_ID_MA of a guest that nobody may move."""

SigningKey = Literal["VCEK", "VLEK", "NONE"]
_SIGNING_KEYS: Final[dict[int, SigningKey]] = {0: "VCEK", 1: "VLEK", 7: "NONE"}
_ECDSA_P384_SHA384: Final = 1
_NUMBER_BYTES: Final = 72  # r and s: 48 bytes little-endian, padded with zeros
_FIELD_BYTES: Final = 48
# Every field in its place, little-endian; what has no name is reserved.
_FIELDS: Final = {
    "version": "I", "guest_svn": "I", "policy": "Q", "family_id": "16s",
    "image_id": "16s", "vmpl": "I", "algorithm": "I", "current_tcb": "8s",
    "platform": "Q", "flags": "I", "report_data": "4x64s", "measurement": "48s",
    "host_data": "32s", "id_key_digest": "48s", "author_key_digest": "48s",
    "report_id": "32s", "report_id_ma": "32s", "reported_tcb": "8s", "cpuid": "3s",
    "chip_id": "21x64s", "committed_tcb": "8s", "current_build": "3s",
    "committed_build": "x3s", "launch_tcb": "x8s", "launch_mitigations": "Q",
    "current_mitigations": "Q",
}  # fmt: skip
REPORT_FIELDS: Final = tuple(_FIELDS)
_LAYOUT: Final = struct.Struct(f"<{''.join(_FIELDS.values())}")
# Where each version's layout has bytes that must be zero, besides those of all.
_RESERVED: Final = ((0x4C, 0x50), (0x1EB, 0x1EC), (0x1EF, 0x1F0), (0x208, 0x2A0))
_RESERVED_BEFORE: Final = {3: (0x188, 0x18B), 5: (0x1F8, 0x208)}
_RESERVED_SINCE_3: Final = (0x18B, 0x1A0)
_TCB_LAYOUTS: Final = {  # place of each of TCB_FIELDS in the eight bytes
    "Milan": (None, 0, 1, 6, 7),
    "Genoa": (None, 0, 1, 6, 7),
    "Turin": (0, 1, 2, 3, 7),
}
PRODUCTS: Final = tuple(_TCB_LAYOUTS)


@dataclass(frozen=True, slots=True)
class Tcb:
    """Security versions of what the chip runs; ``fmc`` is 0 before Turin."""

    fmc: int
    boot_loader: int
    tee: int
    snp: int
    microcode: int

    def reaches(self, floor: Mapping[str, int]) -> bool:
        """Whether no version is below that of its name in ``floor``."""
        return all(getattr(self, name) >= least for name, least in floor.items())

    def to_text(self) -> str:
        """For people: every version by name."""
        return " ".join(f"{name} {getattr(self, name)}" for name in TCB_FIELDS)


@dataclass(frozen=True, slots=True)
class Policy:
    """What the guest's owner asked the firmware to enforce for the guest's whole life.

    ``unknown`` holds the bits that revision 1.58 does not define.
    """

    raw: int
    unknown: int
    smt: bool
    migration_agent: bool
    debug: bool
    single_socket: bool
    cxl: bool
    aes_256_xts: bool
    rapl_disabled: bool
    ciphertext_hiding: bool
    page_swap_disabled: bool


@dataclass(frozen=True, slots=True)
class SnpPlatform:
    """What the host was configured to when it made the report."""

    raw: int
    unknown: int
    smt: bool
    tsme: bool
    ecc: bool
    rapl_disabled: bool
    ciphertext_hiding: bool
    alias_check: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SnpReport:
    """A parsed report; nothing is verified yet.

    Attributes:
        raw: All of it.
        version: 2 to 5.
        guest_svn: Security version that the guest's owner gave the image.
        policy: Of the guest.
        family_id: 16 bytes of the guest's owner.
        image_id: Likewise.
        vmpl: Privilege level that asked, 0 the highest.
        platform: Of the host.
        author_key_enabled: Whether ``author_key_digest`` means something.
        mask_chip_key: Whether the host forbids signing with the chip's key.
        signing_key: Which kind of key signed.
        report_data: 64 bytes that the guest gave.
        measurement: Launch digest, 48 bytes.
        host_data: 32 bytes that the host gave at launch.
        id_key_digest: SHA-384 of the key over the ID block, or zeros.
        author_key_digest: SHA-384 of the key that certified that one, or zeros.
        report_id: 32 bytes, one guest's for its life.
        report_id_ma: That of its migration agent; all ones without.
        chip_id: 64 bytes, zeros if the host masks it; 8 bytes and zeros on Turin.
        current_tcb, reported_tcb, committed_tcb, launch_tcb: 8 bytes each, in the layout
            of the product (``parse_tcb``).
        cpuid: Family, model and stepping; None in version 2.
        current_build, committed_build: Firmware as (major, minor, build).
        mitigations: Vectors at launch and now; None before version 5.
        signature: r || s, big-endian, 96 bytes.
    """

    raw: bytes
    version: int
    guest_svn: int
    policy: Policy
    family_id: bytes
    image_id: bytes
    vmpl: int
    platform: SnpPlatform
    author_key_enabled: bool
    mask_chip_key: bool
    signing_key: SigningKey
    report_data: bytes
    measurement: bytes
    host_data: bytes
    id_key_digest: bytes
    author_key_digest: bytes
    report_id: bytes
    report_id_ma: bytes
    chip_id: bytes
    current_tcb: bytes
    reported_tcb: bytes
    committed_tcb: bytes
    launch_tcb: bytes
    cpuid: tuple[int, int, int] | None
    current_build: tuple[int, int, int]
    committed_build: tuple[int, int, int]
    mitigations: tuple[int, int] | None
    signature: bytes

    @property
    def product(self) -> str:
        """Of the CPUID; empty in version 2, or if no known product has it."""
        return product_of(*self.cpuid[:2]) if self.cpuid else ""

    def verify_signature(self, key: EcdsaKey) -> None:
        """Check that ``key`` signed the report.

        Raises:
            EvidenceError: ``snp-signature``.
        """
        try:
            if key.curve != "P-384":
                raise AuthenticationError
            key.verify_raw(self.raw[:SIGNED_BYTES], self.signature, "sha384")
        except AuthenticationError:
            raise EvidenceError(
                "the report was not signed by its certificate's key",
                code="snp-signature",
            ) from None


def parse_report(raw: bytes) -> SnpReport:
    """Parse a report.

    Raises:
        MalformedError: for another length, version or signature algorithm, an unknown
            signing key, or a byte that must be zero and is not.
    """
    if len(raw) != REPORT_BYTES:
        raise MalformedError(
            f"an SNP report must have {REPORT_BYTES} bytes; this one has {len(raw)}"
        )
    found = dict(zip(_FIELDS, _LAYOUT.unpack_from(raw), strict=True))
    version, flags, platform = found["version"], found["flags"], found["platform"]
    if version not in VERSIONS:
        raise MalformedError(f"the SNP report has version {version}", offset=0)
    if found.pop("algorithm") != _ECDSA_P384_SHA384:
        raise MalformedError(
            "the report is not signed with ECDSA P-384 and SHA-384", offset=0x34
        )
    _require_zero(raw, version)
    if found.pop("flags") >> 5 or flags >> 2 not in _SIGNING_KEYS:
        raise MalformedError(f"the SNP report has the flags {flags:#x}", offset=0x48)
    mitigations = found.pop("launch_mitigations"), found.pop("current_mitigations")
    return SnpReport(
        **found
        | {
            "policy": _parse_policy(found["policy"]),
            "platform": SnpPlatform(
                platform, platform >> 6, *(platform >> bit & 1 == 1 for bit in range(6))
            ),
            "cpuid": tuple(found["cpuid"]) if version >= 3 else None,
            "current_build": tuple(found["current_build"][::-1]),
            "committed_build": tuple(found["committed_build"][::-1]),
        },
        raw=raw,
        author_key_enabled=bool(flags & 1),
        mask_chip_key=bool(flags & 2),
        signing_key=_SIGNING_KEYS[flags >> 2],
        mitigations=mitigations if version >= 5 else None,
        signature=_parse_signature(raw),
    )


def join_report(fields: Mapping[str, int | bytes], signature: bytes) -> bytes:
    """The bytes of a report that a tool took apart; what is reserved is zero.

    Args:
        fields: By the names of the layout above (``REPORT_FIELDS``).
        signature: r, then s, as the report has them: 72 bytes each.

    Raises:
        MalformedError: if a field is missing or does not fit into its place.
    """
    try:
        head = _LAYOUT.pack(*(fields[name] for name in REPORT_FIELDS))
    except (struct.error, KeyError):
        raise MalformedError("not the fields of an SNP report") from None
    return (head.ljust(SIGNED_BYTES, b"\0") + signature).ljust(REPORT_BYTES, b"\0")


def parse_tcb(raw: bytes, product: str) -> Tcb:
    """The eight bytes of a TCB_VERSION, as ``product`` lays them out.

    Raises:
        MalformedError: if a reserved byte is not zero, or the product is unknown.
    """
    if product not in _TCB_LAYOUTS:
        raise MalformedError(f"the TCB layout of {product[:20]!r} is unknown")
    places = _TCB_LAYOUTS[product]
    if any(raw[at] for at in range(8) if at not in places):
        raise MalformedError("a reserved byte of the TCB version is not zero")
    return Tcb(*(0 if at is None else raw[at] for at in places))


def _parse_policy(raw: int) -> Policy:
    """A guest policy; bits that no known firmware defines are in ``unknown``.

    Raises:
        MalformedError: if the bit that must be one is zero.
    """
    if not raw >> 17 & 1:
        raise MalformedError("bit 17 of the guest policy must be one", offset=0x08)
    known = (raw >> bit & 1 == 1 for bit in (16, 18, 19, 20, 21, 22, 23, 24, 25))
    return Policy(raw, raw >> 26, *known)


def product_of(family: int, model: int) -> str:
    """The product whose keys a processor has, or empty if it is unknown."""
    if family == 0x19 and model <= 0x0F:
        return "Milan"
    if family == 0x19 and (0x10 <= model <= 0x1F or 0xA0 <= model <= 0xAF):
        return "Genoa"
    return "Turin" if family == 0x1A and model <= 0x11 else ""


def _parse_signature(raw: bytes) -> bytes:
    numbers = b""
    for start in (SIGNED_BYTES, SIGNED_BYTES + _NUMBER_BYTES):
        number = raw[start : start + _NUMBER_BYTES]
        if any(number[_FIELD_BYTES:]):
            raise MalformedError("a number of the signature is too large", offset=start)
        numbers += number[:_FIELD_BYTES][::-1]
    start = SIGNED_BYTES + 2 * _NUMBER_BYTES
    if any(raw[start:]):
        raise MalformedError("the bytes after the signature are not zero", offset=start)
    return numbers


def _require_zero(raw: bytes, version: int) -> None:
    spans = [*_RESERVED]
    spans += [span for since, span in _RESERVED_BEFORE.items() if version < since]
    spans.append(_RESERVED_SINCE_3)  # reserved before version 3 too
    for start, end in spans:
        if any(raw[start:end]):
            raise MalformedError("a reserved byte is not zero", offset=start)
