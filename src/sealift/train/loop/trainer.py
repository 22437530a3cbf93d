"""Joint training over loaded rows, and beside it each owner alone if the rule says so.

The joint model and every baseline start from the same weights (one stream builds them),
see the same batches of an owner's rows and are measured on the same held-out rows, so
that their difference is what training together gained. Baselines never leave. Between
two groups of slices their states are bytes in here, digested when one ends and again
before the next begins (rule H1). No torch: a workplace has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sealift.errors import MalformedError
from sealift.ids import Digest
from sealift.release.agreement import Agreement, Purpose, Resource
from sealift.train.loop.faults import unfit
from sealift.train.loop.states import (
    JointState,
    Settled,
    TensorBytes,
    TrainingState,
    state_digest,
)
from sealift.train.loop.statistics import ALONE, Measured, add_sums
from sealift.train.loop.tasks import (
    Given,
    ModelDone,
    SharedRows,
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
from sealift.travel.settings import TrainingSettings

JOINT = ""


@dataclass(frozen=True, slots=True)
class SliceRows:
    """Rows to work on, wherever they came from.

    Attributes:
        resource: As the agreement binds it.
        epoch: Number of the epoch.
        first_row: Which slice of the resource this is.
        count: How many rows.
        rows: Where they lie, for this process and for a worker.
    """

    resource: Resource
    epoch: int
    first_row: int
    count: int
    rows: SharedRows


class JointTraining:
    """The model of all owners, and one of each owner alone.

    Args:
        workplace: Where the recipe runs.
        settings: Of the loop.
        alone: Owners of whom a baseline is trained; empty if the rule has none.
        values: Most values of the loss that one group of slices gives.
        value_rows: Fewest rows of each of them.
    """

    def __init__(
        self,
        workplace: Workplace,
        settings: TrainingSettings,
        *,
        alone: Iterable[str] = (),
        values: int = 1,
        value_rows: int = 1,
    ) -> None:
        self._workplace = workplace
        self._settings = settings
        self._owners = tuple(alone)
        self._values, self._value_rows = values, value_rows
        self._states: dict[str, TrainingState] = {}
        self._settled: dict[str, Settled] = {}
        self._keep_sums(b"")
        self.rows_trained = 0

    def build(self) -> None:
        """Build the models, unless there are any: they all begin alike.

        Raises:
            JobError: if the recipe does not load or fit.
        """
        if self._states:
            return
        self._verify_sums()
        task = self._task("build", (TaskModel((), begun=False),))
        done = self._do(task, Given(states=(None,), statistics=self._statistics))
        state = done.models[0].state
        assert state is not None, "answers to build have a state"
        self._settle(dict.fromkeys((JOINT, *self._owners), state))

    def work(
        self, cargo: Sequence[SliceRows], purpose: Purpose = "train"
    ) -> dict[str, Measured]:
        """Work on the slices of one group; what was measured, by resource.

        The slices of a group are trained on as one table. The joint loss then belongs
        to all of them.

        Raises:
            MalformedError: if rows do not fit their schema; no step was made.
            JobError: if the recipe failed, or a model changed since the last slice.
        """
        parts = sorted(cargo, key=lambda each: (each.resource.name, each.first_row))
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

    def snapshot(self) -> JointState:
        """Everything to go on from.

        Raises:
            JobError: code ``state-changed``.
        """
        self.verify()
        return JointState(
            self._states.get(JOINT),
            {name: state for name, state in self._states.items() if name != JOINT},
            self.rows_trained,
            self._statistics,
        )

    def restore(self, state: JointState) -> None:
        """Go on from there, whatever was before."""
        self._states, self._settled = {}, {}
        if state.joint is not None:
            self._settle({JOINT: state.joint, **state.alone})
            self._owners = tuple(state.alone)
        self.rows_trained = state.rows_trained
        self._keep_sums(state.statistics)

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

    def _prepare(self, cargo: Sequence[SliceRows]) -> dict[str, Measured]:
        self._verify_sums()
        done = self._do(self._task("prepare", (), cargo), self._given(cargo))
        before = [self._statistics] if self._statistics else []
        try:
            self._keep_sums(add_sums([*before, *done.statistics]))
        except MalformedError:
            raise unfit("other-sums") from None
        return {each.resource.name: Measured(each.count) for each in cargo}

    def _train(self, cargo: Sequence[SliceRows]) -> dict[str, Measured]:
        owners = [
            owner
            for owner in self._owners
            if any(each.resource.owner == owner for each in cargo)
        ]
        names = (JOINT, *owners)
        models = tuple(self._model_for(name, cargo) for name in names)
        task = self._task("train", models, cargo)
        assert task.schema, "one for all"
        done = self._do(task, self._given(cargo, names))
        pairs = zip(names, done.models, strict=True)
        self._settle({name: _state(each) for name, each in pairs})
        rows = sum(each.count for each in cargo)
        self.rows_trained += rows
        found = self._loss(rows, models[0].windows, done.models[0].sums, len(cargo) > 1)
        return {each.resource.name: found for each in cargo}

    def _evaluate(self, cargo: Sequence[SliceRows]) -> dict[str, Measured]:
        names = (JOINT, *self._owners)
        models = (TaskModel(tuple(range(len(cargo))), begun=True),) * len(names)
        task = self._task("heldout", models, cargo)
        done = self._do(task, self._given(cargo, names))
        found = {}
        for place, each in enumerate(cargo):
            metrics: dict[str, float] = {}
            for name, model in zip(names, done.models, strict=True):
                prefix = f"{ALONE}.{name}." if name else ""
                told = plain_names(model.metrics[place])
                metrics |= {prefix + metric: value for metric, value in told.items()}
            found[each.resource.name] = Measured(each.count, metrics)
        return found

    def _model_for(self, name: str, cargo: Sequence[SliceRows]) -> TaskModel:
        parts = [
            place
            for place, each in enumerate(cargo)
            if name in (JOINT, each.resource.owner)
        ]
        rows = sum(cargo[place].count for place in parts)
        windows = plan_windows(
            rows,
            self._settings,
            most=1 if name else self._values,
            least_rows=self._value_rows,
        )
        return TaskModel(tuple(parts), begun=True, windows=windows)

    def _loss(
        self, rows: int, windows: Sequence[int], sums: Sequence[float], shared: bool
    ) -> Measured:
        lengths = window_rows(rows, self._settings, windows)
        means = [each / length for each, length in zip(sums, lengths, strict=True)]
        loss = {"loss": sum(sums) / rows}
        return Measured(rows, loss, tuple(means), lengths, shared=shared)

    def _task(
        self, work: Work, models: tuple[TaskModel, ...], cargo: Sequence[SliceRows] = ()
    ) -> SliceTask:
        return SliceTask(work, self._settings, models, tuple(map(_part, cargo)))

    def _given(self, cargo: Sequence[SliceRows], names: Sequence[str] = ()) -> Given:
        return Given(
            rows=[each.rows for each in cargo],
            states=[self._states[name] for name in names],
            statistics=self._statistics,
        )

    def _do(self, task: SliceTask, given: Given) -> TaskDone:
        return self._workplace.do(task, given, BetweenSteps())

    def _settle(self, states: Mapping[str, TrainingState]) -> None:
        for name, state in states.items():
            self._states[name] = state
            self._settled[name] = Settled(state)


def joint_training(
    agreement: Agreement, workplace: Workplace, settings: TrainingSettings
) -> JointTraining:
    """The models that are trained under an agreement."""
    rule = agreement.output_rule
    return JointTraining(
        workplace,
        settings,
        alone=agreement.data_owners if rule.baseline_alone else (),
        values=rule.values_per_visit,
        value_rows=rule.metric_rows,
    )


class BetweenSteps:
    """Compares the state that steps stopped at with the one that they go on from.

    A worker hands it over twice while no step is under way (``digest_every``).
    """

    def __init__(self) -> None:
        self._settled: Settled | None = None

    def __call__(self, model: int, state: TrainingState) -> None:
        """Take a state, or compare it with the one before.

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


def mean_over_rows(
    parts: Iterable[tuple[int, Mapping[str, float]]],
) -> dict[str, float]:
    """Means over several held-out parts, weighted by the rows that each number covers.

    A mean that is not finite is left out, as each of its parts would be.
    """
    sums: dict[str, float] = {}
    rows_of: dict[str, int] = {}
    for rows, metrics in parts:
        for name, value in metrics.items():
            sums[name] = sums.get(name, 0.0) + value * rows
            rows_of[name] = rows_of.get(name, 0) + rows
    means = {name: value / rows_of[name] for name, value in sums.items()}
    return {name: mean for name, mean in means.items() if math.isfinite(mean)}


def _part(cargo: SliceRows) -> TaskPart:
    resource = cargo.resource
    place = SliceId(cargo.epoch, resource.name, cargo.first_row)
    return TaskPart(place, cargo.count, resource.row_bytes, resource.schema)


def _state(done: ModelDone) -> TrainingState:
    assert done.state is not None, "answers to train have a state"
    return done.state
