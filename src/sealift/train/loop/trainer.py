"""Training over loaded rows, and beside it each owner alone if the rule says so.

The joint model and every baseline start from the same weights (one stream builds them),
see the same batches of an owner's rows and are measured on the same held-out rows, so
that their difference is what training together gained. Baselines never leave. Between
two groups of slices their states are bytes in here, digested when one ends and again
before the next begins (rule H1). No torch: a workplace has it.

Which of the states that were measured is handed out, and when training ends before its time.

Both follow from one held-out number, as the output rule lets it out: every slice knows it, and
so decides alike. The state to hand out goes on with a checkpoint.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Self

from sealift.channel.device.device import SummingEngine
from sealift.data.schedule.visits import VisitBatch
from sealift.data.schema.alike import demand_alike
from sealift.errors import JobError, MalformedError, require_value
from sealift.ids import Digest
from sealift.release.agreement import Agreement, Purpose
from sealift.release.agreement.training import PrivateSteps
from sealift.train.loop.faults import unfit
from sealift.train.loop.held import Content, part_of, read_of
from sealift.train.loop.privacy import demand_private, not_private, require_private
from sealift.train.loop.products import Outsourcing, step_forms
from sealift.train.loop.states import (
    MODEL,
    Settled,
    TensorBytes,
    TrainerState,
    TrainingState,
    chain_tensors,
    give_away,
    join_state,
    parse_tensors,
    split_state,
    state_digest,
)
from sealift.train.loop.statistics import ALONE, Measured, add_sums
from sealift.train.loop.stepsums import ReduceGroup, StepSums
from sealift.train.loop.tasks import (
    SliceId,
    SliceTask,
    TaskDone,
    TaskInputs,
    TaskModel,
    TaskPart,
    Together,
    Work,
    Workplace,
    plan_windows,
)
from sealift.train.loop.told import Losses, TaskObserver, Watch, plain_names, unwatched
from sealift.travel.accelerator.setup import LoadedCargo
from sealift.travel.settings import TrainingSettings

JOINT = ""
# Of a window of a job at least: which rows are in it follows from a seed, and of so many
# nobody finds two seeds whose windows differ by one row (128 rows: 2**124 windows).
WINDOW_ROWS: Final = 64
_JOINT_MODEL = 0  # the first of a training's models


_HEAD: Final = struct.Struct(">dQQ")  # the best value, its epoch, measures since
# What is best where it is lowest: an error, whatever label stands before it; and what asks for it.
_LOWEST: Final = re.compile(r"-.*|(.*_)?(loss|rmse|mae|auc_error|calibration_error)")


class BestState:
    """The best state so far.

    Args:
        settings: Of training; without ``measure`` nothing is chosen.

    Attributes:
        epoch: After which it was measured; -1 before the first.
    """

    def __init__(self, settings: TrainingSettings) -> None:
        self._settings = settings
        self._forget()

    def _forget(self) -> None:
        self._value, self._since, self.epoch = 0.0, 0, -1
        self._keep(None)

    def _keep(self, state: TrainingState | None) -> None:
        self._state = state
        self._settled = None if state is None else Settled(state)

    @property
    def state(self) -> TrainingState | None:
        """To be handed out, as it was kept; None while the last one is.

        Raises:
            JobError: code ``state-changed``.
        """
        if self._state is not None and self._settled is not None:
            self._settled.verify(self._state)
        return self._state

    def take(
        self, epoch: int, measured: Mapping[str, float], state: TrainingState
    ) -> bool:
        """Look at an evaluation; whether it is the best so far.

        Args:
            epoch: That ended before.
            measured: Means over everybody's held-out rows.
            state: That was measured.

        Raises:
            JobError: ``measure-missing``.
        """
        named = self._settings.measure
        name = named.removeprefix("-")
        if name not in measured:
            raise JobError(
                f"no held-out rows were measured by {name}",
                why=f"there are: {', '.join(sorted(measured)) or 'none'}",
                code="measure-missing",
            )
        value = -measured[name] if _LOWEST.fullmatch(named) else measured[name]
        if self.epoch >= 0 and value <= self._value:
            self._since += 1
            return False
        self._value, self._since, self.epoch = value, 0, epoch
        if self._settings.keep == "best":  # what trains on is not handed out
            own = parse_tensors(state.tensors)
            model = {n: each for n, each in own.items() if n.startswith(MODEL)}
            self._keep(TrainingState(state.step, chain_tensors(model), b""))
        return True

    @property
    def is_over(self) -> bool:
        """Whether training ends: as many evaluations in turn brought nothing better."""
        return 0 < self._settings.stop_after <= self._since

    def to_bytes(self) -> Content:
        """For a checkpoint; nothing before the first evaluation.

        Raises:
            JobError: code ``state-changed``.
        """
        if self.epoch < 0:
            return b""
        head = _HEAD.pack(self._value, self.epoch, self._since)
        if (state := self.state) is None:
            return head
        joined = join_state(state)
        return head + read_of(joined, 0, len(joined))

    def restore(self, raw: Content) -> None:
        """Go on from what ``to_bytes`` made, whatever was before.

        Raises:
            MalformedError: ``bad-tensors``, if it is something else.
        """
        self._forget()
        if not len(raw):
            return
        if len(raw) < _HEAD.size:
            raise MalformedError("the bytes are no choice", code="bad-tensors")
        self._value, self.epoch, self._since = _HEAD.unpack(read_of(raw, 0, _HEAD.size))
        rest = part_of(raw, _HEAD.size, len(raw) - _HEAD.size)
        self._keep(split_state(rest) if len(rest) else None)


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
        moves: Whether a state is moved to who trains on, and gone if that fails.
        products: Of a job that outsources them.
        private: Makes its steps private. No number over rows is then told, as none has
            noise: no loss, no measure, no sum.

    Attributes:
        products: As given.
        settings: As given.
        rows_trained: Rows trained on so far, with repetition.
        summed: Names of tensors that the last training added up gradients for.
        best: Which state is handed out, if a measure chooses.
        epoch: That is trained in.
        until: Steps at which the round ends, if the next training is its last; 0 else.
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
        moves: bool = False,
        products: Outsourcing | None = None,
        private: PrivateSteps | None = None,
    ) -> None:
        if private is not None:
            demand_private(private, settings, outsourced=products is not None)
        self._private = private
        self.number, self.products = number, products
        self._moves = moves
        self._workplace = workplace
        self.settings = settings
        self._owners = tuple(alone)
        self._values, self._value_rows = values, value_rows
        self._watch = watch
        self._states: dict[str, TrainingState] = {}
        self._settled: dict[str, Settled] = {}
        self._keep_sums(b"")
        self.rows_trained = 0
        self.summed: frozenset[str] = frozenset()
        self.epoch = self.until = 0
        self.best = BestState(settings)

    @classmethod
    def under(
        cls,
        agreement: Agreement,
        workplace: Workplace,
        settings: TrainingSettings,
        *,
        watch: Watch = unwatched,
        number: int | None = None,
        moves: bool = False,
        products: Outsourcing | None = None,
    ) -> Self:
        """The models that are trained under an agreement.

        Where a job has several slices there are no baselines, but for a rank that trains
        on its own owner's rows at home and measures on them: no other rank is shown that
        model, so it is measured on these rows alone.
        """
        rule, alone = agreement.output_rule, agreement.data_owners
        private = agreement.training_rule.privacy
        require_private(agreement, settings)
        if number is not None:
            own = alone[number : number + 1] if moves and agreement.rows_at_home else ()
            measured = {e.owner for e in agreement.resources if e.part == "heldout"}
            alone = tuple(each for each in own if each in measured)
        return cls(
            workplace,
            settings,
            alone=alone if rule.baseline_alone and private is None else (),
            number=number or 0,
            moves=moves,
            values=rule.values_per_visit,
            value_rows=max(rule.metric_rows, WINDOW_ROWS),
            watch=watch,
            products=products,
            private=private,
        )

    def rehearse(self, plan: Sequence[VisitBatch], agreement: Agreement) -> None:
        """Learn the traces of all steps that a plan makes; see ``Outsourcing``."""
        if self.products is not None:
            own = bool(self._owners)
            forms = step_forms(plan, agreement, self.settings, alone=own)
            self.products.rehearse(forms, self._workplace, self.settings)

    def build(self) -> None:
        """Build the models, unless there are any: they all begin alike.

        Raises:
            JobError: if the recipe does not load or fit.
        """
        if self._states:
            return
        self._verify_sums()
        built = self._do("build", (), (None,), (TaskModel((), begun=False),)).states[0]
        self._settle(dict.fromkeys((JOINT, *self._owners), _state(built)))

    def work(
        self,
        cargo: Sequence[LoadedCargo],
        purpose: Purpose = "train",
        sums: StepSums | None = None,
    ) -> dict[str, Measured]:
        """Work on the slices of one group; what was measured, by resource.

        The slices of a group are trained on as one table. The joint loss then belongs
        to all of them.

        Args:
            cargo: Rows; none where other slices alone have any left.
            purpose: What is done with them.
            sums: Of a training whose gradients a group adds up in every step.

        Raises:
            MalformedError: if rows do not fit their schema; no step was made.
            MalformedError: code ``mixed-schemas``, if they have several.
            JobError: if the recipe failed, or a model changed since the last slice.
        """
        parts = in_order(cargo)
        if purpose == "prepare":
            return self._prepare(parts)
        self.build()
        self.verify()
        if purpose == "train":
            return self._train(parts, sums)
        return self._evaluate(parts)

    def sums(
        self,
        group: ReduceGroup,
        together: Together,
        device: SummingEngine | None = None,
    ) -> StepSums:
        """What this slice's gradients of the next task are added up with, and where."""
        return StepSums(
            group,
            self.number,
            together,
            batch_rows=self.settings.batch_rows,
            state=self.joint,
            device=device,
        )

    def model_for(
        self, cargo: Sequence[LoadedCargo], name: str = JOINT, first: int = 0
    ) -> TaskModel:
        """A model's part in a training.

        Args:
            cargo: Rows of the group.
            name: Of the model.
            first: Place in the task's parts where the cargo's begin.

        Raises:
            MalformedError: code ``mixed-schemas``.
        """
        demand_alike([each.resource for each in cargo])
        parts = [
            place
            for place, each in enumerate(cargo)
            if name in (JOINT, each.resource.owner)
        ]
        windows = plan_windows(
            sum(cargo[place].stop.rows for place in parts),
            self.settings,
            most=1 if name else self._values,
            least_rows=self._value_rows,
        )
        places = tuple(first + place for place in parts)
        return TaskModel(places, begun=True, windows=windows)

    def losses(self, cargo: Sequence[LoadedCargo], model: TaskModel) -> Losses:
        """The joint model's losses of a training, as they are told."""
        return Losses(cargo, model.windows, self.settings, self._watch)

    def end_training(
        self, state: TrainingState | None, rows: int, summed: frozenset[str]
    ) -> None:
        """Go on from what a training made of the joint model."""
        self._settle({JOINT: _state(state)})
        self.rows_trained += rows
        self.summed = summed

    def verify(self) -> None:
        """Demand that no model changed since the last slice; before a model leaves.

        Raises:
            JobError: code ``state-changed``.
        """
        self._verify_sums()
        for name, state in self._states.items():
            self._settled[name].verify(state)

    def snapshot(self) -> TrainerState:
        """Everything to go on from; a rank's own baseline is nothing that all go on from.

        Raises:
            JobError: code ``state-changed``.
        """
        self.verify()
        return TrainerState(
            self._states.get(JOINT),
            {
                name: state
                for name, state in self._states.items()
                if name != JOINT and not self._moves
            },
            self.rows_trained,
            self._statistics,
            self.best.to_bytes(),
        )

    def restore(self, state: TrainerState) -> None:
        """Go on from there, whatever was before."""
        self._states, self._settled = {}, {}
        if state.joint is not None:
            self._settle({JOINT: state.joint, **state.alone})
            self._owners = tuple(state.alone)
        self.rows_trained = state.rows_trained
        self.best.restore(state.best)
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
        if self._private is not None:
            raise not_private("sums of prepare would be made", "they have no noise")
        self._verify_sums()
        done = self._do("prepare", cargo)
        before = [self._statistics] if self._statistics else []
        try:
            self._keep_sums(add_sums([*before, *done.statistics]))
        except MalformedError:
            raise unfit("other-sums") from None
        return {each.resource.name: Measured(each.stop.rows) for each in cargo}

    def _train(
        self, cargo: Sequence[LoadedCargo], sums: StepSums | None
    ) -> dict[str, Measured]:
        if self._private is not None:
            _demand_whole_table(cargo)
        here = {each.resource.owner for each in cargo}
        names = (JOINT, *(owner for owner in self._owners if owner in here))
        models = tuple(self.model_for(cargo, name) for name in names)
        losses = self.losses(cargo, models[_JOINT_MODEL])
        told = TaskObserver({_JOINT_MODEL: losses.watch}, sums)
        given = [self._states[name] for name in names]
        alone: tuple[TrainingState | None, ...] = ()
        if sums is not None and names[1:]:  # no baseline takes part in others' steps
            alone = self._do("train", cargo, given[1:], models[1:]).states
            given, models = given[:1], models[:1]
        states = self._do("train", cargo, given, models, told=told, sums=sums).states
        states += alone
        self._settle(dict(zip(names[1:], map(_state, states[1:]), strict=True)))
        self.end_training(states[_JOINT_MODEL], losses.rows, told.summed)
        return losses.found(told.of(_JOINT_MODEL))

    def _evaluate(self, cargo: Sequence[LoadedCargo]) -> dict[str, Measured]:
        if self._private is not None:
            return {each.resource.name: Measured(each.stop.rows) for each in cargo}
        names, told = (JOINT, *self._owners), TaskObserver()
        models = (TaskModel(tuple(range(len(cargo))), begun=True),) * len(names)
        given = [self._states[name] for name in names]
        self._do("heldout", cargo, given, models, told=told)
        found = {}
        for place, each in enumerate(cargo):
            metrics: dict[str, float] = {}
            for model, name in enumerate(names):
                prefix = f"{ALONE}.{name}." if name else ""
                own = plain_names(told.of(model)[place])
                metrics |= {prefix + metric: value for metric, value in own.items()}
            found[each.resource.name] = Measured(each.stop.rows, metrics)
        return found

    def _do(
        self,
        work: Work,
        cargo: Sequence[LoadedCargo],
        states: Sequence[TrainingState | None] = (),
        models: tuple[TaskModel, ...] = (),
        *,
        told: TaskObserver | None = None,
        sums: StepSums | None = None,
    ) -> TaskDone:
        given = TaskInputs(
            rows=[each.memory for each in cargo],
            states=states,
            statistics=self._statistics,
            loaded=lambda: self._give_away(states),
            device=sums.device if sums else None,
        )
        task = SliceTask(
            work,
            self.settings,
            models,
            parts_of(cargo),
            slice=self.number,
            together=sums.together if sums else None,
            outsourced=self.products is not None and work in ("train", "heldout"),
            epoch=self.epoch,
            until=self.until if work == "train" else 0,
            private=self._private if work == "train" else None,
        )
        told = told or TaskObserver()
        if self.products is None or not task.outsourced:
            return self._workplace.do(task, given, told)
        with self.products.steps(task, given) as told.products:
            return self._workplace.do(task, given, told)

    def _give_away(self, states: Sequence[TrainingState | None]) -> None:
        """Of a rank: if its worker fails now, all ranks begin again from the checkpoint."""
        if self._moves and any(each is self._states[JOINT] for each in states):
            give_away(self._states[JOINT])

    def _settle(self, states: Mapping[str, TrainingState]) -> None:
        for name, state in states.items():
            self._states[name] = state
            self._settled[name] = Settled(state)


def _demand_whole_table(cargo: Sequence[LoadedCargo]) -> None:
    """Rows are drawn of a whole table: so many rows are what an owner's budget is counted by."""
    if len(cargo) != 1 or cargo[0].stop.rows != cargo[0].resource.rows:
        raise not_private(
            "a training would see several tables, or a part of one",
            "rows are drawn by chance from one whole table",
        )


def in_order(cargo: Sequence[LoadedCargo]) -> list[LoadedCargo]:
    """A group's rows in the order in which they are one table."""
    return sorted(cargo, key=lambda each: (each.resource.name, each.stop.first_row))


def parts_of(cargo: Sequence[LoadedCargo]) -> tuple[TaskPart, ...]:
    """A group's rows as a task names them."""
    return tuple(
        TaskPart(
            SliceId(each.stop.epoch, each.resource.name, each.stop.first_row),
            each.stop.rows,
            each.resource.row_bytes,
            each.resource.schema,
        )
        for each in cargo
    )


def _state(found: TrainingState | None) -> TrainingState:
    """The state that a task which builds or trains ends with."""
    return require_value(found, "whoever builds or trains has a state in the end")
