"""How a transfer is cut: what crosses at once, and what can be opened then. Pure values.

Each piece takes two thirds of what is left. What opens a piece then ends before the rest
has crossed, for a GPU opens more than twice what its bus brings; only the last piece is
opened while nothing crosses, and it is short. So a transfer of any length has few pieces,
and one more costs a crossing's toll: the shortest piece is what a GPU opens in that time.
In confidential mode, where crossings wait for one another, there are fewer and larger ones.
Pieces end anywhere; a segment of a record is opened with the piece that brings its end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from sealift.channel.device.device import RecordPlace
from sealift.crypto.aead import TAG_BYTES

OPENED_BYTES_PER_S: Final = 150e9
"""What a GPU opens, roughly: it only decides how transfers are cut."""
LEAST_BYTES: Final = 1 << 20
"""Below that, opening is a matter of time for one segment, not of bytes."""

Range = tuple[int, int]
"""Start and end."""
Items = tuple[int, int, int]
"""Number of a group, its first item and the one behind its last (``plan.PiecePlan``)."""
Place = tuple[int, int]
"""Number of a record, and of a segment of it."""


class PieceCopy(NamedTuple):
    """One copy.

    Attributes:
        part: Which range it is of.
        start: Its first byte.
        end: Behind its last.
    """

    part: int
    start: int
    end: int


class Segmented(NamedTuple):
    """Records of one key, and how they are cut into segments."""

    places: Sequence[RecordPlace]
    segments: int
    segment_bytes: int


def least_piece(toll_s: float) -> int:
    """The shortest piece.

    Args:
        toll_s: What one more crossing costs.
    """
    return max(LEAST_BYTES, int(toll_s * OPENED_BYTES_PER_S))


def cut(ranges: Sequence[Range], least: int) -> Iterator[list[PieceCopy]]:
    """Pieces that cover all ranges, each the copies that bring it; a range ends a copy."""
    left = sum(end - start for start, end in ranges)
    size, piece = _piece(left, least), list[PieceCopy]()
    for part, (start, end) in enumerate(ranges):
        at = start
        while at < end:
            nbytes = min(size, end - at)
            piece.append(PieceCopy(part, at, at + nbytes))
            at, left, size = at + nbytes, left - nbytes, size - nbytes
            if not size:
                yield piece
                size, piece = _piece(left, least), []


def _piece(left: int, least: int) -> int:
    size = max(left - left // 3, least)
    return left if left - size < least // 2 else size


class Arrived:
    """Which items are whole once so many bytes have crossed.

    Args:
        groups: Records in the order in which they cross.
    """

    def __init__(self, groups: Sequence[Segmented]) -> None:
        self._groups = groups
        self._places = [place for group in groups for place in group.places]
        self._starts = [place.sealed_offset for place in self._places]
        self._of = [group for group in groups for _ in group.places]
        self._behind: Place = (0, 0)

    def until(self, byte: int) -> list[Items]:
        """Items that are whole when ``byte`` is reached, and were not told before."""
        begin, self._behind = self._behind, self._place(byte)
        found, base = [], 0
        for number, (places, segments, _) in enumerate(self._groups):
            total = len(places) * segments
            first, last = (
                min(max((record - base) * segments + segment, 0), total)
                for record, segment in (begin, self._behind)
            )
            if first < last:
                found.append((number, first, last))
            base += len(places)
        return found

    def _place(self, byte: int) -> Place:
        """The first record and segment that is not whole."""
        number = bisect_right(self._starts, byte) - 1
        if number < 0:
            return 0, 0
        place = self._places[number]
        inside = byte - place.sealed_offset
        if inside >= place.plaintext_bytes + TAG_BYTES:
            return number + 1, 0
        whole = min(inside, place.plaintext_bytes) // self._of[number].segment_bytes
        return number, whole
