"""The one loop: rows of one slice in, weights changed, sums out. Every plan uses it.

``carry_out`` does one task with it: the same function in the sandboxed process and in
tests.

Bit-identical in the sense of DESIGN 5.8: order and random streams depend on (seed,
epoch, resources, first rows, step) alone, and slices come in the schedule's order. So a
run does not depend on how many numbers another slice or another model drew before it.
Noise for differential privacy never comes from these streams (rule H12). Each slice
builds the model anew and goes on from the state that the last one left.
Every call that may run a recipe's code goes through the recipe's guard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from sealift.crypto.hash import labelled
from sealift.data.loader.rowtensors import batch_from_rows, batch_order, split_order
from sealift.data.schema.document import schema_from_plain
from sealift.data.schema.rows import demand_rows
from sealift.data.schema.schema import Schema
from sealift.errors import MalformedError
from sealift.train.loop.faults import not_finite
from sealift.train.loop.imports import Guard, Notice, unnoticed
from sealift.train.loop.recipe import Recipe
from sealift.train.loop.states import TrainingState
from sealift.train.loop.tasks import (
    LOSS,
    Given,
    SliceId,
    SliceTask,
    TaskDone,
    TaskParent,
)
from sealift.train.loop.torchstate import as_tensors, give_state, sum_table, take_state
from sealift.travel.settings import TrainingSettings


def stream_seed(seed: int, purpose: str, *parts: int | str) -> int:
    """A 63-bit seed for one stream."""
    fields = [str(part).encode() for part in (seed, purpose, *parts)]
    return int.from_bytes(labelled("sealift random stream", *fields)[:8], "big") >> 1


def enter_stream(seed: int, purpose: str, *parts: int | str) -> None:
    """Seed torch's default generators for what comes next."""
    chosen = stream_seed(seed, purpose, *parts)
    # Not torch.manual_seed: it asks for every kind of device, 0.3 ms on every step.
    torch.default_generator.manual_seed(chosen)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(chosen)


class Rows:
    """The rows of a group's slices, taken as one table.

    Args:
        parts: ``uint8`` (rows, row_bytes) each.
        schema: What a row is, the same in every part.
    """

    def __init__(self, parts: Sequence[Tensor], schema: Schema) -> None:
        self.schema = schema
        self._parts = parts
        self._starts = list(accumulate(map(len, parts), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def batch(self, rows: Tensor) -> dict[str, Tensor]:
        """Contiguous copies of the rows with these indices, in this order."""
        if len(self._parts) == 1:
            return batch_from_rows(self._parts[0].index_select(0, rows), self.schema)
        found = torch.empty((len(rows), self.schema.row_bytes), dtype=torch.uint8)
        for part, start in zip(self._parts, self._starts, strict=False):
            here = (rows >= start) & (rows < start + len(part))
            found[here] = part.index_select(0, rows[here] - start)
        return batch_from_rows(found, self.schema)


class Training:
    """A model, its optimizer, and how far they have come.

    Args:
        recipe: Builds model and optimizer.
        settings: Seed, batch size, threads.
        state: To go on from; None to begin.
        statistics: Sums of ``prepare`` for ``build``.
    """

    def __init__(
        self,
        recipe: Recipe,
        settings: TrainingSettings,
        state: TrainingState | None = None,
        *,
        statistics: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._recipe = recipe
        self._guard = recipe.guard
        self._settings = settings
        enter_stream(settings.seed, "build")
        self.model: nn.Module = recipe.build(statistics)
        self.optimizer = recipe.optimizer(self.model)
        self.step = 0
        if state is not None:
            self.step = state.step
            give_state(self.model, self.optimizer, state, self._guard)

    def train_slice(
        self,
        rows: Rows,
        slices: Sequence[SliceId],
        *,
        number: int = 0,
        windows: Sequence[int] | None = None,
        after_step: Callable[[], None] | None = None,
        after_window: Callable[[int, float], None] | None = None,
    ) -> tuple[float, ...]:
        """Train once over the rows of one group.

        Args:
            rows: Of all its slices.
            slices: Decide order and random streams, in the order of the rows' parts.
            number: Of the job's slice; each has random streams of its own.
            windows: Steps of each window, all steps together; one window without.
            after_step: Called between two steps, when none is under way.
            after_window: Called with a window's number and sum as soon as it ends.

        Returns:
            For each window the sum over its rows of their losses.

        Raises:
            JobError: if the loss is not finite, or the recipe fails.
        """
        self._guard(self.model.train)
        batches = list(self._batches(len(rows), slices))
        ends = set(
            accumulate(windows or [len(batches)])
        )  # of windows, by their last step
        scope = "+".join(each.resource for each in slices) + f"#{number}" * (number > 0)
        sums = [0.0]
        for place, batch_rows in enumerate(batches, 1):
            enter_stream(self._settings.seed, "step", self.step, scope)
            sums[-1] += self._optimize(rows.batch(batch_rows)) * len(batch_rows)
            self.step += 1
            if place in ends and after_window is not None:
                after_window(len(sums) - 1, sums[-1])
            if place < len(batches):
                if place in ends:
                    sums.append(0.0)
                if after_step is not None:
                    after_step()
        return tuple(sums)

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

    def state(self) -> TrainingState:
        """Model and optimizer as bytes.

        Raises:
            JobError: if they hold something that cannot be carried to the next slice.
        """
        return take_state(self.model, self.optimizer, self.step, self._guard)

    def count_parameters(self) -> int:
        """How many numbers are trained."""
        parameters: list[Tensor] = self._guard(lambda: list(self.model.parameters()))
        return sum(each.numel() for each in parameters if each.requires_grad)

    def _batches(self, rows: int, slices: Sequence[SliceId]) -> Iterator[Tensor]:
        order = batch_order(
            rows,
            seed=self._settings.seed,
            epoch=slices[0].epoch,
            scope="+".join(f"{each.resource}/{each.first_row}" for each in slices),
        )
        return split_order(order, self._settings.batch_rows)

    def _optimize(self, batch: dict[str, Tensor]) -> float:
        self._guard(self.optimizer.zero_grad)
        loss = self._recipe.loss(self.model, batch, self.step)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise not_finite(self.step)
        self._guard(self._descend, loss)
        return value

    def _descend(self, loss: Tensor) -> None:
        loss.backward()
        self.optimizer.step()


def carry_out(
    task: SliceTask,
    given: Given,
    files: Mapping[str, bytes],
    entry: str,
    *,
    guard: Guard,
    parent: TaskParent,
    notice: Notice = unnoticed,
) -> TaskDone:
    """Load the recipe from the bundle's bytes and work on the rows.

    Args:
        task: What to do.
        given: Rows and states.
        files: The bundle, measured.
        entry: Path of the recipe inside it.
        guard: Runs the recipe's code.
        parent: Told what there is to tell before the end.
        notice: Told of each of the bundle's modules before it runs.

    Raises:
        MalformedError: if a party's rows do not fit their schema; no recipe ran.
        JobError: if the recipe fails.
    """
    settings = task.settings
    torch.set_num_threads(settings.threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    tables = [_table(task, given, place) for place in range(len(task.parts))]
    schemas = [schema_from_plain(part.schema) for part in task.parts]
    for table, schema in zip(tables, schemas, strict=True):
        if table.shape[1] != schema.row_bytes:
            raise MalformedError(
                "rows are not as long as their schema", code="bad-rows"
            )
        demand_rows(table.numpy(), schema)
    recipe = Recipe(files, entry, guard=guard, notice=notice)
    if task.work == "prepare":
        pairs = zip(tables, schemas, strict=True)
        rows = settings.batch_rows
        return TaskDone(statistics=tuple(sum_table(recipe, *p, rows) for p in pairs))
    states = []
    for place, model in enumerate(task.models):
        state = given.states[place] if model.begun else None
        sums = as_tensors(given.statistics) if given.statistics else {}
        training = Training(recipe, settings, state, statistics=sums)
        states.append(_work_on(training, task, place, tables, schemas, parent=parent))
    return TaskDone(states=tuple(states))


def _work_on(
    training: Training,
    task: SliceTask,
    place: int,
    tables: Sequence[Tensor],
    schemas: Sequence[Schema],
    *,
    parent: TaskParent,
) -> TrainingState | None:
    model = task.models[place]
    if task.work == "heldout":
        for number, part in enumerate(model.parts):
            found = training.evaluate(tables[part], schemas[part])
            parent.measured(place, number, found)
        return None

    def after_step() -> None:
        every = task.settings.digest_every
        if every and training.step % every == 0:
            for _ in range(2):
                parent.hand_over(place, training.state())

    def after_window(number: int, total: float) -> None:
        parent.measured(place, number, {LOSS: total})

    if task.work == "train":
        training.train_slice(
            Rows([tables[part] for part in model.parts], schemas[0]),
            [task.parts[part].slice for part in model.parts],
            number=task.slice,
            windows=model.windows,
            after_step=after_step,
            after_window=after_window,
        )
    return training.state()


def _table(task: SliceTask, given: Given, place: int) -> Tensor:
    part = task.parts[place]
    flat = torch.frombuffer(given.rows[place].view, dtype=torch.uint8)
    return flat[: part.rows * part.row_bytes].reshape(part.rows, part.row_bytes)
