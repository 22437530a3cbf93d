"""Training over loaded rows, and beside it each owner alone if the rule says so.

The joint model and every baseline start from the same weights (one stream builds them),
see the same batches of an owner's rows and are measured on the same held-out rows, so
that their difference is what training together gained. Baselines never leave. Between
two groups of slices their states are bytes in here, digested when one ends and again
before the next begins (rule H1). No torch: a workplace has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Self

from sealift.errors import MalformedError, UsageError
from sealift.ids import Digest
from sealift.release.agreement import Agreement, Purpose
from sealift.train.loop.faults import unfit
from sealift.train.loop.states import (
    Settled,
    TensorBytes,
    TrainerState,
    TrainingState,
    state_digest,
)
from sealift.train.loop.statistics import ALONE, Measured, add_sums
from sealift.train.loop.tasks import (
    LOSS,
    Given,
    SliceId,
    SliceTask,
    TaskDone,
    TaskModel,
    TaskPart,
    Work,
    Workplace,
    plan_windows,
    window_rows,
)
from sealift.travel.accelerator.setup import LoadedCargo
from sealift.travel.settings import TrainingSettings

JOINT = ""
_JOINT_MODEL = 0  # the first of a training's models

Watch = Callable[[LoadedCargo, Measured], None]
"""Told each window's loss as soon as it is known; ``let_out`` says what may leave."""


def unwatched(cargo: LoadedCargo, found: Measured) -> None:
    """For whoever waits for the end of a slice."""


class Trainer:
    """The model of all owners, and one of each owner alone.

    Args:
        workplace: Where the recipe runs.
        settings: Of the loop.
        alone: Owners of whom a baseline is trained; empty if the rule has none.
        values: Most values of the loss that one group of slices gives.
        value_rows: Fewest rows of each of them.
        watch: Of the joint model.
        number: Of the job's slice.
    """

    def __init__(
        self,
        workplace: Workplace,
        settings: TrainingSettings,
        *,
        alone: Iterable[str] = (),
        values: int = 1,
        value_rows: int = 1,
        watch: Watch = unwatched,
        number: int = 0,
    ) -> None:
        self._number = number
        self._workplace = workplace
        self._settings = settings
        self._owners = tuple(alone)
        self._values, self._value_rows = values, value_rows
        self._watch = watch
        self._states: dict[str, TrainingState] = {}
        self._settled: dict[str, Settled] = {}
        self._keep_sums(b"")
        self.rows_trained = 0

    @classmethod
    def under(
        cls,
        agreement: Agreement,
        workplace: Workplace,
        settings: TrainingSettings,
        *,
        watch: Watch = unwatched,
        number: int | None = None,
    ) -> Self:
        """The models that are trained under an agreement.

        Where a job has several slices there are no baselines: an owner's own would have
        to be shown to other ranks to be measured as the joint model is.
        """
        rule = agreement.output_rule
        alone = rule.baseline_alone and number is None
        return cls(
            workplace,
            settings,
            alone=agreement.data_owners if alone else (),
            number=number or 0,
            values=rule.values_per_visit,
            value_rows=rule.metric_rows,
            watch=watch,
        )

    def build(self) -> None:
        """Build the models, unless there are any: they all begin alike.

        Raises:
            JobError: if the recipe does not load or fit.
        """
        if self._states:
            return
        self._verify_sums()
        done = self._do("build", (), (JOINT,), (TaskModel((), begun=False),))
        state = _state(done.states[0])
        self._settle(dict.fromkeys((JOINT, *self._owners), state))

    def work(
        self, cargo: Sequence[LoadedCargo], purpose: Purpose = "train"
    ) -> dict[str, Measured]:
        """Work on the slices of one group; what was measured, by resource.

        The slices of a group are trained on as one table. The joint loss then belongs
        to all of them.

        Raises:
            MalformedError: if rows do not fit their schema; no step was made.
            UsageError: code ``mixed-schemas``, if they have several.
            JobError: if the recipe failed, or a model changed since the last slice.
        """
        parts = sorted(
            cargo, key=lambda each: (each.resource.name, each.stop.first_row)
        )
        if purpose == "prepare":
            return self._prepare(parts)
        self.build()
        self.verify()
        work = self._train if purpose == "train" else self._evaluate
        return work(parts)

    def verify(self) -> None:
        """Demand that no model changed since the last slice; before a model leaves.

        Raises:
            JobError: code ``state-changed``.
        """
        self._verify_sums()
        for name, state in self._states.items():
            self._settled[name].verify(state)

    def snapshot(self) -> TrainerState:
        """Everything to go on from.

        Raises:
            JobError: code ``state-changed``.
        """
        self.verify()
        return TrainerState(
            self._states.get(JOINT),
            {name: state for name, state in self._states.items() if name != JOINT},
            self.rows_trained,
            self._statistics,
        )

    def restore(self, state: TrainerState) -> None:
        """Go on from there, whatever was before."""
        self._states, self._settled = {}, {}
        if state.joint is not None:
            self._settle({JOINT: state.joint, **state.alone})
            self._owners = tuple(state.alone)
        self.rows_trained = state.rows_trained
        self._keep_sums(state.statistics)

    @property
    def joint(self) -> TrainingState:
        """The joint model and its optimizer; verified by who uses it."""
        self.build()
        return self._states[JOINT]

    def join(self, state: TrainingState) -> None:
        """Go on from what several slices came to."""
        self._settle({JOINT: state})

    def take_sums(self, blob: bytes) -> None:
        """Go on with the sums of all slices."""
        self._keep_sums(blob)

    def digest(self) -> Digest:
        """Digest of the joint model: names, dtypes, shapes, bytes."""
        return state_digest(self.state())

    def state(self) -> dict[str, TensorBytes]:
        """The joint model's tensors."""
        self.build()
        return self._states[JOINT].model()

    @property
    def steps(self) -> int:
        """Optimizer steps of the joint model."""
        return self._states[JOINT].step if self._states else 0

    @property
    def statistics(self) -> bytes:
        """Blob of the sums of ``prepare`` so far; empty without.

        Raises:
            JobError: code ``state-changed``.
        """
        self._verify_sums()
        return self._statistics

    def _keep_sums(self, blob: bytes) -> None:
        self._statistics = blob
        self._settled_sums = Settled(TrainingState(0, blob, b""))

    def _verify_sums(self) -> None:
        self._settled_sums.verify(TrainingState(0, self._statistics, b""))

    def _prepare(self, cargo: Sequence[LoadedCargo]) -> dict[str, Measured]:
        self._verify_sums()
        done = self._do("prepare", cargo)
        before = [self._statistics] if self._statistics else []
        try:
            self._keep_sums(add_sums([*before, *done.statistics]))
        except MalformedError:
            raise unfit("other-sums") from None
        return {each.resource.name: Measured(each.stop.rows) for each in cargo}

    def _train(self, cargo: Sequence[LoadedCargo]) -> dict[str, Measured]:
        if any(e.resource.schema != cargo[0].resource.schema for e in cargo):
            raise UsageError(
                "one batch cannot be drawn across tables with different schemas",
                code="mixed-schemas",
            )
        here = {each.resource.owner for each in cargo}
        names = (JOINT, *(owner for owner in self._owners if owner in here))
        models = tuple(self._model_for(name, cargo) for name in names)
        rows = sum(each.stop.rows for each in cargo)
        lengths = window_rows(rows, self._settings, models[_JOINT_MODEL].windows)

        def watch(model: int, place: int, values: Mapping[str, float]) -> None:
            if model == _JOINT_MODEL:
                window = _loss([values[LOSS]], [lengths[place]], cargo)
                self._watch(cargo[0], window)

        told = Told(watch)
        done = self._do("train", cargo, names, models, told)
        pairs = zip(names, done.states, strict=True)
        self._settle({name: _state(each) for name, each in pairs})
        self.rows_trained += rows
        sums = [each[LOSS] for each in told.of(_JOINT_MODEL)]
        found = _loss(sums, lengths, cargo)
        return {each.resource.name: found for each in cargo}

    def _evaluate(self, cargo: Sequence[LoadedCargo]) -> dict[str, Measured]:
        names = (JOINT, *self._owners)
        models = (TaskModel(tuple(range(len(cargo))), begun=True),) * len(names)
        told = Told()
        self._do("heldout", cargo, names, models, told)
        found = {}
        for place, each in enumerate(cargo):
            metrics: dict[str, float] = {}
            for model, name in enumerate(names):
                prefix = f"{ALONE}.{name}." if name else ""
                own = plain_names(told.of(model)[place])
                metrics |= {prefix + metric: value for metric, value in own.items()}
            found[each.resource.name] = Measured(each.stop.rows, metrics)
        return found

    def _model_for(self, name: str, cargo: Sequence[LoadedCargo]) -> TaskModel:
        parts = [
            place
            for place, each in enumerate(cargo)
            if name in (JOINT, each.resource.owner)
        ]
        windows = plan_windows(
            sum(cargo[place].stop.rows for place in parts),
            self._settings,
            most=1 if name else self._values,
            least_rows=self._value_rows,
        )
        return TaskModel(tuple(parts), begun=True, windows=windows)

    def _do(
        self,
        work: Work,
        cargo: Sequence[LoadedCargo],
        names: Sequence[str] = (),
        models: tuple[TaskModel, ...] = (),
        told: Told | None = None,
    ) -> TaskDone:
        parts = (
            TaskPart(
                SliceId(each.stop.epoch, each.resource.name, each.stop.first_row),
                each.stop.rows,
                each.resource.row_bytes,
                each.resource.schema,
            )
            for each in cargo
        )
        given = Given(
            rows=[each.memory for each in cargo],
            states=[self._states.get(name) for name in names],
            statistics=self._statistics,
        )
        task = SliceTask(work, self._settings, models, tuple(parts), self._number)
        return self._workplace.do(task, given, told or Told())

    def _settle(self, states: Mapping[str, TrainingState]) -> None:
        for name, state in states.items():
            self._states[name] = state
            self._settled[name] = Settled(state)


class Told:
    """What a task told so far, whatever becomes of it.

    Args:
        watch: Told the same.
    """

    def __init__(
        self, watch: Callable[[int, int, Mapping[str, float]], None] | None = None
    ) -> None:
        self._settled: Settled | None = None
        self._numbers: dict[int, list[Mapping[str, float]]] = {}
        self._watch = watch

    def measured(self, model: int, place: int, values: Mapping[str, float]) -> None:
        """Keep numbers; they come in order."""
        self._numbers.setdefault(model, []).append(values)
        if self._watch is not None:
            self._watch(model, place, values)

    def of(self, model: int) -> Sequence[Mapping[str, float]]:
        """The numbers of one model."""
        return self._numbers[model]

    def hand_over(self, model: int, state: TrainingState) -> None:
        """Take a state where steps stopped, or compare it where they go on.

        Raises:
            JobError: code ``state-changed``.
        """
        if self._settled is None:
            self._settled = Settled(state)
            return
        self._settled.verify(state)
        self._settled = None


def plain_names(told: Mapping[str, float]) -> dict[str, float]:
    """Metrics of a recipe's own; a dotted name would pass for a baseline's.

    What stands between the dots is the recipe's choice then, and leaves as text: of a
    name that leaves, every part is ours or the agreement's.
    """
    return {name: value for name, value in told.items() if "." not in name}


def _loss(
    sums: Sequence[float], lengths: Sequence[int], cargo: Sequence[LoadedCargo]
) -> Measured:
    """The mean loss of windows of so many rows each, and each window's own."""
    rows, means = sum(lengths), [s / n for s, n in zip(sums, lengths, strict=True)]
    return Measured(
        rows,
        {LOSS: sum(sums) / rows},
        tuple(means),
        tuple(lengths),
        shared=len(cargo) > 1,
    )


def _state(found: TrainingState | None) -> TrainingState:
    assert found is not None, "whoever builds or trains has a state in the end"
    return found
