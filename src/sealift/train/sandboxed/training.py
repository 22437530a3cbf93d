"""The one loop: rows of one slice in, weights changed, sums out. Every plan uses it.

Bit-identical: order and random streams depend on (seed, epoch, resources, first rows,
step) alone, and slices come in the schedule's order. So a run does not depend on how many
numbers another slice or another model drew before it.
Noise for differential privacy never comes from these streams (rule H12). Each slice
builds the model anew and goes on from the state that the last one left.
Every call that may run a recipe's code goes through the recipe's guard.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from sealift.crypto.hash import labelled
from sealift.data.loader.rowtensors import batch_order, column_views, split_order
from sealift.data.schema.schema import Schema
from sealift.release.agreement.training import PrivateSteps
from sealift.train.loop.faults import not_finite, unfit
from sealift.train.loop.states import TrainingState
from sealift.train.loop.tasks import (
    SliceId,
)
from sealift.train.sandboxed.graphrecipe import LoadedRecipe
from sealift.train.sandboxed.placement import HERE, DevicePlacement
from sealift.train.sandboxed.privatesteps import PrivateGradients, SharedNoise
from sealift.train.sandboxed.shelf import COPIES, Shelf
from sealift.train.sandboxed.torchstate import (
    frozen_names,
    give_state,
    give_weights,
    take_state,
)
from sealift.travel.settings import TrainingSettings

T = TypeVar("T")


def stream_seed(seed: int, purpose: str, *parts: int | str) -> int:
    """A 63-bit seed for one stream."""
    fields = [str(part).encode() for part in (seed, purpose, *parts)]
    return int.from_bytes(labelled("sealift random stream", *fields)[:8], "big") >> 1


def scope_of(slices: Sequence[SliceId], number: int) -> str:
    """Whose random streams a group has; those of each of the job's slices are its own."""
    return "+".join(each.resource for each in slices) + f"#{number}" * (number > 0)


def enter_stream(seed: int, purpose: str, *parts: int | str) -> None:
    """Seed torch's default generators for what comes next."""
    chosen = stream_seed(seed, purpose, *parts)
    # Not torch.manual_seed: it asks for every kind of device, 0.3 ms on every step.
    torch.default_generator.manual_seed(chosen)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(chosen)


def _enter_secret_stream() -> None:
    """Seed torch's default generators by chance, for a private step.

    A recipe's own chance (dropout) goes by a row's place among those that were drawn. With
    a stream that others know, one row more would change what the rows behind it give.
    """
    chosen = int.from_bytes(os.urandom(8))
    torch.default_generator.manual_seed(chosen)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(chosen)


class GroupRows:
    """The rows of a group's slices, taken as one table.

    Args:
        parts: ``uint8`` (rows, row_bytes) each.
        schema: What a row is, the same in every part.
    """

    def __init__(self, parts: Sequence[Tensor], schema: Schema) -> None:
        self.schema = schema
        self._parts = [column_views(part, schema) for part in parts]
        self._starts = list(accumulate(map(len, parts), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def batch(self, rows: Tensor) -> dict[str, Tensor]:
        """Copies of the rows with these indices, in this order: a recipe may write into them."""
        if len(self._parts) == 1:
            (columns,) = self._parts
            return {name: each.index_select(0, rows) for name, each in columns.items()}
        found = {
            name: each.new_empty((len(rows), *each.shape[1:]))
            for name, each in self._parts[0].items()
        }
        for columns, (start, end) in zip(
            self._parts, pairwise(self._starts), strict=True
        ):
            here = (rows >= start) & (rows < end)
            for name, each in columns.items():
                found[name][here] = each.index_select(0, rows[here] - start)
        return found


class MakesSteps(Protocol):
    """What a step's work goes through; ``steps.outsourced`` has one."""

    def make(self, work: Callable[[], T], *, trains: bool) -> T:
        """Do it, again if what it came to does not count."""
        ...


class LocalSteps:
    """Steps whose products are made in this process."""

    def make(self, work: Callable[[], T], *, trains: bool) -> T:
        """Do it."""
        return work()


class Training:
    """A model, its optimizer, and how far they have come.

    Args:
        recipe: Builds model and optimizer.
        settings: Seed, batch size, threads.
        state: To go on from; None to begin.
        statistics: Sums of ``prepare`` for ``build``.
        placement: Where it computes.
        convert: What the model's steps are made by.
        shelf: Where the state comes from and goes to.
        trains: Whether the optimizer goes on, too.
    """

    def __init__(
        self,
        recipe: LoadedRecipe,
        settings: TrainingSettings,
        state: TrainingState | None = None,
        *,
        statistics: Mapping[str, Tensor] | None = None,
        placement: DevicePlacement = HERE,
        convert: Callable[[nn.Module], MakesSteps] = lambda model: LocalSteps(),
        shelf: Shelf = COPIES,
        trains: bool = True,
    ) -> None:
        self._recipe = recipe
        self.guard = recipe.guard
        self._shelf = shelf
        self._settings = settings
        enter_stream(settings.seed, "build")
        self.model: nn.Module = recipe.build(statistics, settings.parameters)
        self.placement = placement
        placement.put(self.model, self.guard)
        self._steps = convert(self.model)
        self._frozen = frozen_names(self.model, self.guard)
        self._optimization = recipe.optimization(self.model)
        self.optimizer = self._optimization.optimizer
        self.step = 0
        if state is not None:
            self.step = state.step
            if trains:
                own = self._optimization
                give_state(self.model, own, state, self.guard, shelf.load)
            else:
                give_weights(self.model, state, self.guard, shelf.load)

    def train_slice(
        self,
        rows: GroupRows,
        slices: Sequence[SliceId],
        *,
        number: int = 0,
        until: int = 0,
        windows: Sequence[int] | None = None,
        after_step: Callable[[], None] | None = None,
        after_window: Callable[[int, float], None] | None = None,
    ) -> tuple[float, ...]:
        """Train once over the rows of one group.

        Args:
            rows: Of all its slices.
            slices: Decide order and random streams, in the order of the rows' parts.
            number: Of the job's slice; each has random streams of its own.
            until: Steps that another slice has made when the round ends, if it ends here.
            windows: Steps of each window, all steps together; one window without.
            after_step: Called between two steps, when none is under way.
            after_window: Called with a window's number and sum as soon as it ends.

        Returns:
            For each window the sum over its rows of their losses.

        Raises:
            JobError: if the loss is not finite, or the recipe fails.
        """
        self.guard(self.model.train)
        batches = self.batches(len(rows), slices)
        ends = set(
            accumulate(windows or [len(batches)])
        )  # of windows, by their last step
        scope = scope_of(slices, number)
        sums = [0.0]
        epoch = slices[0].epoch
        self.begin_epoch(epoch)
        ready = self.placement.batches(map(rows.batch, batches))
        for place, (batch_rows, batch) in enumerate(
            zip(batches, ready, strict=True), 1
        ):
            work = partial(self._differentiate, batch, scope)
            value = self._steps.make(work, trains=True)
            self._demand_finite(value)
            sums[-1] += value * len(batch_rows)
            self.make_step(epoch)
            if place in ends and after_window is not None:
                after_window(len(sums) - 1, sums[-1])
            if place < len(batches):
                if place in ends:
                    sums.append(0.0)
                if after_step is not None:
                    after_step()
        self._optimization.advance(max(until, self.step), epoch, self.guard)
        return tuple(sums)

    def train_privately(
        self,
        rows: GroupRows,
        slices: Sequence[SliceId],
        terms: PrivateSteps,
        *,
        steps: int,
        beside: int = 0,
        shared: SharedNoise | None = None,
        until: int = 0,
        after_step: Callable[[], None] | None = None,
    ) -> None:
        """Train on rows of one table that are drawn for each step. No loss is computed.

        Args:
            rows: Of the whole table.
            slices: Their epoch is where schedulers are. No stream of the job's seed is used.
            terms: Clip, noise and rows of a step.
            steps: To be made with these rows.
            beside: Steps that other ranks make when these rows are used up.
            shared: Adds up each step with all ranks, which share the noise.
            until: See ``train_slice``.
            after_step: See ``train_slice``.

        Raises:
            JobError: if the recipe fails, or its rows cannot be differentiated apart.
        """
        self.guard(self.model.train)
        epoch = slices[0].epoch
        self.begin_epoch(epoch)
        gradients = PrivateGradients(
            self._recipe,
            self.model,
            terms,
            len(rows),
            rows.batch,
            placement=self.placement,
            guard=self.guard,
            shared=shared,
        )
        for place in range(1, steps + beside + 1):
            _enter_secret_stream()
            gradients.set(self.step, used_up=place > steps)
            self.make_step(epoch)
            if place < steps + beside and after_step is not None:
                after_step()
        self._optimization.advance(max(until, self.step), epoch, self.guard)

    def begin_epoch(self, epoch: int) -> None:
        """Have schedulers where they are when rows of an epoch are trained on."""
        self._optimization.advance(self.step, epoch, self.guard)

    def make_step(self, epoch: int) -> None:
        """Change the weights by the gradients, which are there; then the schedulers' turn."""
        if self._settings.clip_norm:
            self.guard(self._clip)
        self.guard(self.optimizer.step)
        self.step += 1
        self._optimization.advance(self.step, epoch, self.guard)

    def _clip(self) -> None:
        clip_grad_norm_(self.model.parameters(), self._settings.clip_norm)

    def evaluate(self, rows: Tensor, schema: Schema) -> dict[str, float]:
        """Means over the rows, by metric, and what is counted, by name and place.

        No gradient, and no random stream moves.
        """
        self.guard(self.model.eval)
        sums: dict[str, float] = {}
        count = self._settings.batch_rows
        made = map(
            GroupRows([rows], schema).batch, torch.arange(len(rows)).split(count)
        )
        with torch.no_grad():
            for batch in self.placement.batches(made):
                work = partial(self._recipe.evaluate, self.model, batch)
                for name, value in self._steps.make(work, trains=False).items():
                    sums[name] = sums.get(name, 0.0) + value
        return {
            name: value if name.endswith("]") else value / len(rows)
            for name, value in sums.items()
        }

    def batches(self, rows: int, slices: Sequence[SliceId]) -> list[Tensor]:
        """Which rows each step of a group has, in their order."""
        order = batch_order(
            rows,
            seed=self._settings.seed,
            epoch=slices[0].epoch,
            scope="+".join(f"{each.resource}/{each.first_row}" for each in slices),
        )
        order = order[: self._settings.trained_rows(rows)]
        return list(split_order(order, self._settings.batch_rows))

    def loss(self, batch: dict[str, Tensor], scope: str) -> tuple[Tensor, float]:
        """The loss of a batch in the random stream of this step and a scope.

        Raises:
            JobError: if it is not finite, or the recipe fails.
        """
        loss = self._loss(batch, scope)
        value = float(loss.detach())
        self._demand_finite(value)
        return loss, value

    def state(self, *, ends: bool = False, used_up: bool = False) -> TrainingState:
        """Model and optimizer as bytes.

        Args:
            ends: The task ends with them.
            used_up: Nothing is computed with them any more, and nobody else has them.

        Raises:
            JobError: if they hold something that cannot be carried to the next slice.
        """
        if frozen_names(self.model, self.guard) != self._frozen:
            raise unfit("frozen")
        if used_up:
            parameters = self.guard(lambda: list(self.model.parameters()))
            self._shelf.drop_gradients(parameters)
        pack = partial(self._shelf.pack, ends=ends, used_up=used_up)
        return take_state(self.model, self._optimization, self.step, self.guard, pack)

    def count_parameters(self) -> int:
        """How many numbers are trained."""
        parameters: list[Tensor] = self.guard(lambda: list(self.model.parameters()))
        return sum(each.numel() for each in parameters if each.requires_grad)

    def _loss(self, batch: dict[str, Tensor], scope: str) -> Tensor:
        enter_stream(self._settings.seed, "step", self.step, scope)
        self.guard(self.optimizer.zero_grad)
        return self._recipe.loss(self.model, batch, self.step)

    def _differentiate(self, batch: dict[str, Tensor], scope: str) -> float:
        """Gradients of a batch; its loss, which counts once the step does."""
        loss = self._loss(batch, scope)
        self.guard(loss.backward)
        return float(loss.detach())

    def _demand_finite(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise not_finite(self.step)
