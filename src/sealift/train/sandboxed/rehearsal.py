"""Run a recipe on synthetic rows of a schema: what ``sealift try`` has its sandbox do.

Needs no agreement, no key and no row of anybody: the rows come from the schema alone and
mean nothing. The loop is the one of a real run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sealift.data.loader.rowtensors import batch_from_rows
from sealift.data.schema.rows import demand_rows
from sealift.data.schema.schema import Field, Schema
from sealift.train.loop.faults import unfit
from sealift.train.loop.tasks import ONE_ROW, Rehearsal, SliceId
from sealift.train.sandboxed.graphrecipe import LoadedRecipe
from sealift.train.sandboxed.recipe import pack_answer
from sealift.train.sandboxed.torchstate import as_tensors, sum_table
from sealift.train.sandboxed.training import GroupRows, Training, stream_seed
from sealift.travel.settings import TrainingSettings

DEFAULT_SPAN = 3.0  # floats without bounds lie within +-3, as standardised values do


def synthetic_rows(schema: Schema, rows: int, *, seed: int) -> Tensor:
    """Random rows within the schema's bounds: ``uint8`` (rows, row_bytes)."""
    buffer = torch.zeros((rows, schema.row_bytes), dtype=torch.uint8)
    for each, offset in zip(schema.fields, schema.offsets, strict=True):
        generator = torch.Generator()
        generator.manual_seed(stream_seed(seed, "synthetic", each.name))
        column = _column(each, rows, generator).contiguous()
        raw = column.view(torch.uint8).reshape(rows, each.size_bytes)
        buffer[:, offset : offset + each.size_bytes] = raw
    return buffer


def _column(field: Field, rows: int, generator: torch.Generator) -> Tensor:
    shape = (rows, field.elements)
    dtype: torch.dtype = getattr(torch, field.dtype)
    low, high = field.bounds
    if field.element.kind == "float":
        least = -DEFAULT_SPAN if low is None else low
        most = max(DEFAULT_SPAN, least + 1) if high is None else high
        uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
        return (least + uniform * (most - least)).to(dtype).clamp(least, most)
    if field.element.kind == "bool":
        return torch.randint(0, 2, shape, generator=generator).to(torch.bool)
    lowest = 0 if low is None else int(low)
    highest = min(127, int(field.element.highest)) if high is None else int(high)
    highest = max(lowest, highest)
    return torch.randint(lowest, highest + 1, shape, generator=generator).to(dtype)


SCOPE = "synthetic"
_COMPARED = 4  # steps of a recipe and of its graph
_ROWS_ALONE = 8  # that are measured one by one: a measure may depend on a label


@dataclass(frozen=True, slots=True)
class Asked:
    """What a model is asked when it is served, and what its answers hold."""

    inputs: Schema
    outputs: Schema


def rehearse(
    recipe: LoadedRecipe,
    schema: Schema,
    settings: TrainingSettings,
    *,
    rows: int,
    steps: int,
    clock: Callable[[], float],
    asked: Asked | None = None,
    begin: Callable[[str], None] = lambda _: None,
) -> Rehearsal:
    """Train ``steps`` steps on ``rows`` synthetic rows, then evaluate on them.

    A recipe with ``prepare`` sums over them first; one without ``build`` does no more.
    Visits may end with a batch of one row, so that is tried as well, unless the settings
    drop it; a batch that is measured may have one row in any case; and what is ``asked`` is answered, once training is over.

    Args:
        begin: Told what is tried next, in words.

    Raises:
        JobError: if the loss is not finite, or the recipe does not fit; ``bad-recipe``, if a
            measure is no finite number, or not of every batch.
    """
    torch.set_num_threads(settings.threads)
    table = synthetic_rows(schema, rows, seed=settings.seed)
    demand_rows(table.numpy(), schema)
    statistics: dict[str, Tensor] = {}
    if recipe.defines("prepare"):
        statistics = as_tensors(sum_table(recipe, table, schema, settings.batch_rows))
    forms = {name: _form(each) for name, each in statistics.items()}
    if not recipe.defines("build"):
        return Rehearsal(sums=forms)
    training = Training(recipe, settings, statistics=statistics)
    losses, seconds = [], []
    for step in range(steps):
        first = step * settings.batch_rows % rows
        batch = table[first : first + settings.batch_rows]
        started = clock()
        place = [SliceId(step, SCOPE, first)]
        sums = training.train_slice(GroupRows([batch], schema), place)
        seconds.append(clock() - started)
        losses.append(sums[0] / len(batch))
    if not settings.drop_last:
        begin(ONE_ROW)
        training.train_slice(GroupRows([table[:1]], schema), [SliceId(steps, SCOPE, 0)])
    begin("its evaluation")
    later = sorted(seconds[1:]) or seconds
    metrics = training.evaluate(table, schema)
    batch = training.evaluate(table[: settings.batch_rows], schema)
    begin("the evaluation of one row")
    alone = (training.evaluate(each, schema) for each in table[:_ROWS_ALONE].split(1))
    _demand_alike(metrics, batch, *alone)
    if asked is not None:
        begin("an answer")
        _answer(
            recipe, training.model, asked, min(rows, settings.batch_rows), settings.seed
        )
    return Rehearsal(
        parameters=training.count_parameters(),
        steps=steps,
        losses=(losses[0], losses[-1]),
        step_s=later[len(later) // 2],
        metrics=metrics,
        sums=forms,
    )


def _demand_alike(metrics: Mapping[str, float], *others: Mapping[str, float]) -> None:
    """Demand measures that a run can list: finite, and those of some batches in all of them."""
    if not all(math.isfinite(v) for each in (metrics, *others) for v in each.values()):
        raise unfit("measures-infinite")
    # A table that has a zero in each place is left out.
    names, *found = ({n for n in e if not n.endswith("]")} for e in (metrics, *others))
    if any(each != names for each in found):
        raise unfit("measures-differ")


def find_difference(
    program: LoadedRecipe,
    graph: LoadedRecipe,
    schema: Schema,
    settings: TrainingSettings,
) -> str:
    """Train a recipe and its graph alike on synthetic rows: where they differ, or nothing.

    What writes a graph down follows tensors alone. Gradients that are switched off, hooks,
    functions with a gradient of their own, and numbers that change from step to step leave
    no trace in it; so what both make of the same rows is compared.
    """
    torch.set_num_threads(settings.threads)
    count = settings.batch_rows
    table = synthetic_rows(schema, _COMPARED * count, seed=settings.seed + 1)
    if graph.defines("prepare"):
        sums = [
            as_tensors(sum_table(e, table, schema, count)) for e in (program, graph)
        ]
        if not _alike(*sums):
            return "the sums of prepare"
    if not graph.defines("build"):
        return ""
    both = [Training(each, settings) for each in (program, graph)]
    before = _state(both[0].model)
    for step in range(_COMPARED):
        last = step == _COMPARED - 1 and not settings.drop_last
        size = max(1, count // 2) if last else count
        batch = table[step * count : step * count + size]
        place = [SliceId(step, SCOPE, step * count)]
        losses = [e.train_slice(GroupRows([batch], schema), place) for e in both]
        if not math.isclose(losses[0][0], losses[1][0], rel_tol=1e-3, abs_tol=1e-5):
            return f"the loss of step {step + 1}"
    states = [_state(each.model) for each in both]
    if before.keys() != states[0].keys() or states[0].keys() != states[1].keys():
        return "the names of the model's tensors"
    for name, each in before.items():
        moved, other = states[0][name] - each, states[1][name] - each
        most = 1e-2 * float(moved.norm()) + 1e-6 * float(each.norm())
        if not float((moved - other).norm()) <= most:
            return f"{name} after {_COMPARED} steps"
    measures = [each.evaluate(table, schema) for each in both]
    if not _alike(*({n: torch.tensor(v) for n, v in e.items()} for e in measures)):
        return "the measures"
    return (
        ""
        if _answer_alike(both, (program, graph), table[:count], schema)
        else "the answers"
    )


def _answer_alike(
    both: Sequence[Training],
    recipes: Sequence[LoadedRecipe],
    table: Tensor,
    schema: Schema,
) -> bool:
    if not recipes[1].defines("predict"):
        return True
    found = []
    for each, recipe in zip(both, recipes, strict=True):
        recipe.guard(each.model.eval)
        with torch.inference_mode():
            answer = recipe.predict(each.model, batch_from_rows(table.clone(), schema))
        found.append(answer if isinstance(answer, dict) else {"": answer})
    return _alike(*found)


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {n: each.detach().double().clone() for n, each in model.state_dict().items()}


def _alike(own: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return own.keys() == other.keys() and all(
        each.shape == other[name].shape
        and torch.allclose(
            each.double(), other[name].double(), rtol=1e-3, atol=1e-5, equal_nan=True
        )
        for name, each in own.items()
    )


def _answer(
    recipe: LoadedRecipe, model: nn.Module, asked: Asked, rows: int, seed: int
) -> None:
    """As a server does: many rows, then one."""
    recipe.guard(model.eval)
    table = synthetic_rows(asked.inputs, rows, seed=seed)
    for part in (table, table[:1]):
        with torch.inference_mode():
            found = recipe.predict(model, batch_from_rows(part.clone(), asked.inputs))
        pack_answer(found, asked.outputs, len(part))


def _form(total: Tensor) -> str:
    sizes = "x".join(map(str, total.shape)) or "1"
    return f"{sizes} {'whole' if total.dtype == torch.int64 else 'float'}"
