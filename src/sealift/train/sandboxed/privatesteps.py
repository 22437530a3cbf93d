"""Gradients of private steps: of each row apart, and only their noised sum is seen.

Whatever learns of a step's gradient (optimizer, schedulers, states, other ranks) gets it from
here. Each step computes as many rows as there is room for, those that were not drawn with
weight zero, so that neither its time nor its calls tell how many were (spec/privacy.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm

from sealift.errors import MalformedError
from sealift.release.agreement.training import ROW_UNITS, PrivateSteps
from sealift.train.loop.buckets import Trained, cut_buckets
from sealift.train.loop.faults import RecipeError, machine_failed, unfit
from sealift.train.loop.states import TrainingState
from sealift.train.loop.tasks import TaskParent, Together
from sealift.train.sandboxed.graphrecipe import GraphRecipe, LoadedRecipe
from sealift.train.sandboxed.imports import Guard
from sealift.train.sandboxed.mechanism import (
    add_clipped,
    add_noise,
    draw_rows,
    room_for,
)
from sealift.train.sandboxed.placement import Batch, DevicePlacement

_MOST_NUMBERS: Final = 1 << 24  # of gradients of rows at one time: 64 MiB of float32


class PrivateGradients:
    """The gradients of one table's steps.

    Args:
        recipe: Has the loss.
        model: Its parameters' gradients are set.
        terms: Clip, noise and rows of a step.
        rows: Of the table.
        batch: Rows of these numbers, as a recipe gets them.
        placement: Where it computes.
        guard: Runs the recipe's code.
        shared: Adds up with all ranks, which add the noise; None adds it here.

    Raises:
        JobError: ``bad-recipe``, if a layer mixes rows.
    """

    def __init__(
        self,
        recipe: LoadedRecipe,
        model: nn.Module,
        terms: PrivateSteps,
        rows: int,
        batch: Callable[[Tensor], Batch],
        *,
        placement: DevicePlacement,
        guard: Guard,
        shared: SharedNoise | None = None,
    ) -> None:
        if _mixes_rows(recipe, model, guard):
            raise unfit("batch-norm")
        self._recipe, self._model, self._terms = recipe, model, terms
        self._rows, self._batch = rows, batch
        self._placement, self._guard = placement, guard
        self._shared = shared
        self._trained = _trained(model, guard)
        numbers = sum(each.numel() for each in self._trained.values())
        room = room_for(rows, terms.rate(rows))
        parts = -(-room // max(1, _MOST_NUMBERS // max(1, numbers)))
        self._at_once = -(-room // parts)
        self._least = parts * self._at_once
        if isinstance(
            recipe, GraphRecipe
        ):  # it runs as a batch of one row, so many times
            recipe.demand_room(1, "loss", copies=self._at_once)

    def set(self, step: int, *, used_up: bool = False) -> None:
        """Draw a step's rows, and have every trained parameter's gradient.

        Args:
            step: Of the optimizer.
            used_up: Other ranks alone have rows for it; none of ours is drawn.

        Raises:
            JobError: if the recipe fails.
        """
        totals = {
            name: torch.zeros_like(each, dtype=torch.float64)
            for name, each in self._trained.items()
        }
        if not used_up:
            self._add_rows(step, totals)
        if self._shared is None:
            sigma = self._terms.noise * self._terms.clip
            noised = {name: add_noise(each, sigma) for name, each in totals.items()}
        else:
            noised = self._shared.add_up(totals, self._terms.clip)
        for name, parameter in self._trained.items():
            parameter.grad = (noised[name] / self._terms.batch).to(parameter)

    def _add_rows(self, step: int, totals: Mapping[str, Tensor]) -> None:
        drawn = draw_rows(self._rows, self._terms.rate(self._rows))
        padding = max(0, self._least - len(drawn))  # longer: computed all the same
        chosen = torch.cat([drawn, torch.zeros(padding, dtype=torch.int64)])
        counts = torch.arange(len(chosen)) < len(drawn)
        pairs = zip(
            chosen.split(self._at_once), counts.split(self._at_once), strict=True
        )
        for some, counted in pairs:
            batch = self._placement.batch(self._batch(some))
            found = row_gradients(self._recipe, self._model, batch, step)
            here = counted.to(self._placement.device)
            units = 0 if self._shared is None else ROW_UNITS
            add_clipped(found, here, self._terms.clip, totals, units=units)


class SharedNoise:
    """Sums with all ranks, in whole numbers; each rank's parent adds its part of the noise.

    Args:
        together: The steps.
        state: That the task goes on from.
        model: Of which the trained parameters are added up.
        guard: Runs the recipe's code.
        parent: Is asked.
        room: Where the numbers lie.

    Raises:
        JobError: ``bad-recipe``, if a parameter is no part of the model's state.
    """

    def __init__(
        self,
        together: Together,
        state: TrainingState,
        model: nn.Module,
        *,
        guard: Guard,
        parent: TaskParent,
        room: Callable[[int], memoryview],
    ) -> None:
        self._together, self._parent = together, parent
        trained, nbytes = Trained((*_trained(model, guard),)), together.bucket_bytes
        try:
            found = cut_buckets(trained, state.model(), nbytes, units=True)
        except MalformedError:
            raise unfit("gradients") from None
        memory = room(found[-1].start + found[-1].length)
        self._flat = {
            each: torch.frombuffer(
                memory, dtype=torch.int64, count=each.elements, offset=each.start
            )
            for each in found
        }
        parent.begin_sums(trained)

    def add_up(self, totals: Mapping[str, Tensor], clip: float) -> dict[str, Tensor]:
        """The mean over ranks of their sums, with noise.

        Args:
            totals: This rank's by name, in units.
            clip: So many units of it are one.
        """
        found = dict[str, Tensor]()
        scale = clip / ROW_UNITS / len(self._together.rows)
        for bucket, flat in self._flat.items():
            flat[:] = torch.cat([totals[n].flatten() for n in bucket.names])
            total = self._parent.add_up(bucket, flat.numpy().data.cast("B"))
            parts = torch.from_numpy(np.frombuffer(total, np.int64) * scale)
            for name, part in zip(bucket.names, parts.split(bucket.sizes), strict=True):
                found[name] = part.view_as(totals[name])
        return found


def _trained(model: nn.Module, guard: Guard) -> dict[str, nn.Parameter]:
    named = guard(lambda: list(model.named_parameters()))
    return {n: p for n, p in named if p.requires_grad and p.numel()}


def _mixes_rows(recipe: LoadedRecipe, model: nn.Module, guard: Guard) -> bool:
    if isinstance(recipe, GraphRecipe):  # an update would be of rows, without noise
        graph = recipe.graph("loss")
        return graph.mixes_rows or bool(recipe.document.graphs()["loss"].updates)
    return any(isinstance(each, _BatchNorm) for each in guard(model.modules))


def row_gradients(
    recipe: LoadedRecipe, model: nn.Module, batch: Batch, step: int
) -> dict[str, Tensor]:
    """The gradient of each row's loss, by parameter: ``(rows, *parameter.shape)``.

    Raises:
        JobError: ``bad-recipe``, if torch cannot compute them apart.
    """
    row_loss = _RowLoss(recipe, model, step)
    rows = len(next(iter(batch.values())))
    trained = {n: p.detach() for n, p in _trained(model, recipe.guard).items()}
    # A weight of each row's own, all of them in the memory of one: what autograd brings for
    # them is a gradient for each row, in two thirds of the time of ``torch.func.grad``.
    own = {n: p.expand(rows, *p.shape).requires_grad_() for n, p in trained.items()}

    def loss_of(weights: dict[str, Tensor], row: Batch) -> Tensor:
        named = {f"model.{name}": each for name, each in weights.items()}
        found: Tensor = functional_call(row_loss, named, (row,))
        return found

    try:
        with sdpa_kernel(SDPBackend.MATH):  # the others have no rule for batches
            losses = vmap(loss_of, randomness="different")(own, batch)
        found = torch.autograd.grad(
            losses.sum(), list(own.values()), allow_unused=True, materialize_grads=True
        )
    except RuntimeError as error:  # of torch: what a recipe raises is guarded
        failed = machine_failed(error) or unfit("row-gradients")
    except RecipeError as error:
        apart_fails = error.fault.kind == "error" and error.fault.type == "RuntimeError"
        failed = unfit("row-gradients") if apart_fails else error
    else:
        return dict(zip(own, found, strict=True))
    raise failed from None


class _RowLoss(nn.Module):
    """A recipe's loss of one row, as a module: ``functional_call`` replaces parameters of one."""

    def __init__(self, recipe: LoadedRecipe, model: nn.Module, step: int) -> None:
        super().__init__()
        self.model = model
        self._recipe, self._step = recipe, step

    def forward(self, row: Batch) -> Tensor:
        batch = {name: each.unsqueeze(0) for name, each in row.items()}
        return self._recipe.loss(self.model, batch, self._step)
