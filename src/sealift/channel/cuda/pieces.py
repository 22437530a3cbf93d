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
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from sealift.channel.device.device import RecordPlace
from sealift.crypto.aead import TAG_BYTES

OPENED_BYTES_PER_S: Final = 150e9
"""What a GPU opens, in rounds of a hundred percent: it only decides how transfers are cut."""

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
    groups: Sequence[Segmented], start: int, end: int, size: int, least: int
) -> Iterator[Piece]:
    """Pieces of about ``size`` bytes that cover ``start`` to ``end``, one when asked for.

    Args:
        groups: Records in the order of their places, all in that range.
        start: Where the sealed bytes begin.
        end: Where they end.
        size: How long a piece is.
        least: How short the last ones become.
    """
    edges = _edges(groups)
    to = (start, 0, 0)
    next(edges)
    for wanted in _ends(start, end, size, least):
        if wanted <= to[0]:
            continue
        begin, to = to, (end, len(groups), 0)
        if wanted < end:
            with suppress(StopIteration):  # there is no record behind it
                to = edges.send(wanted)
        yield Piece(begin[0], to[0], tuple(_between(groups, begin[1:], to[1:])))


def _ends(start: int, end: int, size: int, least: int) -> Iterator[int]:
    """Where pieces would end if they could end anywhere."""
    while start < end:
        start += min(max(min(size, (end - start) // 2), least), end - start)
        yield start


def _edges(groups: Sequence[Segmented]) -> Generator[tuple[int, int, int], int, None]:
    """Where pieces end: byte, group and first item behind it.

    It is sent where each would end, ever later; the first answer is none.
    """
    wanted = yield 0, 0, 0
    for number, (places, segments, segment_bytes) in enumerate(groups):
        for index, place in enumerate(places):
            begin, nbytes = place.sealed_offset, place.plaintext_bytes
            while wanted < begin + nbytes:
                segment = max(1, -(-(wanted - begin) // segment_bytes))
                if segment * segment_bytes >= nbytes:
                    break
                at = begin + segment * segment_bytes
                wanted = yield at, number, index * segments + segment
            while wanted <= begin + nbytes + TAG_BYTES:
                wanted = yield (
                    begin + nbytes + TAG_BYTES,
                    number,
                    (index + 1) * segments,
                )


def _between(
    groups: Sequence[Segmented], begin: tuple[int, int], end: tuple[int, int]
) -> Iterator[Items]:
    group, first = begin
    while group < end[0]:
        total = len(groups[group].places) * groups[group].segments
        if first < total:
            yield group, first, total
        group, first = group + 1, 0
    if group < len(groups) and first < end[1]:
        yield group, first, end[1]
