"""What a recipe's process is asked to do, and what it answers. No torch here.

A task is one group of slices: build, sums, training or measuring. Rows and states do
not stand in it; they come as memory files beside it. See ``spec/recipe.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from sealift.channel.device.device import DeviceTensor, SummingEngine
from sealift.errors import UsageError
from sealift.ids import Buffer
from sealift.numeric.residues import F32
from sealift.outsource.terms import Backward, Forward
from sealift.outsource.trace import Phase, StepKind
from sealift.release.agreement.training import PrivateSteps
from sealift.train.loop.buckets import Bucket, Trained
from sealift.train.loop.measures import LOSS as LOSS
from sealift.train.loop.states import TrainingState
from sealift.travel.settings import TrainingSettings

BUCKET_BYTES: Final = 25 << 20
Work = Literal["build", "prepare", "train", "heldout", "rehearse"]


@dataclass(frozen=True, slots=True)
class SliceId:
    """Which rows of whose resource these are, in which epoch."""

    epoch: int
    resource: str
    first_row: int


@dataclass(frozen=True, slots=True)
class TaskPart:
    """Rows of one resource.

    Attributes:
        slice: Which ones.
        rows: How many.
        row_bytes: Bytes of one.
        schema: The table's schema in its plain form (spec/table.md).
    """

    slice: SliceId
    rows: int
    row_bytes: int
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TaskModel:
    """A model that works on some of the parts.

    Attributes:
        parts: Places in the task's parts.
        begun: Whether there is a state to go on from.
        windows: Steps of each window whose mean loss is told; their sum is all steps.
    """

    parts: tuple[int, ...]
    begun: bool
    windows: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Together:
    """Steps that all slices of a job make together: their gradients are added up.

    Attributes:
        rows: Of each slice in this group, in their order; they are no secret.
        bucket_bytes: Gradients that are added up in one go.
        units: Each brings whole numbers, which are added up with noise and not weighed.
    """

    rows: tuple[int, ...]
    bucket_bytes: int = BUCKET_BYTES
    units: bool = False

    def steps(self, batch_rows: int) -> int:
        """How many: as many as the slice with most rows makes."""
        return -(-max(self.rows) // batch_rows)

    def share(self, number: int, step: int, batch_rows: int) -> float:
        """The part of a step's rows that a slice has; 0 once its own are used up.

        1 of whole numbers.
        """
        if self.units:
            return 1.0
        left = (max(0, rows - step * batch_rows) for rows in self.rows)
        batches = [min(batch_rows, rows) for rows in left]
        return batches[number] / sum(batches)


@dataclass(frozen=True, slots=True)
class StepForm:
    """A kind of steps that a job will make, rehearsed on synthetic rows.

    Attributes:
        schema: Of the rows, in its plain form.
    """

    phase: Phase
    rows: int
    schema: dict[str, Any]

    @property
    def kind(self) -> StepKind:
        """What its trace goes by."""
        return StepKind(self.phase, self.rows)


@dataclass(frozen=True, slots=True)
class SliceTask:
    """One group of slices to work on.

    Attributes:
        work: What to do; ``build`` and ``rehearse`` have no parts.
        models: What is worked on; none to ``prepare``.
        parts: Whose rows.
        slice: Number of the job's slice, of those that are trained side by side.
        together: Makes training go step by step with all slices. The task then has the
            model of this slice alone, and its parent adds up; or a model of each
            slice, which differ in what no gradient belongs to, and adds up itself.
        outsourced: Whether the products of linear layers are asked for.
        forms: Of steps, to ``rehearse``.
        epoch: Of the rows, for a slice that has none left.
        until: Optimizer steps of the slice that has made most when the round ends, if the
            task is the round's last; 0 else.
        private: Makes the steps of a training private: it then tells no loss.
    """

    work: Work
    settings: TrainingSettings
    models: tuple[TaskModel, ...] = ()
    parts: tuple[TaskPart, ...] = ()
    slice: int = 0
    together: Together | None = None
    outsourced: bool = False
    forms: tuple[StepForm, ...] = ()
    epoch: int = 0
    until: int = 0
    private: PrivateSteps | None = None

    def __post_init__(self) -> None:
        shared = self.private is not None and self.private.honest_ranks > 0
        if self.private and (bool(self.together) != shared or self.outsourced):
            raise UsageError("steps that other processes take part in are not private")


class SharedRows(Protocol):
    """Rows that another process can map to read; ``data.schedule.memory`` has them."""

    @property
    def view(self) -> memoryview:
        """The rows."""
        ...

    @property
    def descriptor(self) -> int:
        """What the other process maps."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInputs:
    """What a task works on.

    Attributes:
        rows: Of each part.
        states: Of each model; None for one that begins.
        statistics: Blob of the sums of ``prepare``; empty without.
        loaded: Called once a worker that trains has copied its states.
        device: Where gradients are to lie that this process adds up there; in the
            worker, none.
    """

    rows: Sequence[SharedRows] = ()
    states: Sequence[TrainingState | None] = ()
    statistics: bytes = b""
    loaded: Callable[[], None] = lambda: None
    device: SummingEngine | None = None


@dataclass(frozen=True, slots=True)
class DeviceScrub:
    """What a worker says of its GPU's memory, overwritten before its process ends.

    Attributes:
        size_bytes: All that torch's allocator had of it.
        nonzero_bytes: Of them, what was not zero when it was read back, or fewer; 0 if all was.
    """

    size_bytes: int
    nonzero_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDone:
    """A finished task; its numbers were told on the way.

    Attributes:
        states: Of each model, after training or building; None if it was measured.
        statistics: Of ``prepare``: blob of the sums over the rows of each part.
    """

    states: tuple[TrainingState | None, ...] = ()
    statistics: tuple[bytes, ...] = ()


ONE_ROW: Final = "a last batch of one row"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """How a trial on synthetic rows went.

    Attributes:
        parameters: Numbers that are trained.
        steps: How many were made; 0 of a recipe that only sums.
        losses: Of the first and of the last step.
        step_s: Median seconds of a step, without the first.
        metrics: What ``evaluate`` says of the synthetic rows.
        sums: What ``prepare`` sums: how many numbers of which kind, by name.
    """

    parameters: int = 0
    steps: int = 0
    losses: tuple[float, ...] = ()
    step_s: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    sums: dict[str, str] = field(default_factory=dict)


class StepProducts(Protocol):
    """What makes the products of a task's steps, one step after the other."""

    def begin(self) -> None:
        """The task's next step begins, or the last one again; products follow."""
        ...

    def forward(self, exchange: Forward, x: F32, w: F32) -> F32:
        """``y`` of a layer's call; see ``outsource.Multiplier``."""
        ...

    def backward(self, exchange: Backward, dy: F32) -> list[F32]:
        """The gradients of a call that it wants."""
        ...

    def settle(self) -> bool:
        """The verdict of a step's products, before its weights or numbers count.

        Returns:
            Whether it counts; else it is to be made again.

        Raises:
            SealiftError: the job is over.
        """
        ...


class TaskParent(Protocol):
    """What a task tells on its way."""

    def hand_over(self, model: int, state: TrainingState) -> None:
        """Take a model's state within its slice, twice each time.

        Once when its steps stopped, and again before they go on (``digest_every``).
        """
        ...

    def measured(self, model: int, place: int, values: Mapping[str, float]) -> None:
        """Take numbers as soon as there are any.

        Args:
            model: Place in the task's models.
            place: Of a training: number of the window; else of the model's part.
            values: ``LOSS`` alone, summed over the window's rows; else means by name.
        """
        ...

    def begin_sums(self, trained: Trained) -> None:
        """Take what the task trains in steps that all slices make together; once."""
        ...

    def add_up(self, bucket: Bucket, gradient: Buffer | DeviceTensor) -> Buffer:
        """Add up what all slices bring; bucket after bucket, step after step.

        With the last bucket of a step every slice has said that it goes on (rule M1).

        Args:
            bucket: The next one.
            gradient: This slice's mean over its rows of the step; zeros without any.

        Returns:
            The mean over all rows of the step, as a place that may be ``gradient``'s;
            nothing, if it was put where a gradient on a device lay.

        Raises:
            SealiftError: on every slice, if one of them does not go on.
        """
        ...

    @property
    def products(self) -> StepProducts | None:
        """Of a task that outsources them."""
        ...


class Workplace(Protocol):
    """Where tasks are done: in a sandboxed process, or in this one."""

    @property
    def sandbox(self) -> str:
        """What keeps the recipe in, in one word."""
        ...

    @property
    def on_gpu(self) -> bool:
        """Whether tasks compute on a GPU."""
        ...

    def stand_by(self, settings: TrainingSettings, forms: Sequence[StepForm]) -> None:
        """From now on, have each task's process made ready before there is the task.

        The recipe runs in it, on synthetic rows; so the sandbox has to be good enough.

        Args:
            settings: Of training.
            forms: Of steps that are expected first.
        """
        ...

    def do(self, task: SliceTask, given: TaskInputs, parent: TaskParent) -> TaskDone:
        """Do one task.

        Args:
            task: What to do.
            given: What to do it on.
            parent: Told what there is to tell before the end.

        Raises:
            JobError: if the recipe fails.
            UnavailableError: code ``no-memory``.
        """
        ...

    def demand_time(self) -> None:
        """Demand that the task under way may go on: long work here asks between pieces.

        Raises:
            PeerError: if it was cut, or its time is over.
        """
        ...


def plan_windows(
    rows: int, settings: TrainingSettings, *, most: int, least_rows: int
) -> tuple[int, ...]:
    """Cut a slice's steps into windows of about the same length.

    They end where whole multiples of ``least_rows`` do: how many rows a step has is the
    orchestrator's to say, and by windows of 16 and of 17 it had the loss of one (rule N5).

    Args:
        rows: Of the slice.
        settings: Rows of a step.
        most: Windows at most.
        least_rows: Rows of each window at least, unless there is but one.
    """
    if not rows:
        return ()
    rows = settings.trained_rows(rows)
    steps = -(-rows // settings.batch_rows)
    unit = math.lcm(least_rows, settings.batch_rows)
    count = max(1, min(most, rows // unit))
    short, longer = divmod(rows // unit, count)
    in_steps = unit // settings.batch_rows
    windows = [(short + (place < longer)) * in_steps for place in range(count)]
    windows[-1] += steps - sum(windows)  # the rest, and a step that may be short
    return tuple(windows)


def window_rows(
    rows: int, settings: TrainingSettings, windows: Sequence[int]
) -> tuple[int, ...]:
    """How many rows each window covers."""
    found, left = [], settings.trained_rows(rows)
    for steps in windows:
        found.append(min(left, steps * settings.batch_rows))
        left -= found[-1]
    return tuple(found)
