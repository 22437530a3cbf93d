"""Reads the kernel's measurement list, and remembers how far quotes have proved it.

Where a quote ended is where the next evidence for the same verifier may begin, so that
renewing does not cost more on a host that has been running for months.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealift.attest.tpm.imalist import MeasurementList, parse_list, replay_until
from sealift.crypto.hash import HashName, digest_bytes
from sealift.errors import MalformedError, UnavailableError
from sealift.ids import Digest

_REMEMBERED: Final = 256
_BINARY: Final = (10).to_bytes(4, "little")
_ENTRY_BYTES: Final = 4 + 20 + 4 + 4  # register, recorded hash, two lengths


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the list that a quote proved.

    Attributes:
        count: Entries before it.
        offset: Bytes before it.
        register: PCR 10 there.
    """

    count: int
    offset: int
    register: bytes


class ImaReader:
    """Reads one list, in either form; only the binary one from the middle.

    Args:
        path: The list, or None for a machine without.
        bank: The bank that is quoted.
    """

    def __init__(self, path: Path | None, bank: HashName) -> None:
        self._path = path
        self._bank = bank
        self._begin = Position(0, 0, bytes(digest_bytes(bank)))
        self._latest = self._begin
        self._shown: OrderedDict[Digest, Position] = OrderedDict()

    def place_behind(self, shown: Digest) -> Position:
        """Where the evidence of that digest ended; the beginning if nobody knows."""
        return self._shown.get(shown, self._begin)

    def read(self, place: Position | None = None) -> bytes:
        """The list from a place on, or all of it."""
        return read_log(self._path, place.offset if place else 0)

    def remember(
        self, shown: Digest, place: Position | None, raw: bytes, quoted: bytes
    ) -> None:
        """Note what a quote of PCR 10 proved of what was read.

        Args:
            shown: Digest of the evidence.
            place: Where ``raw`` begins.
            raw: What ``read`` gave.
            quoted: PCR 10; empty if it was not quoted.
        """
        begin = place or self._begin
        if self._latest.count >= begin.count:
            raw, begin = raw[self._latest.offset - begin.offset :], self._latest
        found = _advance(begin, raw, quoted, self._bank)
        if found is not None:
            self._latest = self._shown[shown] = found
            while len(self._shown) > _REMEMBERED:
                self._shown.popitem(last=False)


def read_log(path: Path | None, offset: int = 0) -> bytes:
    """A log from ``offset`` bytes on; nothing if there is no path.

    Raises:
        UnavailableError: ``measurement-log``.
    """
    if path is None:
        return b""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read()
    except OSError as error:
        raise UnavailableError(
            "a measurement log cannot be read",
            why=error,
            fix="Mount securityfs, boot with IMA, and run as a user who may read it",
            code="measurement-log",
        ) from None


def _advance(
    begin: Position, raw: bytes, quoted: bytes, bank: HashName
) -> Position | None:
    """The place where the register is the quoted one, if the form lets us find it."""
    if raw and not raw.startswith(_BINARY):
        return None
    try:
        entries = parse_list(raw)
    except MalformedError:
        return None  # it is sent as it is; the verifier says what is wrong with it
    count = replay_until(entries, begin.register, quoted, bank=bank)
    if count is None or "ima" in entries.templates:
        return None
    size = _bytes_of(entries, count)
    return Position(begin.count + count, begin.offset + size, quoted)


def _bytes_of(entries: MeasurementList, count: int) -> int:
    contents = sum(map(len, entries.contents[:count]))
    return contents + sum(map(len, entries.templates[:count])) + count * _ENTRY_BYTES
