"""Cut a source that comes in pieces of any size into records of one size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sealift.channel.record.quarantine import scrub
from sealift.ids import Buffer


def regroup(chunks: Iterable[Buffer], record_bytes: int) -> Iterator[memoryview]:
    """Cut pieces of any size into pieces of ``record_bytes``; the last may be shorter.

    A yielded view is valid until the next one is asked for.
    """
    room = memoryview(bytearray(record_bytes))
    filled = 0
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        while len(view) > 0:
            if filled == 0 and len(view) >= record_bytes:
                yield view[:record_bytes]
                view = view[record_bytes:]
                continue
            taken = min(record_bytes - filled, len(view))
            room[filled : filled + taken] = view[:taken]
            filled, view = filled + taken, view[taken:]
            if filled == record_bytes:
                yield room
                filled = 0
    if filled:
        yield room[:filled]
    scrub(room)
