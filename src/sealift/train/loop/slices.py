"""One slice of a job: rows that are trained on beside others', pass by pass.

A job with several slices goes through passes (sums, epochs, measuring); in each, every
slice works on its own rows, and then all of them agree on how to go on. A rank of a group
is one slice; the plan ``local`` has all of them in one process. Both use this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace

from sealift.data.schedule.memory import SharedBuffer
from sealift.data.schedule.visits import Group, Stop, plan_job
from sealift.release.agreement import Agreement, Purpose, Resource
from sealift.train.loop.statistics import Measured
from sealift.train.loop.trainer import Trainer
from sealift.travel.accelerator.setup import LoadedCargo
from sealift.travel.settings import JobSettings

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
) -> tuple[Group, ...]:
    """What a slice works on, in order: the same on every machine."""
    terms, slices = settings.visits, settings.slices
    if slices.rows == "share":
        terms = replace(terms, share=(number, slices.count))
    resources = resources_of_slice(agreement, settings, number)
    longest = max(each.total_bytes for each in agreement.resources)
    return plan_job(resources, terms, terms.buffer_bytes or longest)


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
        plan: Sequence[Group],
        trainer: Trainer,
        lend_rows: LendRows,
    ) -> None:
        self._agreement = agreement
        self._lend_rows = lend_rows
        self.plan, self.trainer = plan, trainer

    def rows(self, purpose: Purpose, epoch: int) -> int:
        """How many it works on in a pass."""
        groups = self._groups(purpose, epoch)
        return sum(stop.rows for group in groups for stop in group.stops)

    def work(self, purpose: Purpose, epoch: int) -> Iterator[tuple[Stop, Measured]]:
        """Work on its rows of one pass; each stop's raw numbers as soon as they are known.

        Raises:
            See ``Trainer.work``.
        """
        for group in self._groups(purpose, epoch):
            measured = self._work_on(group.stops, purpose)
            for stop in group.stops:
                yield stop, measured[stop.resource]

    def _groups(self, purpose: Purpose, epoch: int) -> Iterator[Group]:
        wanted = (purpose, epoch)
        return (each for each in self.plan if (each.purpose, each.epoch) == wanted)

    def _work_on(self, stops: Sequence[Stop], purpose: Purpose) -> dict[str, Measured]:
        with ExitStack() as stack:
            cargo = [
                LoadedCargo(
                    stop,
                    self._agreement.resource(stop.resource),
                    stack.enter_context(self._lend_rows(stop)),
                )
                for stop in stops
            ]
            return self.trainer.work(cargo, purpose)
