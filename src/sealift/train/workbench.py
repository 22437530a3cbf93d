"""Cargo in, results by the output rule out: between visits and training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from sealift.data.rowcheck import demand_rows
from sealift.data.schemafile import schema_from_plain
from sealift.release.agreement import Agreement
from sealift.train.containment import Containment
from sealift.train.joint import Cargo, JointTraining
from sealift.train.messages import AcceleratorSettings
from sealift.train.output import let_out
from sealift.train.recipe import Recipe
from sealift.train.training import LoopSettings
from sealift.travel.hostsetup import GroupResult, LoadedCargo


class Workbench:
    """Where the groups of one job are worked on, one at a time.

    Args:
        agreement: Its code and output rule.
        files: The code bundle, measured against the agreement.
        settings: Of the job.

    Raises:
        JobError: if the recipe does not load.
    """

    def __init__(
        self,
        agreement: Agreement,
        files: Mapping[str, bytes],
        settings: AcceleratorSettings,
    ) -> None:
        self._rule = agreement.output
        loop = LoopSettings(settings.seed, settings.batch_rows, settings.threads)
        guard = Containment(files, text=self._rule.recipe_text)
        recipe = Recipe(files, agreement.code.entry, guard=guard)
        alone = agreement.data_owners if self._rule.baseline_alone else ()
        self.training = JointTraining(recipe, loop, alone=alone)
        self.sandbox = "none"

    def work(self, cargo: Sequence[LoadedCargo]) -> GroupResult:
        """Work on a group; what may leave of it."""
        metrics = {each.resource.name: self._work_on(each) for each in cargo}
        return GroupResult(metrics)

    def snapshot(self) -> Mapping[str, bytes]:
        """The states, for a checkpoint."""
        raise NotImplementedError

    def restore(self, states: Mapping[str, bytes]) -> None:
        """Go on from a checkpoint's states."""
        raise NotImplementedError

    def _work_on(self, cargo: LoadedCargo) -> dict[str, float]:
        offer = cargo.offer
        rows = torch.frombuffer(cargo.view, dtype=torch.uint8)
        rows = rows.reshape(offer.rows, cargo.resource.row_bytes)
        part = Cargo(cargo.resource, offer.epoch, offer.first_row, rows)
        return let_out(self.training.work(part), self._rule, rows=offer.rows)


def check_cargo_rows(cargo: LoadedCargo) -> None:
    """Demand that a party's rows fit its schema.

    Raises:
        MalformedError: code ``bad-row``, with the field.
    """
    resource = cargo.resource
    schema = schema_from_plain(resource.schema, source=resource.name)
    demand_rows(cargo.view, schema)
