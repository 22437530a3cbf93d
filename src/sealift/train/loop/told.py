"""What a task told so far, whatever becomes of it; and what of its numbers is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sealift.channel.device.device import DeviceTensor
from sealift.errors import JobError, require_value
from sealift.ids import Buffer
from sealift.train.loop.buckets import Bucket, Trained
from sealift.train.loop.states import Settled, TrainingState
from sealift.train.loop.statistics import Measured
from sealift.train.loop.stepsums import StepSums
from sealift.train.loop.tasks import LOSS, StepProducts, window_rows
from sealift.travel.accelerator.setup import LoadedCargo
from sealift.travel.settings import TrainingSettings

Watch = Callable[[LoadedCargo, Measured], None]
"""Told each window's loss as soon as it is known; ``let_out`` says what may leave."""


def unwatched(cargo: LoadedCargo, found: Measured) -> None:
    """For whoever waits for the end of a slice."""


class TaskObserver:
    """The parent of a task, as it tells.

    Args:
        watches: Told the numbers of a model by the number of their place.
        sums: Of a task whose gradients a group adds up.
        products: Makes them, for a task that outsources them.

    Attributes:
        products: As given.
        summed: Names of the tensors that gradients were added up for.
    """

    def __init__(
        self,
        watches: Mapping[int, Callable[[int, Mapping[str, float]], None]] | None = None,
        sums: StepSums | None = None,
        products: StepProducts | None = None,
    ) -> None:
        self._settled: Settled | None = None
        self._numbers: dict[int, list[Mapping[str, float]]] = {}
        self._watches = watches or {}
        self._sums = sums
        self.products = products
        self.summed: frozenset[str] = frozenset()

    def measured(self, model: int, place: int, values: Mapping[str, float]) -> None:
        """Keep numbers; they come in order."""
        self._numbers.setdefault(model, []).append(values)
        if model in self._watches:
            self._watches[model](place, values)

    def of(self, model: int) -> Sequence[Mapping[str, float]]:
        """The numbers of one model."""
        return self._numbers.get(model, ())

    def hand_over(self, model: int, state: TrainingState) -> None:
        """Take a state where steps stopped, or compare it where they go on.

        Raises:
            JobError: code ``state-changed``.
        """
        if self._settled is None:
            self._settled = Settled(state)
            if self._sums is not None:
                self._sums.note(state)
            return
        self._settled.verify(state)
        self._settled = None

    def begin_sums(self, trained: Trained) -> None:
        """See ``StepSums.begin``; where a task adds up itself there is nothing to do."""
        self.summed = frozenset((*trained.names, *trained.tied))
        if self._sums is not None:
            self._sums.begin(trained)

    def add_up(self, bucket: Bucket, gradient: Buffer | DeviceTensor) -> Buffer:
        """See ``StepSums.add_up``."""
        return require_value(self._sums).add_up(bucket, gradient)


def plain_names(told: Mapping[str, float]) -> Mapping[str, float]:
    """Metrics of a recipe's own; a dotted name would pass for a baseline's.

    What stands between the dots would be the recipe's choice, and leave as text: of a name
    that leaves, every part is ours or the agreement's.

    Raises:
        JobError: code ``measure-not-agreed``.
    """
    if any("." in name for name in told):
        raise JobError(
            "evaluate() returned a measure with a dot in its name",
            why="no agreement lists such a name",
            code="measure-not-agreed",
        )
    return told


class Losses:
    """The losses of one training, window by window; none where rows were left out of it.

    Which rows ``drop_last`` leaves out follows from the size of a batch and from the seed,
    which a job chooses: from two such sums the loss of one row is a difference (rule N5).

    Args:
        cargo: Rows of the group; none where other slices alone have any left.
        windows: Steps of each window.
        settings: Of the loop.
        watch: Told each window.
    """

    def __init__(
        self,
        cargo: Sequence[LoadedCargo],
        windows: Sequence[int],
        settings: TrainingSettings,
        watch: Watch,
    ) -> None:
        rows = sum(each.stop.rows for each in cargo)
        self.rows = settings.trained_rows(rows)
        self._whole = self.rows == rows
        self._cargo = cargo
        self._lengths = window_rows(rows, settings, windows)
        self._watch = watch

    def watch(self, place: int, values: Mapping[str, float]) -> None:
        """Tell the loss of one window."""
        if self._whole:
            length = self._lengths[place : place + 1]
            self._watch(self._cargo[0], self._mean([values[LOSS]], length))

    def found(self, told: Sequence[Mapping[str, float]]) -> dict[str, Measured]:
        """The loss of the whole training, by resource; it belongs to all of them.

        Private steps tell none.
        """
        if not self._cargo:
            return {}
        if not told or not self._whole:
            return {e.resource.name: Measured(self.rows) for e in self._cargo}
        found = self._mean([each[LOSS] for each in told], self._lengths)
        return {each.resource.name: found for each in self._cargo}

    def _mean(self, sums: Sequence[float], lengths: Sequence[int]) -> Measured:
        """The mean of windows of so many rows each, and each window's own."""
        rows, means = sum(lengths), [s / n for s, n in zip(sums, lengths, strict=True)]
        return Measured(
            rows,
            {LOSS: sum(sums) / rows},
            tuple(means),
            tuple(lengths),
            shared=len(self._cargo) > 1,
        )
