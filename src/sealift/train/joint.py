"""Joint training over loaded rows, and beside it each owner alone if the rule says so.

The joint model and every baseline start from the same weights (one stream builds them),
see the same batches of an owner's rows and are measured on the same held-out rows, so
that their difference is what training together gained. Baselines never leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sealift.data.loader import check_rows
from sealift.data.schema import Schema
from sealift.data.schemafile import schema_from_plain
from sealift.ids import Digest
from sealift.release.agreement import Resource
from sealift.train.output import ALONE
from sealift.train.recipe import Recipe
from sealift.train.training import LoopSettings, SliceId, Training


@dataclass(frozen=True, slots=True)
class Cargo:
    """Rows to work on, wherever they came from.

    Attributes:
        resource: As the agreement binds it.
        epoch: Number of the epoch.
        first_row: Which slice of the resource this is.
        rows: ``uint8`` (rows, row_bytes).
    """

    resource: Resource
    epoch: int
    first_row: int
    rows: Tensor


class JointTraining:
    """The model of all owners, and one of each owner alone.

    Args:
        recipe: Builds every model.
        settings: Of the loop.
        alone: Owners of whom a baseline is trained; empty if the rule has none.
    """

    def __init__(
        self, recipe: Recipe, settings: LoopSettings, *, alone: Iterable[str]
    ) -> None:
        torch.set_num_threads(settings.threads)
        torch.use_deterministic_algorithms(True, warn_only=True)
        self.joint = Training(recipe, settings)
        self._alone = {owner: Training(recipe, settings) for owner in alone}
        self._trainings = (self.joint, *self._alone.values())
        self.rows_trained = 0

    def work(self, cargo: Cargo) -> dict[str, float]:
        """Train on training rows, evaluate on held-out rows; raw metrics.

        Raises:
            MalformedError: if the rows do not fit their schema; no step was made.
            JobError: if the recipe failed, or a model changed since the last slice.
        """
        schema = schema_from_plain(cargo.resource.schema, source=cargo.resource.name)
        check_rows(cargo.rows, schema)
        for training in self._trainings:
            training.verify_settled()
        work = self._train if cargo.resource.part == "train" else self._evaluate
        try:
            return work(cargo, schema)
        finally:
            for training in self._trainings:
                training.settle()

    def verify(self) -> None:
        """Demand that no model changed since the last slice; before a model leaves.

        Raises:
            JobError: code ``state-changed``.
        """
        for training in self._trainings:
            training.verify_settled()

    def digest(self) -> Digest:
        """Digest of the joint model."""
        return self.joint.digest()

    def state(self) -> dict[str, Tensor]:
        """The joint model."""
        return self.joint.state()

    def _train(self, cargo: Cargo, schema: Schema) -> dict[str, float]:
        slice_id = SliceId(cargo.epoch, cargo.resource.name, cargo.first_row)
        metrics = self.joint.train_slice(cargo.rows, schema, slice_id)
        alone = self._alone.get(cargo.resource.owner)
        if alone is not None:
            alone.train_slice(cargo.rows, schema, slice_id)
        self.rows_trained += len(cargo.rows)
        return metrics

    def _evaluate(self, cargo: Cargo, schema: Schema) -> dict[str, float]:
        metrics = self.joint.evaluate(cargo.rows, schema)
        for owner, training in self._alone.items():
            found = training.evaluate(cargo.rows, schema)
            metrics |= {f"{ALONE}.{owner}.{name}": v for name, v in found.items()}
        return metrics


def mean_over_rows(
    parts: Iterable[tuple[int, Mapping[str, float]]],
) -> dict[str, float]:
    """Means over several held-out parts, weighted by the rows that each number covers."""
    sums: dict[str, float] = {}
    rows_of: dict[str, int] = {}
    for rows, metrics in parts:
        for name, value in metrics.items():
            sums[name] = sums.get(name, 0.0) + value * rows
            rows_of[name] = rows_of.get(name, 0) + rows
    return {name: value / rows_of[name] for name, value in sums.items()}
