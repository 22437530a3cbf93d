"""Events: frozen records of what happened, handed to a sink that the caller passes in.

Any room may emit them; none decides where they go. An event never carries a secret,
a sample or a path of somebody else's machine: it may end up on a screen or in a log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

_METRIC: Final = "metric."
Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    Attributes:
        kind: Dotted name, room first: ``visit.phase``, ``release.refused``.
        fields: Plain values, units in their names.
    """

    kind: str
    fields: Mapping[str, Value] = field(default_factory=dict)


Sink = Callable[[Event], None]


def metric_fields(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics as fields of an event, beside whatever else it says: ``metric.loss``."""
    return {f"{_METRIC}{name}": value for name, value in metrics.items()}


def metrics_of(fields: Mapping[str, Any]) -> dict[str, float]:
    """The metrics among an event's fields, by their own names."""
    return {
        name.removeprefix(_METRIC): float(value)
        for name, value in fields.items()
        if name.startswith(_METRIC)
    }


def discard(event: Event) -> None:
    """The sink that keeps nothing."""


def unfailing(sink: Sink) -> Sink:
    """For threads that others rely on: what cannot be written is lost, and ends nothing."""

    def tell(event: Event) -> None:
        with suppress(OSError, ValueError):  # ValueError: a closed file
            sink(event)

    return tell


def emit(sink: Sink, kind: str, **fields: Value) -> None:
    """Hand one event to ``sink``."""
    sink(Event(kind, fields))


def wall_clock() -> float:
    """Seconds since 1970: for certificates, validity, and what people read."""
    return time.time()  # noqa: TID251 - the one place where a command takes its time


def say_local_time(at_s: int) -> str:
    """Seconds since 1970 as a person here reads a time: ``2027-01-16 09:00:00 CET``."""
    here = datetime.fromtimestamp(at_s, UTC).astimezone()
    return here.strftime("%Y-%m-%d %H:%M:%S %Z")
