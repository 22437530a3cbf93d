"""Format of NVIDIA device evidence: what a GPU or NVSwitch signed, and its chain.

Whether it comes from a GPU or a switch is read from the report, not said beside it. A
report is an SPDM exchange: the 37-byte GET_MEASUREMENTS request, the MEASUREMENTS response
to it, and the device's signature over both (ECDSA P-384, SHA-384, r || s). The response
carries measurement blocks counted from 1, the responder's nonce, and fields of NVIDIA's.
Source: DMTF DSP0274 1.1.0 sections 10.11; the fields as NVIDIA's open verifiers name
them. Reports are of Hopper and Blackwell GPUs (64 blocks) and LS10 switches (31).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from sealift.attest.binary import Cursor
from sealift.attest.evidence import Body
from sealift.crypto.certificate import Certificate
from sealift.errors import MalformedError
from sealift.ids import Digest

MEDIA_TYPE: Final = "application/vnd.sealift.nvidia-evidence+json"
CHAIN_LENGTH: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaBody(Body):
    """One device's evidence.

    Attributes:
        report: Request, response and signature (``formats/spdm.py``).
        certificates: DER, the device's leaf first, NVIDIA's root last.
    """

    kind = "nvidia"
    max_bytes = 64 << 10

    report: bytes
    certificates: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if len(self.certificates) != CHAIN_LENGTH:
            raise MalformedError(
                f"a device's certificate chain must have {CHAIN_LENGTH} certificates",
                field="certificates",
            )


Kind = Literal["gpu", "switch"]
Mode = Literal["spt", "mpt", "ppcie", "unstated"]

MAX_REPORT_BYTES: Final = 8192
SIGNATURE_BYTES: Final = 96
DIGEST_BYTES: Final = 48
NONCE_BYTES: Final = 32
PDI_BYTES: Final = 8
_REQUEST_HEAD: Final = bytes.fromhex("11e001ff")  # 1.1, signed, all measurements
_RESPONSE_HEAD: Final = bytes.fromhex("11600000")
_BLOCK_BYTES: Final = 7 + DIGEST_BYTES
_KIND_BY_BLOCKS: Final[Mapping[int, Kind]] = {64: "gpu", 31: "switch"}
_MODES: Final[Mapping[bytes, Mode]] = {
    b"\0\0": "spt",
    b"\1\0": "mpt",
    b"\2\0": "ppcie",
}
_ON: Final = b"\xaa"
_OFF: Final = b"\x55"
# Numbers of NVIDIA's fields.
DRIVER: Final = 3
VBIOS: Final = 6
NVDEC0: Final = 11
CHIP_SKU: Final = 15
PROJECT: Final = 17
PROJECT_SKU: Final = 18
FWID: Final = 20
PROTECTED_PCIE: Final = 21
SWITCH_PDI: Final = 22
SWITCH_GPU_PDIS: Final = 26
CHIP: Final = 35
FEATURE_MODE: Final = 36
_NAME: Final = re.compile(rb"[0-9A-Za-z][0-9A-Za-z.]{0,31}")
_CHIP_NAME: Final = re.compile("[A-Z][A-Z0-9]{2,11}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReport:
    """A parsed report; nothing about it is verified yet.

    Attributes:
        kind: What the number of blocks and the fields say that it is.
        nonce: The requester's 32 bytes.
        measurements: Digests (48 bytes each); SPDM index 1 comes first.
        fields: NVIDIA's fields by number.
        signed: What the signature covers: all but the signature.
        signature: r || s, 96 bytes.
    """

    kind: Kind
    nonce: bytes
    measurements: tuple[bytes, ...]
    fields: Mapping[int, bytes]
    signed: bytes
    signature: bytes

    @property
    def driver(self) -> str:
        """Version of the driver; empty for a switch, which has none."""
        return self._text(DRIVER) if self.kind == "gpu" else ""

    @property
    def vbios(self) -> str:
        """Version of the VBIOS as RIMs write it: ``96.00.5E.00.01``."""
        raw = self._field(VBIOS)
        if self.kind == "switch":
            return self._text(VBIOS).upper()
        if len(raw) != 8:
            raise MalformedError("a VBIOS version must have 8 bytes", field="vbios")
        return ".".join(f"{byte:02X}" for byte in (*raw[3::-1], raw[4]))

    @property
    def board(self) -> tuple[str, str, str]:
        """Project, project SKU and chip SKU, as names of RIMs contain them."""
        if self.kind == "switch":
            return ("5612", "0002", "890")  # every LS10; its report does not say
        return (
            self._text(PROJECT).upper(),
            self._text(PROJECT_SKU).upper(),
            self._text(CHIP_SKU).upper(),
        )

    @property
    def chip(self) -> str:
        """The chip by its own name, as Blackwell and later say it; else empty.

        Raises:
            MalformedError: if it is no name of a chip.
        """
        name = self._text(CHIP) if CHIP in self.fields else ""
        if name and not _CHIP_NAME.fullmatch(name):
            raise MalformedError("not the name of a chip", field="chip")
        return name

    @property
    def fwid(self) -> bytes | None:
        """Digest of the firmware that holds the signing key, where it is there."""
        return self.fields.get(FWID)

    @property
    def video_decoder_off(self) -> bool:
        """Whether NVDEC0 is off: measurement 36 then means nothing."""
        return self.fields.get(NVDEC0) == _OFF

    @property
    def mode(self) -> Mode:
        """How GPUs are used together; older firmware does not say.

        Raises:
            MalformedError: for an unknown mode, or two fields that disagree.
        """
        stated = self.fields.get(FEATURE_MODE)
        protected = self.fields.get(PROTECTED_PCIE)
        if stated is None:
            return "ppcie" if protected == _ON else "unstated"
        mode = _MODES.get(stated)
        if mode is None or (mode == "ppcie") != (protected == _ON):
            raise MalformedError("a GPU's mode is contradictory", field="mode")
        return mode

    @property
    def neighbours(self) -> frozenset[str]:
        """PDIs (hex) of a GPU's switches, or of a switch's GPUs; empty if unlinked."""
        if self.kind == "gpu":  # one per NVLink, written backwards
            pieces = _pieces(self.fields.get(SWITCH_PDI, b""))
            found = frozenset(each[::-1].hex() for each in pieces)
        else:  # eight GPUs, then a map of ports
            pieces = _pieces(self.fields.get(SWITCH_GPU_PDIS, b""))
            found = frozenset(each.hex() for each in pieces[:8])
        return found - {"00" * PDI_BYTES, "ff" * PDI_BYTES}

    def _field(self, number: int) -> bytes:
        if number not in self.fields:
            raise MalformedError(f"the report lacks field {number}")
        return self.fields[number]

    def _text(self, number: int) -> str:
        raw = self._field(number).rstrip(b"\0")
        if not _NAME.fullmatch(raw):
            raise MalformedError(f"field {number} of the report is not a name")
        return raw.decode("ascii")


def parse_report(raw: bytes) -> DeviceReport:
    """Parse a report; every byte of it has a meaning, but for zeros behind it.

    Some drivers leave them there. The signature may end in zeros as well, so where it
    ends is told by the layout alone.

    Raises:
        MalformedError: with the offset of the first offence.
    """
    if len(raw) > MAX_REPORT_BYTES:
        raise MalformedError(f"the report has {len(raw)} bytes")
    cursor = Cursor(raw, "a report")
    _expect(cursor, _REQUEST_HEAD, "the request is not one for signed measurements")
    nonce = cursor.take(NONCE_BYTES)
    _expect(cursor, b"\0", "the key slot is not 0")
    _expect(cursor, _RESPONSE_HEAD, "the response does not contain measurements")
    at, blocks, record = cursor.offset, cursor.number(1), cursor.number(3)
    if blocks not in _KIND_BY_BLOCKS or record != blocks * _BLOCK_BYTES:
        raise MalformedError("the blocks are not those of a GPU or switch", offset=at)
    measurements = []
    for number in range(1, blocks + 1):
        # Index, DMTF's format, its size; a digest (bit 7 clear) of mutable firmware.
        head = bytes((number, 1, 3 + DIGEST_BYTES, 0, 1, DIGEST_BYTES, 0))
        _expect(cursor, head, f"block {number} is not a digest")
        measurements.append(cursor.take(DIGEST_BYTES))
    cursor.take(NONCE_BYTES)
    fields = _read_fields(cursor.take(cursor.number(2)))
    end, signature = cursor.offset, cursor.take(SIGNATURE_BYTES)
    if any(cursor.rest()):
        raise MalformedError(
            "the report has extra bytes after its signature", offset=end
        )
    report = DeviceReport(
        kind=_KIND_BY_BLOCKS[blocks],
        nonce=nonce,
        measurements=tuple(measurements),
        fields=MappingProxyType(fields),
        signed=raw[:end],
        signature=signature,
    )
    _check_kind(report)
    return report


def _expect(cursor: Cursor, expected: bytes, why: str) -> None:
    at = cursor.offset
    if cursor.raw[at : at + len(expected)] != expected:
        raise MalformedError(why, offset=at)
    cursor.take(len(expected))


def _read_fields(raw: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    cursor = Cursor(raw, "fields of a report")
    while cursor.offset < len(raw):
        number = cursor.number(2)
        if number in found:
            raise cursor.malformed("occur twice")
        found[number] = cursor.take(cursor.number(2))
    return found


def _check_kind(report: DeviceReport) -> None:
    """What a GPU and a switch cannot both be; and that all derived values parse."""
    if (DRIVER in report.fields) != (report.kind == "gpu"):
        raise MalformedError("the report is neither a GPU's nor a switch's")
    if report.fwid is not None and len(report.fwid) != DIGEST_BYTES:
        raise MalformedError("a firmware id must have 48 bytes", field="fwid")
    _ = (report.driver, report.vbios, report.board, report.mode, report.neighbours)
    _ = report.chip


def _pieces(raw: bytes) -> list[bytes]:
    if len(raw) % PDI_BYTES:
        raise MalformedError("a list of PDIs is incomplete")
    return [raw[at : at + PDI_BYTES] for at in range(0, len(raw), PDI_BYTES)]


# What the certificates say of a device.

# A digest of firmware: SEQUENCE of the OID of SHA-384 and 48 bytes, in DER.
_FWID: Final = bytes.fromhex("303d06096086480165030402020430")
_DICE_HOPPER: Final = "2.23.133.5.4.1"
_DICE_BLACKWELL: Final = "2.23.133.5.4.1.1"
_LEAF: Final = re.compile(r"CN=([A-Z0-9_]{2,12}) [A-Z][0-9]{2} [GF]SP FMC LF,.*")
_DEVICE: Final = re.compile(r".*2\.5\.4\.5=[0-9A-F]{2}([0-9A-F]{16})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a genuine report says about who answered.

    Attributes:
        kind: GPU or switch.
        chip: As certified: ``GH100``, ``GB100``, ``LS10``, or a family (``GB20X``).
        id: NVIDIA's ``ueid``: the leaf's serial number, decimal.
        key: SHA-256 of the leaf's SubjectPublicKeyInfo.
        mode: How GPUs are used together.
        pdi: The chip's own number (hex), by which neighbours name it.
        neighbours: PDIs of the switches or GPUs that it is linked to.
    """

    kind: Kind
    chip: str
    id: str
    key: Digest
    mode: Mode
    pdi: str
    neighbours: frozenset[str]


def read_device(report: DeviceReport, path: tuple[Certificate, ...]) -> Device:
    """Who answered, by the report and its chain, the leaf first.

    Raises:
        MalformedError: if the certificates do not name it.
    """
    chip, number = chip_of(path[0]), _DEVICE.fullmatch(path[1].subject)
    if number is None:
        raise MalformedError("the device's certificates do not name the device")
    return Device(
        kind=report.kind,
        chip=chip,
        id=str(path[0].serial),
        key=path[0].spki_digest,
        mode=report.mode,
        pdi=number[1].lower(),
        neighbours=report.neighbours,
    )


def chip_of(leaf: Certificate) -> str:
    """The chip that a device's leaf certificate names: ``GH100``, or ``GB20X``.

    Raises:
        MalformedError: if it names none.
    """
    found = _LEAF.fullmatch(leaf.subject)
    if found is None:
        raise MalformedError("the device's certificates do not name the device")
    return found[1].replace("_", "")


def is_of_family(chip: str, family: str) -> bool:
    """Whether a certified name covers a chip: ``GB20X`` covers ``GB202``."""
    return re.fullmatch(family.replace("X", "[0-9A-Z]"), chip) is not None


def certified_firmware_id(leaf: Certificate) -> bytes | None:
    """The firmware digest that the leaf's DICE extension names, if it has one.

    Hopper's ends with it; Blackwell's is a list with the one that signs first.
    """
    older, newer = leaf.extension(_DICE_HOPPER), leaf.extension(_DICE_BLACKWELL)
    raw = newer if newer is not None else older
    if raw is None:
        return None
    at = raw.find(_FWID) if newer is not None else raw.rfind(_FWID)
    end = at + len(_FWID) + DIGEST_BYTES
    ends = newer is not None or end == len(raw)
    found = raw[at + len(_FWID) : end]
    return found if at >= 0 and ends and len(found) == DIGEST_BYTES else None
