"""Which ranges of a memory are being read and written, so that calls keep their order.

Work on different ranges overlaps; work on the same bytes waits. A ring of slots in one
memory therefore needs nobody to say what waits for what.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from sealift.channel.cuda.driver import Driver
from sealift.channel.cuda.streams import Passed

MANY: Final = 64


class Point(Protocol):
    """A point in a queue."""

    def is_done(self) -> bool:
        """Whether it is past."""

    def hold_up(self, driver: Driver, stream: Any) -> None:
        """Let ``stream`` wait for it."""


Use = tuple[int, int, Point]
"""Start and end of a range, and when the use of it is over."""


@dataclass(slots=True)
class Hazards:
    """The uses of one memory that may not be over."""

    _reads: list[Use] = field(default_factory=list)
    _writes: list[Use] = field(default_factory=list)

    def before_read(self, start: int, end: int) -> list[Point]:
        """What must be past before the range is read."""
        return _overlapping(self._writes, start, end)

    def before_write(self, start: int, end: int) -> list[Passed]:
        """What must be past, or have failed, before the range is written."""
        both = (self._writes, self._reads)
        found = (point for uses in both for point in _overlapping(uses, start, end))
        return [Passed(point) for point in found]

    def was_last_written_by(self, start: int, end: int, point: Point) -> bool:
        """Whether nothing was queued to write any of the range since ``point``."""
        found = _overlapping(self._writes, start, end)
        return bool(found) and found[-1] is point

    def reads(self, start: int, end: int, point: Point) -> None:
        """The range is read until ``point``."""
        self._reads = [*_pruned(self._reads), (start, end, point)]

    def writes(self, start: int, end: int, point: Point) -> None:
        """The range is written until ``point``, after everything on it before."""
        self._reads = _outside(_pruned(self._reads), start, end)
        kept = _outside(_pruned(self._writes), start, end)
        self._writes = [*kept, (start, end, point)]


def _overlapping(uses: list[Use], start: int, end: int) -> list[Point]:
    return [point for a, b, point in uses if a < end and start < b]


def _outside(uses: list[Use], start: int, end: int) -> list[Use]:
    """Without those that lie inside the range: whoever writes it waited for them."""
    return [use for use in uses if use[0] < start or end < use[1]]


def _pruned(uses: list[Use]) -> list[Use]:
    if len(uses) < MANY:
        return uses
    return [use for use in uses if not use[2].is_done()]
