"""Pairs of plain copy and default mode, one right after the other, on cores that are gauged.

A machine that is shared changes under a benchmark: a neighbour on the same core takes up
to half of what it seals in a second, and less of what it copies. So both cores are gauged
before every pair, by sealing within their caches; pairs go on until enough of them found
both cores undisturbed, or a limit has passed. Where source, ring and target lie in
physical memory decides over a tenth, so every size gets several placements.
A ratio is the median of those of all pairs; that of the undisturbed stands beside it.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Final

from benchmarks.link.arms import DEFAULT_SLOTS, LinkArm, arms_over
from benchmarks.link.device import DevicePeer
from benchmarks.link.shapes import Shape
from benchmarks.report import Row
from sealift.channel.link.announcement import DEFAULT_MODE
from sealift.crypto.aead import TAG_BYTES, Aead, Suite
from sealift.crypto.keys import SecretKey

PLACEMENTS: Final = 3
PAIRS_PER_PLACEMENT: Final = 15
MOST_PER_PLACEMENT_S: Final = 15.0
MIN_BYTES: Final = 16 << 20  # below, one transfer's fixed costs are what is measured
UNDISTURBED: Final = 0.9  # of the best rate that a core showed in the run
_ARMS: Final = [str(Shape.PLAIN), str(DEFAULT_MODE)]
_GAUGE_BYTES: Final = 512 << 10  # with its ciphertext in a core's own cache
_GAUGE_CALLS: Final = 16


@dataclass(frozen=True, slots=True)
class Pair:
    """Seconds of both transfers, and what each core sealed in a second just before."""

    plain_s: float
    sealed_s: float
    rates: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Default goodput / plain goodput."""
        return self.plain_s / self.sealed_s


class CoreGauge:
    """How fast each core seals within its caches, and the best that it ever did."""

    def __init__(self, cores: list[int]) -> None:
        self._cores = cores
        self._best = [0.0 for _ in cores]
        self._aead = Aead(Suite.AES_256_GCM, SecretKey.generate())
        self._numbers = itertools.count()
        self._plain = os.urandom(_GAUGE_BYTES)
        self._sealed = memoryview(bytearray(_GAUGE_BYTES + TAG_BYTES))

    def read(self) -> tuple[float, ...]:
        """Bytes per second of each core now; this thread ends where it was."""
        before = os.sched_getaffinity(0)
        try:
            rates = tuple(self._rate_on(core) for core in self._cores)
        finally:
            os.sched_setaffinity(0, before)
        self._best = [max(pair) for pair in zip(self._best, rates, strict=True)]
        return rates

    def undisturbed(self, pair: Pair) -> bool:
        """Whether both cores were near the best they showed so far."""
        found = zip(pair.rates, self._best, strict=True)
        return all(rate >= UNDISTURBED * best for rate, best in found)

    def _rate_on(self, core: int) -> float:
        os.sched_setaffinity(0, {core})
        start = time.perf_counter()
        for _ in range(_GAUGE_CALLS):
            nonce = next(self._numbers).to_bytes(12, "big")
            self._aead.seal_into(nonce, self._plain, b"", self._sealed)
        return _GAUGE_CALLS * _GAUGE_BYTES / (time.perf_counter() - start)


def pairs_row(size: int, pairs: Sequence[Pair], gauge: CoreGauge) -> Row:
    """All pairs of one size; made when the gauge knows the whole run's best."""
    quiet = [pair.ratio for pair in pairs if gauge.undisturbed(pair)]
    low, middle, high = quantiles((pair.ratio for pair in pairs), n=4)
    return {
        "pairs of": "plain, default",
        "kib": size >> 10,
        "pairs": len(pairs),
        "plain_gb_per_s": round(size / median(p.plain_s for p in pairs) / 1e9, 3),
        "default_gb_per_s": round(size / median(p.sealed_s for p in pairs) / 1e9, 3),
        "vs_plain": round(middle, 3),
        "quartiles": f"{low:.2f}-{high:.2f}",
        "undisturbed": len(quiet),
        "vs_plain_undisturbed": round(median(quiet), 3) if quiet else "",
    }


def measure_pairs(
    peer: DevicePeer, size: int, gauge: CoreGauge, slots: int = DEFAULT_SLOTS
) -> list[Pair]:
    """Several placements' pairs of one size, each in new memory."""
    found: list[Pair] = []
    for _ in range(PLACEMENTS):
        with arms_over(peer, _ARMS, size, slots) as arms:
            for arm in arms:  # warms up
                arm.timed(peer)
            found += _pairs(peer, arms, gauge)
    return found


def _pairs(peer: DevicePeer, arms: Sequence[LinkArm], gauge: CoreGauge) -> list[Pair]:
    """Until enough are undisturbed; until enough are of any kind when time is over."""
    found: list[Pair] = []
    until = time.monotonic() + MOST_PER_PLACEMENT_S
    while len(found) < PAIRS_PER_PLACEMENT or (
        sum(map(gauge.undisturbed, found)) < PAIRS_PER_PLACEMENT
        and time.monotonic() <= until
    ):
        rates = gauge.read()
        order = arms[::-1] if len(found) % 2 else arms  # neither is always second
        taken = {arm.link: arm.timed(peer) for arm in order}
        plain_s, sealed_s = (taken[arm.link] for arm in arms)
        found.append(Pair(plain_s, sealed_s, rates))
    return found
