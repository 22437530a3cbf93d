"""Numbers measured on held-out rows, of the latest epoch alone: an earlier model's say nothing."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from sealift.data.schedule.visits import Stop
from sealift.train.loop.measures import joint_numbers


@dataclass(frozen=True, slots=True)
class HeldOutPart:
    """Numbers measured on one slice of held-out rows, as the output rule lets them out."""

    first_row: int
    rows: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The latest held-out numbers, for a checkpoint.

    Attributes:
        epoch: After which they were measured; -1 before the first.
        parts: By resource.
    """

    epoch: int = -1
    parts: dict[str, tuple[HeldOutPart, ...]] = field(default_factory=dict)


class HeldOutNumbers:
    """Collects them, from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoch = -1
        self._slices: dict[str, dict[int, tuple[int, Mapping[str, float]]]] = {}

    def keep(self, stop: Stop, metrics: Mapping[str, float]) -> None:
        """Remember what was measured at a stop."""
        with self._lock:
            if stop.epoch != self._epoch:
                self._epoch, self._slices = stop.epoch, {}
            slices = self._slices.setdefault(stop.resource, {})
            slices[stop.first_row] = (stop.rows, metrics)

    def measured(self) -> HeldOut:
        """All of them."""
        with self._lock:
            parts = {
                resource: tuple(
                    HeldOutPart(first, rows, dict(metrics))
                    for first, (rows, metrics) in sorted(slices.items())
                )
                for resource, slices in self._slices.items()
            }
            return HeldOut(self._epoch, parts)

    def restore(self, measured: HeldOut) -> None:
        """Go on from a checkpoint's."""
        with self._lock:
            self._epoch = measured.epoch
            self._slices = {
                resource: {each.first_row: (each.rows, each.metrics) for each in parts}
                for resource, parts in measured.parts.items()
            }

    def means(self, digits: int) -> dict[str, float]:
        """Over all rows, rounded."""
        found = self._slices.values()
        parts = [part for slices in found for part in slices.values()]
        return joint_numbers(parts, digits)
