"""How far a job has come: what a checkpoint keeps beside the states of its models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sealift.train.checkpoint.file import Checkpoint
from sealift.travel.accelerator.rules import RulesProgress


@dataclass(frozen=True, slots=True)
class MeasuredPart:
    """Numbers measured on one slice of held-out rows, as the output rule lets them out."""

    first_row: int
    rows: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class Measured:
    """The latest held-out numbers.

    Attributes:
        epoch: After which they were measured; -1 before the first.
        parts: By resource.
    """

    epoch: int = -1
    parts: dict[str, tuple[MeasuredPart, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """A job between two groups of its plan.

    Attributes:
        buffer_bytes: Largest cargo of one visit; the plan depends on it.
        rules: What the accelerator has counted.
        measured: Held-out numbers.
        resumed: How often the job went on from a checkpoint.
    """

    buffer_bytes: int
    rules: RulesProgress
    measured: Measured
    resumed: int = 0


class JobCheckpoints(Protocol):
    """Where an accelerator keeps what another one goes on from (``checkpoints``)."""

    def restore(self) -> Checkpoint[JobProgress] | None:
        """The latest checkpoint that counts, or None at a job's beginning."""
        ...

    def note(
        self,
        position: int,
        progress: JobProgress,
        snapshot: Callable[[], Mapping[str, bytes]],
    ) -> None:
        """A group was worked on; seals a checkpoint when it is time for one."""
        ...

    def finish(self) -> None:
        """The result is where it belongs: nobody needs a checkpoint any more."""
        ...


class NoCheckpoints:
    """Keeps nothing: a job that is cut off begins again."""

    def restore(self) -> Checkpoint[JobProgress] | None:
        """None."""
        return None

    def note(
        self,
        position: int,
        progress: JobProgress,
        snapshot: Callable[[], Mapping[str, bytes]],
    ) -> None:
        """Nothing."""

    def finish(self) -> None:
        """Nothing."""
