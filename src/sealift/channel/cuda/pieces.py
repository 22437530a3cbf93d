"""How a transfer is cut: what crosses at once, and what can be opened then. Pure values.

What is not hidden is what every crossing costs, and the opening of the last piece. Of a
transfer of ``n`` bytes in ``k`` pieces that is ``k`` tolls and ``n / k`` bytes of opening,
least where both are equal. So where a crossing costs little there are many small pieces,
and in confidential mode, where crossings wait for one another, few large ones. The last
ones become small: nothing crosses while they are opened.
A piece ends where a segment of a record does, so a record may cross in several.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from sealift.channel.device.device import RecordPlace
from sealift.crypto.aead import TAG_BYTES

OPENED_BYTES_PER_S: Final = 150e9
"""What a GPU opens, in rounds of a hundred percent: it only decides how transfers are cut."""

Range = tuple[int, int]
"""Start and end."""
Items = tuple[int, int, int]
"""Number of a group, its first item and the one behind its last (``plan.PiecePlan``)."""


class Piece(NamedTuple):
    """One crossing of sealed bytes, and the items that are whole then.

    Attributes:
        start: Its first byte, in the sealed memory.
        end: Behind its last.
        items: Of each group that has some.
    """

    start: int
    end: int
    items: tuple[Items, ...]


class Segmented(NamedTuple):
    """Records of one key, and how they are cut into segments."""

    places: Sequence[RecordPlace]
    segments: int
    segment_bytes: int


def piece_bytes(total_bytes: int, toll_s: float, least_bytes: int) -> int:
    """How long a piece is.

    Args:
        total_bytes: What crosses altogether.
        toll_s: What one more crossing costs.
        least_bytes: No piece is shorter.
    """
    return max(least_bytes, int(math.sqrt(total_bytes * toll_s * OPENED_BYTES_PER_S)))


def cut(
    groups: Sequence[Segmented], ranges: Sequence[Range], size: int, least: int
) -> Iterator[Piece]:
    """Pieces of about ``size`` bytes that cover all ranges, one when it is asked for.

    Args:
        groups: Records in the order of their places, each in one of the ranges.
        ranges: Start and end of what crosses, in their order.
        size: How long a piece is.
        least: How short the last ones of a range become.
    """
    records = _Records(groups)
    before = (0, 0)
    for start, end in ranges:
        byte = start
        for wanted in _ends(start, end, size, least):
            if wanted <= byte:
                continue
            to, behind = records.edge(wanted, end)
            yield Piece(byte, to, tuple(records.between(before, behind)))
            byte, before = to, behind


class _Records:
    """All records in a row, and where pieces may end."""

    def __init__(self, groups: Sequence[Segmented]) -> None:
        self._groups = groups
        self._places = [place for group in groups for place in group.places]
        self._starts = [place.sealed_offset for place in self._places]
        self._of = [group for group in groups for _ in group.places]

    def edge(self, wanted: int, end: int) -> tuple[int, tuple[int, int]]:
        """Where a piece ends, and the first record and segment behind it.

        Args:
            wanted: Where it would end.
            end: Where the range ends.
        """
        number = bisect_left(self._starts, wanted) - 1
        if wanted == end or number < 0:
            return wanted, (number + 1, 0)
        place, segment_bytes = self._places[number], self._of[number].segment_bytes
        inside = wanted - place.sealed_offset
        segment = -(-inside // segment_bytes)
        if segment * segment_bytes < place.plaintext_bytes:
            return place.sealed_offset + segment * segment_bytes, (number, segment)
        behind = place.sealed_offset + place.plaintext_bytes + TAG_BYTES
        return max(wanted, behind), (number + 1, 0)

    def between(self, begin: tuple[int, int], end: tuple[int, int]) -> Iterator[Items]:
        """Items from one record and segment to another."""
        base = 0
        for number, (places, segments, _) in enumerate(self._groups):
            total = len(places) * segments
            first, last = (
                min(max((record - base) * segments + segment, 0), total)
                for record, segment in (begin, end)
            )
            if first < last:
                yield number, first, last
            base += len(places)


def _ends(start: int, end: int, size: int, least: int) -> Iterator[int]:
    """Where pieces would end if they could end anywhere."""
    while start < end:
        start += min(max(min(size, (end - start) // 2), least), end - start)
        yield start
