"""Where the time of a run went: every instant counted once. Pure.

Visits may overlap: with two buffers one holder's rows load while another's are trained
on. An instant belongs to the most useful thing that goes on in it, so loading counts
only where nothing was trained meanwhile: that is the exposed part of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from sealift.lab.demo.progress import TRANSFER_PHASES, Progress, Span

CHECKPOINT: Final = "checkpoint"
IDLE: Final = "idle"
# What counts where several things go on, most useful first.
RANK: Final = (
    "train", CHECKPOINT, "scrub", "load", "check", "handshake", "receipt", "offer", "wait",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spending:
    """The accelerator's time from its first visit to the end of its last.

    Attributes:
        segments: What it was used for, in order, without gap or overlap.
        transfer_s: Seconds of handshake, load and check, all visits added up.
    """

    segments: tuple[Span, ...]
    transfer_s: float

    @property
    def whole_s(self) -> float:
        """From first to last, in seconds."""
        return sum(self.seconds.values())

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by what the time was used for; they add up to the whole."""
        found: dict[str, float] = {}
        for segment in self.segments:
            spent = segment.ended_s - segment.began_s
            found[segment.phase] = found.get(segment.phase, 0.0) + spent
        return found

    @property
    def exposed_s(self) -> float:
        """Seconds of bringing cargo in which nothing else was done."""
        return sum(self.seconds.get(phase, 0.0) for phase in TRANSFER_PHASES)

    @property
    def hidden_s(self) -> float:
        """Seconds of bringing cargo that other work covered."""
        return max(0.0, self.transfer_s - self.exposed_s)


def spend(progress: Progress) -> Spending:
    """Account for the time of every visit that has ended, and of every checkpoint."""
    spans = [span for visit in progress.visits for span in visit.spans]
    transfer_s = sum(
        span.ended_s - span.began_s for span in spans if span.phase in TRANSFER_PHASES
    )
    end_s = max((span.ended_s for span in spans), default=0.0)
    sealing = [
        Span(CHECKPOINT, each.at_s - each.seconds, each.at_s)
        for each in progress.checkpoints
        if not each.missed and each.at_s <= end_s
    ]
    return Spending(tuple(_merged(_sweep([*spans, *sealing]))), transfer_s)


def _sweep(spans: Iterable[Span]) -> Iterator[Span]:
    """Elementary stretches between any two ends, each with what counts in it."""
    turns = [
        turn
        for span in spans
        for turn in ((span.began_s, 1, span.phase), (span.ended_s, -1, span.phase))
    ]
    under_way: Counter[str] = Counter()
    last_s = None
    for at_s, change, phase in sorted(turns):
        if last_s is not None and at_s > last_s:
            yield Span(_what_counts(under_way), last_s, at_s)
        under_way[phase] += change
        last_s = at_s


def _what_counts(under_way: Counter[str]) -> str:
    return next((phase for phase in RANK if under_way[phase] > 0), IDLE)


def _merged(spans: Iterable[Span]) -> Iterator[Span]:
    current: Span | None = None
    for span in spans:
        if current is not None and current.phase == span.phase:
            current = Span(span.phase, current.began_s, span.ended_s)
            continue
        if current is not None:
            yield current
        current = span
    if current is not None:
        yield current
