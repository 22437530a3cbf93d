"""Cargo in, results by the output rule out: between visits and training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sealift.data.schema.document import schema_from_plain
from sealift.data.schema.rows import demand_rows
from sealift.data.schema.schema import Schema
from sealift.errors import MalformedError
from sealift.release.agreement import Agreement, Resource
from sealift.train.loop.measured import let_out
from sealift.train.loop.states import JointState
from sealift.train.loop.tasks import Workplace
from sealift.train.loop.trainer import Cargo, JointTraining, joint_training
from sealift.train.sandbox.confine import Confinement
from sealift.train.worker.taskprocess import garbled
from sealift.travel.accelerator.setup import GroupResult, LoadedCargo
from sealift.travel.settings import JobSettings


class Workbench:
    """Where the groups of one job are worked on, one at a time.

    Args:
        agreement: Its code and output rule.
        workplace: Runs the recipe.
        settings: Of the job.

    Raises:
        JobError: if the recipe does not load.
        UnavailableError: code ``no-sandbox``, where the agreement demands one.
    """

    def __init__(
        self,
        agreement: Agreement,
        workplace: Workplace,
        settings: JobSettings,
    ) -> None:
        self.sandbox = workplace.sandbox
        Confinement.parse(self.sandbox).require(agreement.accept)
        self._rule = agreement.output_rule
        self.training: JointTraining = joint_training(
            agreement, workplace, settings.training
        )
        if not settings.training.prepare:  # else build() may ask for what is not there
            self.training.build()

    def work(self, cargo: Sequence[LoadedCargo]) -> GroupResult:
        """Work on a group; what may leave of it."""
        parts = [_cargo(each) for each in cargo]
        try:
            found = self.training.work(parts, cargo[0].offer.purpose)
        except MalformedError as error:
            if error.code != "bad-row":
                raise
            # These rows were checked when they came: it is the recipe that says so, to
            # have a party's visit left out.
            raise garbled() from None
        let = {name: let_out(each, self._rule) for name, each in found.items()}
        curve = next(iter(let.values())).curve  # one for the group: it is worked as one
        return GroupResult({name: each.metrics for name, each in let.items()}, curve)

    def snapshot(self) -> Mapping[str, bytes]:
        """The states, for a checkpoint."""
        return self.training.snapshot().to_parts()

    def restore(self, states: Mapping[str, bytes]) -> None:
        """Go on from a checkpoint's states."""
        self.training.restore(JointState.from_parts(states))


def check_cargo_rows(cargo: LoadedCargo) -> None:
    """Demand that a party's rows fit its schema.

    Raises:
        MalformedError: code ``bad-row``, with the field.
    """
    demand_rows(cargo.view, _schema_of(cargo.resource))


def columns_of(resource: Resource) -> bytes:
    """What a resource's file must have been sealed as, by the agreement."""
    return _schema_of(resource).columns


def _schema_of(resource: Resource) -> Schema:
    return schema_from_plain(resource.schema, source=resource.name)


def _cargo(loaded: LoadedCargo) -> Cargo:
    offer = loaded.offer
    return Cargo(loaded.resource, offer.epoch, offer.first_row, offer.rows, loaded)
