"""The one loop: rows of one slice in, weights changed, sums out. Every plan uses it.

Bit-identical in the sense of DESIGN 5.8: order and random streams depend on (seed,
epoch, resource, first row, step) alone, and slices come in the schedule's order.
Every call that may run a recipe's code goes through the recipe's guard.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sealift.data.loader import batch_from_rows, batch_order, split_order
from sealift.data.schema import Schema
from sealift.errors import JobError
from sealift.ids import Digest
from sealift.train.recipe import Recipe
from sealift.train.statedigest import Settled, state_digest
from sealift.train.streams import enter_stream


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """What the loop needs to know of a job.

    Attributes:
        seed: Of every order and random stream.
        batch_rows: Rows of one optimizer step.
        threads: CPU threads of one operation; part of bit-identity.
    """

    seed: int
    batch_rows: int
    threads: int = 1


@dataclass(frozen=True, slots=True)
class SliceId:
    """Which rows of whose resource these are, in which epoch."""

    epoch: int
    resource: str
    first_row: int


class Training:
    """A model, its optimizer, and how far they have come.

    Args:
        recipe: Builds model and optimizer.
        settings: Seed, batch size, threads.
    """

    def __init__(self, recipe: Recipe, settings: LoopSettings) -> None:
        self._recipe = recipe
        self._settings = settings
        enter_stream(settings.seed, "build")
        self.model: nn.Module = recipe.build()
        self.optimizer = recipe.optimizer(self.model)
        self.step = 0
        self._settled: Settled | None = None

    def train_slice(
        self, rows: Tensor, schema: Schema, slice_id: SliceId
    ) -> dict[str, float]:
        """Train once over the rows of one slice.

        Args:
            rows: ``uint8`` (rows, row_bytes).
            schema: What a row is.
            slice_id: Decides order and random streams.

        Returns:
            ``loss``: mean over the slice's rows.

        Raises:
            JobError: if the loss is not finite, or the recipe fails.
        """
        self._guard(self.model.train)
        total = 0.0
        for batch_rows in self._batches(rows, slice_id):
            seed = self._settings.seed
            enter_stream(seed, "step", self.step, slice_id.resource)
            batch = batch_from_rows(rows.index_select(0, batch_rows), schema)
            total += self._optimize(batch) * len(batch_rows)
            self.step += 1
        return {"loss": total / len(rows)}

    def evaluate(self, rows: Tensor, schema: Schema) -> dict[str, float]:
        """Means over the rows, by metric; no gradient, no random stream moves."""
        self._guard(self.model.eval)
        sums: dict[str, float] = {}
        with torch.no_grad():
            for start in range(0, len(rows), self._settings.batch_rows):
                # A copy: a recipe must not write into the visit's rows.
                part = rows[start : start + self._settings.batch_rows].clone()
                batch = batch_from_rows(part, schema)
                for name, value in self._recipe.evaluate(self.model, batch).items():
                    sums[name] = sums.get(name, 0.0) + value
        return {name: value / len(rows) for name, value in sums.items()}

    def settle(self) -> None:
        """End a slice: overwrite gradients (rule H2), remember the state (rule H1)."""
        self._guard(self._forget_gradients)
        self._settled = Settled(self._everything())

    def verify_settled(self) -> None:
        """Demand that nothing changed since the last slice ended.

        Raises:
            JobError: code ``state-changed``.
        """
        if self._settled is not None:
            self._settled.verify(self._everything())

    def state(self) -> dict[str, Tensor]:
        """The model's state, detached, contiguous, on the CPU.

        Raises:
            JobError: if the model's state holds something else than tensors.
        """
        plain: dict[str, Any] = self._guard(self.model.state_dict)
        if not all(isinstance(value, Tensor) for value in plain.values()):
            raise JobError(
                "the recipe does not fit",
                why="its model keeps something else than tensors in its state",
                code="bad-recipe",
            )
        return {
            name: tensor.detach().cpu().contiguous() for name, tensor in plain.items()
        }

    def digest(self) -> Digest:
        """Digest of the model's state: names, dtypes, shapes, bytes."""
        return state_digest(self.state())

    def count_parameters(self) -> int:
        """How many numbers are trained."""
        parameters: list[Tensor] = self._guard(lambda: list(self.model.parameters()))
        return sum(each.numel() for each in parameters if each.requires_grad)

    def _batches(self, rows: Tensor, slice_id: SliceId) -> Iterator[Tensor]:
        order = batch_order(
            len(rows),
            seed=self._settings.seed,
            epoch=slice_id.epoch,
            scope=f"{slice_id.resource}/{slice_id.first_row}",
        )
        return split_order(order, self._settings.batch_rows)

    def _optimize(self, batch: dict[str, Tensor]) -> float:
        self._guard(self._zero_gradients)
        loss = self._recipe.loss(self.model, batch, self.step)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise JobError(
                f"the loss is not finite at step {self.step}",
                fix="Lower the learning rate, or check the data's ranges",
                code="not-finite",
            )
        self._guard(self._descend, loss)
        return value

    def _guard(self, *call: Any) -> Any:
        return self._recipe.guard(*call)

    def _zero_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)

    def _descend(self, loss: Tensor) -> None:
        loss.backward()
        self.optimizer.step()

    def _forget_gradients(self) -> None:
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()

    def _everything(self) -> dict[str, Any]:
        optimizer: dict[str, Any] = self._guard(self.optimizer.state_dict)
        return {"model": self.state(), "optimizer": optimizer}
