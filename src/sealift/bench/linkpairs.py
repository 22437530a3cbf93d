"""Pairs of plain copy and default mode, one right after the other, in memory that changes.

Where source, ring and target lie in physical memory decides over a tenth of either's
speed, and a neighbour on the machine over more. So every size gets several placements,
and a ratio is the median of those of all pairs.
"""

from __future__ import annotations

import statistics
from typing import Final

from sealift.bench.linkarms import DEFAULT_SLOTS, make_arms, timed, touched_memory
from sealift.bench.linkpeer import DevicePeer
from sealift.bench.report import Row
from sealift.channel.link.mode import DEFAULT_MODE, LinkMode

PLACEMENTS: Final = 3
PAIRS_PER_PLACEMENT: Final = 15
MIN_BYTES: Final = 16 << 20  # below, one transfer's fixed costs are what is measured
_ARMS: Final = [str(LinkMode.PLAIN), str(DEFAULT_MODE)]
Pair = tuple[float, float]


def pairs_row(peer: DevicePeer, size: int, slots: int = DEFAULT_SLOTS) -> Row:
    """One size's row; ``vs_plain`` is default goodput / plain goodput."""
    placed = [
        _pairs_in_new_memory(peer, size, slots, PAIRS_PER_PLACEMENT)
        for _ in range(PLACEMENTS)
    ]
    return summary(size, placed)


def summary(size: int, placed: list[list[Pair]]) -> Row:
    """The row for the pairs (seconds plain, seconds sealed) of each placement."""
    pairs = [pair for found in placed for pair in found]
    plain, sealed = (statistics.median(taken) for taken in zip(*pairs, strict=True))
    quartiles = statistics.quantiles(map(_ratio, pairs), n=4)
    each = [statistics.median(map(_ratio, found)) for found in placed]
    return {
        "pairs of": "plain, default",
        "kib": size >> 10,
        "pairs": len(pairs),
        "plain_gb_per_s": round(size / plain / 1e9, 3),
        "default_gb_per_s": round(size / sealed / 1e9, 3),
        "vs_plain": round(quartiles[1], 3),
        "quartiles": f"{quartiles[0]:.2f}-{quartiles[2]:.2f}",
        "placements": " ".join(f"{ratio:.2f}" for ratio in each),
    }


def _pairs_in_new_memory(
    peer: DevicePeer, size: int, slots: int, count: int
) -> list[Pair]:
    source = touched_memory(size)
    peer.ask("memory", nbytes=size)
    arms = make_arms(peer, _ARMS, source, slots)
    plain, sealed = arms
    found = [(timed(peer, plain), timed(peer, sealed)) for _ in range(count + 1)]
    for arm in arms:
        arm.close()
        peer.ask("drop", link=arm.link)
    return found[1:]  # the first warms up


def _ratio(pair: Pair) -> float:
    plain, sealed = pair
    return plain / sealed
