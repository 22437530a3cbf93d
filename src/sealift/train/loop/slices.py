"""One slice of a job: rows that are trained on beside others', pass by pass.

A job with several slices goes through passes (sums, epochs, measuring); in each, every
slice works on its own rows, and then all of them agree on how to go on. A rank of a group
is one slice; the plan ``local`` has all of them in one process. Both use this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal

from sealift.channel.device.device import SummingEngine
from sealift.data.schedule.memory import SharedBuffer
from sealift.data.schedule.visits import (
    Stop,
    VisitBatch,
    batches_of,
    check_length,
    plan_job,
)
from sealift.release.agreement import Agreement, Purpose, Resource
from sealift.train.loop import stepsums
from sealift.train.loop.statistics import Measured
from sealift.train.loop.tasks import (
    BUCKET_BYTES,
    SliceTask,
    TaskInputs,
    TaskModel,
    Together,
    Workplace,
)
from sealift.train.loop.told import Losses, TaskObserver
from sealift.train.loop.trainer import Trainer, in_order, parts_of
from sealift.travel.accelerator.setup import LoadedCargo
from sealift.travel.settings import JobSettings, TrainingSettings

LendRows = Callable[[Stop], AbstractContextManager[SharedBuffer]]


def resources_of_slice(
    agreement: Agreement, settings: JobSettings, number: int
) -> tuple[Resource, ...]:
    """The tables that a slice reads, of which it may read a share alone."""
    slices = settings.slices
    if slices.count == 1 or slices.rows == "share":
        return agreement.resources
    return agreement.resources_of(agreement.data_owners[number])


def plan_slice(
    agreement: Agreement, settings: JobSettings, number: int
) -> tuple[VisitBatch, ...]:
    """What a slice works on, in order: the same on every machine."""
    terms, slices = settings.visits, settings.slices
    if slices.rows == "share":
        terms = replace(terms, share=(number, slices.count))
    resources = resources_of_slice(agreement, settings, number)
    longest = max(each.total_bytes for each in agreement.resources)
    plan = plan_job(resources, terms, terms.buffer_bytes or longest)
    check_length(sum(len(each.stops) for each in plan) * slices.count)
    return plan


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGroup:
    """Ranks that add up their gradients in every step (``sync = "step"``).

    Attributes:
        group: This rank's end.
        plans: Of every rank's slice, the same on every rank.
        bucket_bytes: Gradients that are added up in one go.
        device: Where this slice's gradients lie, if they are added up there.
        units: See ``Together``.
    """

    group: stepsums.ReduceGroup
    plans: Sequence[Sequence[VisitBatch]]
    bucket_bytes: int = BUCKET_BYTES
    device: SummingEngine | None = None
    units: bool = False


def groups_together(
    plans: Sequence[Sequence[VisitBatch]],
    epoch: int,
    settings: TrainingSettings,
    bucket_bytes: int = BUCKET_BYTES,
    *,
    units: bool = False,
) -> Iterator[tuple[tuple[Sequence[Stop], ...], Together]]:
    """The first group of every slice, then the second, and so on, with their steps.

    A slice that has no more takes part in the others' steps without rows.
    """
    own = [[each.stops for each in batches_of(plan, "train", epoch)] for plan in plans]
    for stops in zip_longest(*own, fillvalue=()):
        rows = tuple(sum(stop.rows for stop in each) for each in stops)
        trained = tuple(map(settings.trained_rows, rows))
        yield stops, Together(trained, bucket_bytes, units)


def steps_of_slices(
    plans: Sequence[Sequence[VisitBatch]],
    epoch: int,
    settings: TrainingSettings,
    sync: Literal["round", "step"],
) -> list[int]:
    """Optimizer steps that each slice makes in an epoch; every rank can compute them."""
    together = [each for _, each in groups_together(plans, epoch, settings)]
    if sync == "step":
        made = sum(each.steps(settings.batch_rows) for each in together)
        return [made] * len(plans)
    slices = zip(*(each.rows for each in together), strict=True)
    batch = settings.batch_rows
    steps = [sum(-(-rows // batch) for rows in groups) for groups in slices]
    return steps or [0] * len(plans)


class Slice:
    """One slice.

    Args:
        agreement: Names resources and rules.
        plan: What it works on.
        trainer: Of its model.
        lend_rows: The rows of a stop, for as long as they are worked on.
    """

    def __init__(
        self,
        agreement: Agreement,
        plan: Sequence[VisitBatch],
        trainer: Trainer,
        lend_rows: LendRows,
    ) -> None:
        self._agreement = agreement
        self._lend_rows = lend_rows
        self.plan, self.trainer = plan, trainer

    def rows(self, purpose: Purpose, epoch: int) -> int:
        """How many it works on in a pass."""
        groups = batches_of(self.plan, purpose, epoch)
        return sum(stop.rows for group in groups for stop in group.stops)

    def work(
        self,
        purpose: Purpose,
        epoch: int,
        beside: StepGroup | None = None,
        *,
        most: int = 0,
    ) -> Iterator[tuple[Stop, Measured]]:
        """Work on its rows of one pass; each stop's raw numbers as soon as they are known.

        Args:
            purpose: Of the pass.
            epoch: Of the pass.
            beside: Ranks that a training is one step by step with; an error here is
                told to all of them, and none of them steps.
            most: Steps of the slice that makes most in this round.

        Raises:
            See ``Trainer.work`` and ``StepSums``.
        """
        trainer, trainer.epoch = self.trainer, epoch
        if beside is not None and purpose == "train":
            yield from self._train_beside(epoch, beside)
            return
        groups = [*batches_of(self.plan, purpose, epoch)]
        ends = trainer.steps + most if most else 0
        for place, group in enumerate(groups, 1):
            trainer.until = ends if place == len(groups) else 0
            with self.load(group.stops) as cargo:
                measured = self.trainer.work(cargo, purpose)
            for stop in group.stops:
                yield stop, measured[stop.resource]

    def _train_beside(
        self, epoch: int, beside: StepGroup
    ) -> Iterator[tuple[Stop, Measured]]:
        settings = self.trainer.settings
        groups = groups_together(
            beside.plans, epoch, settings, beside.bucket_bytes, units=beside.units
        )
        for all_stops, together in groups:
            stops = all_stops[self.trainer.number]
            step_sums = self.trainer.sums(beside.group, together, beside.device)
            try:
                with closing(step_sums), self.load(stops) as cargo:
                    measured = self.trainer.work(cargo, "train", step_sums)
            except BaseException:
                step_sums.give_up()
                raise
            for stop in stops:
                yield stop, measured[stop.resource]

    @contextmanager
    def load(self, stops: Sequence[Stop]) -> Iterator[list[LoadedCargo]]:
        """The rows of a group, for as long as they are worked on."""
        with ExitStack() as stack:
            yield [
                LoadedCargo(
                    stop,
                    self._agreement.resource(stop.resource),
                    stack.enter_context(self._lend_rows(stop)),
                )
                for stop in stops
            ]


def train_beside(
    trainers: Sequence[Trainer],
    cargo: Sequence[Sequence[LoadedCargo]],
    together: Together,
    *,
    workplace: Workplace,
    settings: TrainingSettings,
) -> list[Mapping[str, Measured]]:
    """Train on one group of every slice in one task, as the plan ``local`` does.

    One model and one optimizer; what no gradient belongs to (buffers) each slice has for
    itself. The bits are those of as many ranks. Returned is what was measured of each
    slice, by resource.

    Args:
        trainers: Of every slice, in their order.
        cargo: Rows of every slice; none of one whose own are used up.
        together: The steps.
        workplace: Where the recipe runs.
        settings: Of the loop.

    Raises:
        See ``Trainer.work``.
    """
    own = [in_order(each) for each in cargo]
    every = [each for rows in own for each in rows]
    models, losses = list[TaskModel](), list[Losses]()
    for trainer, rows in zip(trainers, own, strict=True):
        trainer.build()
        trainer.verify()
        first = sum(len(model.parts) for model in models)
        models.append(trainer.model_for(rows, first=first))
        losses.append(trainer.losses(rows, models[-1]))
    told = TaskObserver({number: each.watch for number, each in enumerate(losses)})
    given = TaskInputs(
        rows=[each.memory for each in every],
        states=[each.joint for each in trainers],
        statistics=trainers[0].statistics,
    )
    task = SliceTask(
        "train", settings, tuple(models), parts_of(every), together=together
    )
    done = workplace.do(task, given, told)
    for trainer, state, loss in zip(trainers, done.states, losses, strict=True):
        trainer.end_training(state, loss.rows, told.summed)
    return [each.found(told.of(number)) for number, each in enumerate(losses)]
