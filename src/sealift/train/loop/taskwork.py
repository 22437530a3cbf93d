"""Do one task: the same function in the sandboxed process, in tests and in ``try``.

Of ``prepare`` a task makes sums, which ``build`` may know before training: whole numbers
add up as ``int64``, all others as ``float64``. Names and shapes are those of the first
batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from sealift.codec import MAX_INTEGER
from sealift.data.loader.rowtensors import batch_from_rows
from sealift.data.schema.document import schema_from_plain
from sealift.data.schema.rows import demand_rows
from sealift.data.schema.schema import Schema
from sealift.errors import MalformedError
from sealift.train.loop.faults import unfit
from sealift.train.loop.imports import Guard, Notice, unnoticed
from sealift.train.loop.recipe import Recipe
from sealift.train.loop.statistics import MAX_SUMS
from sealift.train.loop.tasks import (
    Given,
    HandOver,
    ModelDone,
    SliceTask,
    TaskDone,
    TaskModel,
)
from sealift.train.loop.tensors import pack_tensors
from sealift.train.loop.torchstate import as_tensors, tensor_bytes
from sealift.train.loop.training import Rows, Training

MAX_NAME: Final = 64


def sum_table(recipe: Recipe, table: Tensor, schema: Schema, batch_rows: int) -> bytes:
    """What ``prepare`` sums over a table, batch by batch in order, as a blob.

    Args:
        recipe: Has ``prepare``.
        table: ``uint8`` (rows, row_bytes).
        schema: Of the table.
        batch_rows: Rows of one call.

    Raises:
        JobError: if the recipe fails, or returns no sums.
    """
    sums = Sums()
    for part in table.split(batch_rows):
        # A copy: a recipe must not write into the visit's rows.
        sums.add(recipe.prepare(batch_from_rows(part.clone(), schema)))
    return sums.pack()


class Sums:
    """Sums by name, under way."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def add(self, found: Mapping[str, Any]) -> None:
        """Add what ``prepare`` returned for one batch.

        Raises:
            JobError: code ``bad-recipe``.
        """
        new = {name: _exact(name, value) for name, value in found.items()}
        if sum(each.numel() for each in new.values()) > MAX_SUMS:
            raise unfit("many-sums")
        if not self._sums:
            self._sums = {name: torch.zeros_like(each) for name, each in new.items()}
        if {n: each.shape for n, each in new.items()} != {
            n: each.shape for n, each in self._sums.items()
        }:
            raise unfit("sums")
        for name, each in new.items():
            self._sums[name] = self._sums[name] + each

    def pack(self) -> bytes:
        """The sums as a blob.

        Raises:
            JobError: code ``bad-recipe``, if one is not finite or out of its range.
        """
        for each in self._sums.values():
            exact = each.is_floating_point() or bool((each.abs() <= MAX_INTEGER).all())
            if not exact or not bool(torch.isfinite(each).all()):
                raise unfit("other-sums")
        plain = {name: tensor_bytes(each) for name, each in self._sums.items()}
        return pack_tensors(plain)


def _exact(name: Any, value: Any) -> Tensor:
    if type(name) is not str or not name.isidentifier() or len(name) > MAX_NAME:
        raise unfit("sums")
    if type(value) is Tensor and not value.is_complex() and value.numel():
        whole = not value.is_floating_point()
        return value.detach().cpu().to(torch.int64 if whole else torch.float64)
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise unfit("other-sums")
    if isinstance(value, int | float):
        whole = not isinstance(value, float)
        return torch.tensor(value, dtype=torch.int64 if whole else torch.float64)
    raise unfit("sums")


def carry_out(
    task: SliceTask,
    given: Given,
    files: Mapping[str, bytes],
    entry: str,
    *,
    guard: Guard,
    hand_over: HandOver,
    notice: Notice = unnoticed,
) -> TaskDone:
    """Load the recipe from the bundle's bytes and work on the rows.

    Args:
        task: What to do.
        given: Rows and states.
        files: The bundle, measured.
        entry: Path of the recipe inside it.
        guard: Runs the recipe's code.
        hand_over: See ``Workplace.do``.
        notice: Told of each of the bundle's modules before it runs.

    Raises:
        MalformedError: if a party's rows do not fit their schema; no recipe ran.
        JobError: if the recipe fails.
    """
    torch.set_num_threads(task.settings.threads)
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
    return TaskWork(task, given, recipe, hand_over).do(tables, schemas)


class TaskWork:
    """One task under way.

    Args:
        task: What to do.
        given: Rows and states.
        recipe: Loaded.
        hand_over: See ``Workplace.do``.
    """

    def __init__(
        self, task: SliceTask, given: Given, recipe: Recipe, hand_over: HandOver
    ) -> None:
        self._task = task
        self._given = given
        self._recipe = recipe
        self._hand_over = hand_over

    def do(self, tables: Sequence[Tensor], schemas: Sequence[Schema]) -> TaskDone:
        """Do it."""
        if self._task.work == "prepare":
            return self._prepare(tables, schemas)
        return TaskDone(
            models=tuple(
                self._work_on(place, [tables[p] for p in model.parts], schemas)
                for place, model in enumerate(self._task.models)
            )
        )

    def _work_on(
        self, place: int, tables: list[Tensor], schemas: Sequence[Schema]
    ) -> ModelDone:
        model = self._task.models[place]
        training = self._training(place, model)
        if self._task.work == "heldout":
            metrics = (
                training.evaluate(table, schemas[part])
                for table, part in zip(tables, model.parts, strict=True)
            )
            return ModelDone(metrics=tuple(metrics))
        sums: tuple[float, ...] = ()
        if self._task.work == "train":
            sums = self._train(place, training, Rows(tables, schemas[0]))
        return ModelDone(state=training.state(), sums=sums)

    def _train(self, place: int, training: Training, rows: Rows) -> tuple[float, ...]:
        model, every = self._task.models[place], self._task.settings.digest_every

        def after_step(found: Training) -> None:
            if every and found.step % every == 0:
                for _ in range(2):
                    self._hand_over(place, found.state())

        return training.train_slice(
            rows,
            [self._task.parts[part].slice for part in model.parts],
            windows=model.windows,
            after_step=after_step,
        )

    def _training(self, place: int, model: TaskModel) -> Training:
        state = self._given.states[place] if model.begun else None
        statistics = self._given.statistics
        sums = as_tensors(statistics) if statistics else {}
        return Training(self._recipe, self._task.settings, state, statistics=sums)

    def _prepare(self, tables: Sequence[Tensor], schemas: Sequence[Schema]) -> TaskDone:
        batch_rows = self._task.settings.batch_rows
        found = (
            sum_table(self._recipe, table, schema, batch_rows)
            for table, schema in zip(tables, schemas, strict=True)
        )
        return TaskDone(statistics=tuple(found))


def _table(task: SliceTask, given: Given, place: int) -> Tensor:
    part = task.parts[place]
    flat = torch.frombuffer(given.rows[place].view, dtype=torch.uint8)
    return flat[: part.rows * part.row_bytes].reshape(part.rows, part.row_bytes)
