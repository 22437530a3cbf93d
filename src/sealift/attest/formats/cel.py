"""Canonical event logs in TLV form, as Google's confidential VMs write them at run time.

A record is four parts, each type (1 byte), length (4 bytes, big-endian), value: its
number, the register, digests, content. The digests are of the whole content part, so
that nothing of a content is uncovered; a log in which one differs is refused.

Source: TCG Canonical Event Log Format 1.0, section 5 (TLV); go-tpm-tools cel for the
types of registers (1 a PCR, 108 a measurement register, RTMR + 1) and of content (80).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from sealift.crypto.hash import HashName, digest, digest_bytes
from sealift.errors import MalformedError

MAX_LOG_BYTES: Final = 4 << 20
MAX_RECORDS: Final = 16_384
COS_CONTENT: Final = 80

_NUMBER, _DIGESTS = 0, 3
_REGISTERS: Final[dict[int, Literal["pcr", "mr"]]] = {1: "pcr", 108: "mr"}
_ALGORITHMS: Final[dict[int, HashName]] = {
    0x04: "sha1", 0x0B: "sha256", 0x0C: "sha384", 0x0D: "sha512",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Record:
    """One event; all of it but its number and kind of register is covered.

    Attributes:
        bank: ``pcr``, or ``mr`` for a measurement register (RTMR + 1).
        register: Its number.
        digests: Of ``kind`` and ``content``, by algorithm.
        kind: Type of the content; ``COS_CONTENT`` holds another part inside.
        content: The content's value.
    """

    bank: Literal["pcr", "mr"]
    register: int
    digests: Mapping[HashName, bytes]
    kind: int
    content: bytes

    def inner(self) -> tuple[int, bytes]:
        """Type and value of the one part that a COS content is.

        Raises:
            MalformedError: if it is not one part.
        """
        kind, value, end = _part(self.content, 0)
        if end != len(self.content):
            raise _malformed("a content that is not one part", end)
        return kind, value


@dataclass(frozen=True, slots=True)
class CanonicalLog:
    """Records in order."""

    records: tuple[Record, ...]

    def replay(
        self, bank: HashName, start: Mapping[int, bytes] | None = None
    ) -> dict[int, bytes]:
        """The value of each register that the log extends, by number.

        Args:
            bank: The algorithm.
            start: Values after boot; registers that are not in it begin with zeros.

        Raises:
            MalformedError: if a record has no digest of the bank.
        """
        found: dict[int, bytes] = {}
        for record in self.records:
            if bank not in record.digests:
                raise MalformedError(
                    f"the canonical event log has no {bank} digests",
                    code="eventlog-bank",
                )
            number = record.register
            before = found.get(number, (start or {}).get(number))
            value = bytes(digest_bytes(bank)) if before is None else before
            found[number] = digest(bank, value, record.digests[bank])
        return found


def parse(raw: bytes) -> CanonicalLog:
    """The log of these bytes.

    Raises:
        MalformedError: ``eventlog-malformed`` for anything else, too much of it, records
            out of order, or a digest that is not of its content.
    """
    if len(raw) > MAX_LOG_BYTES:
        raise _malformed(f"{len(raw)} bytes", MAX_LOG_BYTES)
    records: list[Record] = []
    at = 0
    while at < len(raw):
        if len(records) == MAX_RECORDS:
            raise _malformed(f"more than {MAX_RECORDS} records", at)
        record, at = _record(raw, at, len(records))
        records.append(record)
    if len({record.bank for record in records}) > 1:
        raise _malformed("PCRs and measurement registers in one log", 0)
    return CanonicalLog(tuple(records))


def _record(raw: bytes, at: int, expected: int) -> tuple[Record, int]:
    begin = at
    kind, number, at = _part(raw, at)
    if kind != _NUMBER or int.from_bytes(number) != expected or len(number) != 8:
        raise _malformed(f"not record {expected}", begin)
    kind, register, at = _part(raw, at)
    bank = _REGISTERS.get(kind)
    if bank is None or len(register) != 1:
        raise _malformed("no register that is known", begin)
    kind, listed, at = _part(raw, at)
    if kind != _DIGESTS:
        raise _malformed("a record without digests", begin)
    content_at = at
    kind, content, at = _part(raw, at)
    digests = _digests(listed, raw[content_at:at], begin)
    return Record(bank, register[0], digests, kind, content), at


def _digests(listed: bytes, whole: bytes, offset: int) -> dict[HashName, bytes]:
    found: dict[HashName, bytes] = {}
    at = 0
    while at < len(listed):
        kind, value, at = _part(listed, at)
        name = _ALGORITHMS.get(kind)
        if name is None or name in found or digest(name, whole) != value:
            raise _malformed("a digest that is not of its content", offset)
        found[name] = value
    return found


def _part(raw: bytes, at: int) -> tuple[int, bytes, int]:
    end = at + 5 + int.from_bytes(raw[at + 1 : at + 5])
    if at + 5 > len(raw) or end > len(raw):
        raise _malformed("a part is cut off", at)
    return raw[at], raw[at + 5 : end], end


def _malformed(what: str, offset: int) -> MalformedError:
    return MalformedError(
        "not a canonical event log", why=what, offset=offset, code="eventlog-malformed"
    )
