"""One task, done: the same function in the sandboxed process and in tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn
from torch.utils import deterministic

from sealift.data.schema.document import schema_from_plain
from sealift.data.schema.rows import demand_rows
from sealift.data.schema.schema import Schema
from sealift.errors import MalformedError, require_value
from sealift.train.loop.faults import unfit
from sealift.train.loop.states import TrainingState
from sealift.train.loop.tasks import (
    LOSS,
    SliceId,
    SliceTask,
    StepForm,
    TaskDone,
    TaskInputs,
    TaskParent,
)
from sealift.train.sandboxed.gradients import Room, private_room
from sealift.train.sandboxed.graphrecipe import (
    GraphRecipe,
    LoadedRecipe,
    load_recipe,
)
from sealift.train.sandboxed.imports import Guard, Notice, unnoticed
from sealift.train.sandboxed.placement import HERE, DevicePlacement
from sealift.train.sandboxed.privatesteps import SharedNoise
from sealift.train.sandboxed.rehearsal import SCOPE, synthetic_rows
from sealift.train.sandboxed.shelf import COPIES, Shelf
from sealift.train.sandboxed.stepping import OutsourcedSteps, StepLoop
from sealift.train.sandboxed.torchstate import as_tensors, sum_table
from sealift.train.sandboxed.training import GroupRows, LocalSteps, MakesSteps, Training
from sealift.travel.settings import TrainingSettings


def carry_out(
    task: SliceTask,
    given: TaskInputs,
    files: Mapping[str, bytes],
    entry: str,
    *,
    guard: Guard,
    parent: TaskParent,
    notice: Notice = unnoticed,
    room: Room = private_room,
    shared: Tensor | None = None,
    placement: DevicePlacement = HERE,
    shelf: Shelf = COPIES,
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
        room: Where gradients lie that are added up.
        shared: Memory of the device where they lie instead, which the parent maps.
        placement: Where to compute.
        shelf: Where states come from and go to.

    Raises:
        MalformedError: if a party's rows do not fit their schema; no recipe ran.
        UnavailableError: ``no-device``, the same.
        JobError: if the recipe fails.
    """
    settings = task.settings
    _begin(settings, placement)
    tables = [_table(task, given, place) for place in range(len(task.parts))]
    schemas = [schema_from_plain(part.schema) for part in task.parts]
    for table, schema in zip(tables, schemas, strict=True):
        if table.shape[1] != schema.row_bytes:
            raise MalformedError(
                "the rows do not have the length that their schema gives",
                code="bad-rows",
            )
        demand_rows(table.numpy(), schema)
    recipe = load_recipe(files, entry, guard=guard, notice=notice)
    if isinstance(recipe, GraphRecipe):
        _check_fits(recipe, task)
    if task.work == "prepare":
        pairs = zip(tables, schemas, strict=True)
        rows = settings.batch_rows
        sums_of = partial(sum_table, recipe, batch_rows=rows, placement=placement)
        return TaskDone(statistics=tuple(sums_of(*each) for each in pairs))
    convert = _conversion(task, parent, guard)
    if task.work == "rehearse":
        for form in task.forms:
            schema = schema_from_plain(form.schema)
            table = synthetic_rows(schema, form.rows, seed=settings.seed)
            _rehearse(recipe, task, form, table, convert=convert, placement=placement)
        return TaskDone()
    if task.together is not None and task.private is None:
        sums = as_tensors(given.statistics) if given.statistics else {}
        training = Training(
            recipe,
            settings,
            given.states[0],
            statistics=sums,
            placement=placement,
            shelf=shelf,
        )
        rows_of = [
            GroupRows([tables[part] for part in model.parts], schemas[model.parts[0]])
            if model.parts
            else None
            for model in task.models
        ]
        with StepLoop(
            training, task, given, rows_of, parent=parent, room=room, shared=shared
        ) as loop:
            shelf.loaded()
            return TaskDone(states=loop.run())
    states = []
    for place, model in enumerate(task.models):
        state = given.states[place] if model.begun else None
        sums = as_tensors(given.statistics) if given.statistics else {}
        training = Training(
            recipe,
            settings,
            state,
            statistics=sums,
            placement=placement,
            convert=convert,
            shelf=shelf,
            trains=task.work != "heldout",
        )
        noise = _shared_noise(training, task, state, parent=parent, room=room)
        if task.work == "train" and place == len(task.models) - 1:
            shelf.loaded()
        states.append(
            _work_on(training, task, place, tables, schemas, parent=parent, noise=noise)
        )
    return TaskDone(states=tuple(states))


def _check_fits(recipe: GraphRecipe, task: SliceTask) -> None:
    """Refuse what a list of operations cannot do, before anything is computed."""
    recipe.demand_room(task.settings.batch_rows)
    if task.outsourced:
        raise unfit("graph-outsourced")


# As many rows as a step will have: libraries choose by sizes, and the heap grows to what
# a step takes. They need not differ, which would take as long as the step.
_DISTINCT_ROWS: Final = 8


def rehearse_beforehand(
    task: SliceTask,
    files: Mapping[str, bytes],
    entry: str,
    *,
    guard: Guard,
    notice: Notice,
    placement: DevicePlacement,
    is_enough: Callable[[], bool],
) -> None:
    """Have libraries load, on synthetic rows, what the steps of a later task need of them.

    The recipe is loaded twice: one that cannot be would fail in the task, which loads it again.
    No more is begun once it is enough, as the task is there.

    Raises:
        UnavailableError: ``no-device``, ``no-memory``.
        JobError: if the recipe fails.
    """
    _begin(task.settings, placement)
    if is_enough():
        return
    recipe = load_recipe(files, entry, guard=guard, notice=notice)
    if isinstance(recipe, GraphRecipe):
        _check_fits(recipe, task)
    for form in task.forms:
        if is_enough():
            break
        schema = schema_from_plain(form.schema)
        seed = task.settings.seed
        few = synthetic_rows(schema, min(form.rows, _DISTINCT_ROWS), seed=seed)
        rows = few.repeat(-(-form.rows // len(few)), 1)[: form.rows]
        with placement.beside_a_task():
            _rehearse(recipe, task, form, rows, convert=_here, placement=placement)
    load_recipe(files, entry, guard=guard, notice=notice)


def _begin(settings: TrainingSettings, placement: DevicePlacement) -> None:
    placement.begin()
    torch.set_num_threads(settings.threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    deterministic.fill_uninitialized_memory = False  # what reads it is a recipe's bug


Convert = Callable[[nn.Module], MakesSteps]


def _here(_model: nn.Module) -> MakesSteps:
    return LocalSteps()


def _conversion(task: SliceTask, parent: TaskParent, guard: Guard) -> Convert:
    if not task.outsourced:
        return _here
    return partial(
        OutsourcedSteps,
        require_value(parent.products, "whoever outsources has somebody to ask"),
        guard,
    )


def _rehearse(
    recipe: LoadedRecipe,
    task: SliceTask,
    form: StepForm,
    table: Tensor,
    *,
    convert: Convert,
    placement: DevicePlacement,
) -> None:
    """One step of a form, of a fresh model, on synthetic rows of its schema."""
    settings, schema = task.settings, schema_from_plain(form.schema)
    sums: dict[str, Tensor] = {}
    if recipe.defines("prepare"):
        found = sum_table(
            recipe, table, schema, batch_rows=settings.batch_rows, placement=placement
        )
        sums = as_tensors(found)
    if not recipe.defines("build"):
        return
    training = Training(
        recipe, settings, statistics=sums, placement=placement, convert=convert
    )
    if form.phase == "train":
        training.train_slice(GroupRows([table], schema), [SliceId(0, SCOPE, 0)])
    else:
        training.evaluate(table, schema)


def _shared_noise(
    training: Training,
    task: SliceTask,
    state: TrainingState | None,
    *,
    parent: TaskParent,
    room: Room,
) -> SharedNoise | None:
    """What adds up private steps with all ranks; None where each adds its own noise."""
    if task.private is None or task.together is None:
        return None
    return SharedNoise(
        task.together,
        require_value(state, "a model is built before it is trained"),
        training.model,
        guard=training.guard,
        parent=parent,
        room=room,
    )


def _work_on(
    training: Training,
    task: SliceTask,
    place: int,
    tables: Sequence[Tensor],
    schemas: Sequence[Schema],
    *,
    parent: TaskParent,
    noise: SharedNoise | None,
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
        rows = GroupRows([tables[part] for part in model.parts], schemas[0])
        slices = [task.parts[part].slice for part in model.parts]
        if task.private is not None:
            steps, beside = sum(model.windows), 0
            if task.together is not None:
                beside = task.together.steps(task.settings.batch_rows) - steps
            training.train_privately(
                rows,
                slices,
                task.private,
                steps=steps,
                beside=beside,
                shared=noise,
                until=task.until,
                after_step=after_step,
            )
        else:
            training.train_slice(
                rows,
                slices,
                number=task.slice,
                until=task.until,
                windows=model.windows,
                after_step=after_step,
                after_window=after_window,
            )
    return training.state(ends=True, used_up=True)


def _table(task: SliceTask, given: TaskInputs, place: int) -> Tensor:
    part = task.parts[place]
    flat = torch.frombuffer(given.rows[place].view, dtype=torch.uint8)
    return flat[: part.rows * part.row_bytes].reshape(part.rows, part.row_bytes)
