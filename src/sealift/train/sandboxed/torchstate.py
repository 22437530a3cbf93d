"""What torch holds, to bytes and back: a training state, and the sums of ``prepare``.

Tensors go into one blob; the optimizer's other values keep their types in JSON: floats
exactly, tuples as tuples, keys that are no text. Loading is strict, and an optimizer
that does not take its own state back as it gave it is refused. Of ``prepare`` come sums,
which ``build`` may know before training: whole numbers add up as ``int64``, all others as
``float64``. Names and shapes are those of the first batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from sealift import recipes
from sealift.codec import MAX_INTEGER
from sealift.data.loader.rowtensors import batch_from_rows
from sealift.data.schema.schema import Schema
from sealift.train.loop.faults import unfit
from sealift.train.loop.held import Content, pieces_of
from sealift.train.loop.states import (
    ELEMENTS,
    MODEL,
    OPTIMIZER,
    TensorBytes,
    TrainingState,
    pack_tensors,
    parse_tensors,
)
from sealift.train.loop.statistics import MAX_SUMS
from sealift.train.sandboxed.graphrecipe import LoadedRecipe
from sealift.train.sandboxed.imports import Guard
from sealift.train.sandboxed.placement import HERE, DevicePlacement
from sealift.train.sandboxed.schedules import Optimization

MAX_DEPTH: Final = 16
MAX_NAME: Final = 64
_DTYPE_FOR: Final = {
    getattr(torch, name): dtype
    for dtype, (_size, name) in ELEMENTS.items()
    if hasattr(torch, name)
}


Pack = Callable[[Mapping[str, Tensor]], Content]
Load = Callable[[Content, str], dict[str, Tensor]]


def pack_copies(tensors: Mapping[str, Tensor]) -> bytes:
    """One blob, in memory of its own."""
    return pack_tensors({name: tensor_bytes(each) for name, each in tensors.items()})


def take_state(
    model: nn.Module,
    optimizer: Optimization,
    step: int,
    guard: Guard,
    pack: Pack = pack_copies,
) -> TrainingState:
    """The state, copied out; the guard runs what may be a recipe's own.

    Args:
        model: Has weights and buffers.
        optimizer: Of the model, with its schedulers.
        step: So many were made.
        guard: Runs what may be a recipe's own.
        pack: Makes a blob of named tensors.

    Raises:
        JobError: code ``bad-recipe``, if it holds something that cannot be carried.
    """
    own = carried_tensors(model, guard)
    tree, kept = flatten(guard(optimizer.state_dict))
    tensors = {MODEL + name: each for name, each in own.items()} | kept
    return TrainingState(step, pack(tensors), tree)


def give_state(
    model: nn.Module,
    optimizer: Optimization,
    state: TrainingState,
    guard: Guard,
    load: Load | None = None,
) -> None:
    """Load the state, strictly.

    Args:
        model: As the recipe has built it.
        optimizer: Of the model, with its schedulers.
        state: Of the same recipe.
        guard: Runs what may be a recipe's own.
        load: Takes the tensors out of the state's blob.

    Raises:
        JobError: code ``bad-recipe``, if it does not fit what the recipe has built.
    """
    found = (load or as_tensors)(state.tensors, "")
    _load_weights(model, found, guard)
    guard(optimizer.load_state_dict, _unflatten(json.loads(state.tree), found))
    tree, kept = flatten(guard(optimizer.state_dict))
    if tree != state.tree or any(_form(found[at]) != _form(kept[at]) for at in kept):
        raise unfit("restore")


def give_weights(
    model: nn.Module, state: TrainingState, guard: Guard, load: Load | None = None
) -> None:
    """Load what is measured, strictly: the optimizer's part is not even read.

    Raises:
        JobError: code ``bad-recipe``, if it does not fit what the recipe has built.
    """
    _load_weights(model, (load or as_tensors)(state.tensors, MODEL), guard)


def _load_weights(model: nn.Module, found: Mapping[str, Tensor], guard: Guard) -> None:
    own = {
        name.removeprefix(MODEL): each
        for name, each in found.items()
        if name.startswith(MODEL)
    }
    if _forms(own) != _forms(carried_tensors(model, guard)):
        raise unfit("restore")
    guard(partial(model.load_state_dict, own, strict=not recipes.has_assets()))


def frozen_names(model: nn.Module, guard: Guard) -> frozenset[str]:
    """Parameters that came with the recipe and are not trained; none without assets.

    Every process builds them alike, so they are in no state, no mean and no model that
    leaves.
    """
    if not recipes.has_assets():
        return frozenset()
    named = guard(lambda: list(model.named_parameters(remove_duplicate=False)))
    return frozenset(name for name, each in named if not each.requires_grad)


def carried_tensors(model: nn.Module, guard: Guard) -> dict[str, Tensor]:
    """What of a model goes on: its state, but for what is frozen and came with the recipe.

    Raises:
        JobError: code ``bad-recipe``.
    """
    own, frozen = _model_tensors(guard(model.state_dict)), frozen_names(model, guard)
    return {name: each for name, each in own.items() if name not in frozen}


def _model_tensors(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """A model's state: named tensors and nothing else.

    Raises:
        JobError: code ``bad-recipe``.
    """
    if not all(type(name) is str and _is_plain(each) for name, each in state.items()):
        raise unfit("model-state")
    return dict(state)


def as_tensors(blob: Content, prefix: str = "") -> dict[str, Tensor]:
    """A blob's tensors whose names begin so, in memory of their own."""
    parsed = parse_tensors(blob).items()
    return {n: as_tensor(each) for n, each in parsed if n.startswith(prefix)}


def as_tensor(parsed: TensorBytes) -> Tensor:
    """One tensor, in memory of its own."""
    tensor = torch.empty(parsed.shape, dtype=getattr(torch, ELEMENTS[parsed.dtype][1]))
    raw, at = tensor.reshape(-1).view(torch.uint8).numpy(), 0
    for piece in pieces_of(parsed.content) if len(raw) else ():
        raw[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
        at += len(piece)
    return tensor


def form_of(tensor: Tensor) -> TensorBytes:
    """What a blob's header says of a tensor; without its content."""
    return TensorBytes(_DTYPE_FOR[tensor.dtype], tuple(tensor.shape), b"")


def tensor_bytes(tensor: Tensor) -> TensorBytes:
    """A tensor's bytes, as a view where it lies on the CPU in one piece."""
    plain = tensor.detach().cpu().contiguous()
    content = memoryview(plain.reshape(-1).view(torch.uint8).numpy())
    return TensorBytes(_DTYPE_FOR[plain.dtype], tuple(plain.shape), content)


def flatten(value: Any) -> tuple[bytes, dict[str, Tensor]]:
    """An optimizer's state as JSON and the tensors that it refers to.

    Raises:
        JobError: code ``bad-recipe``.
    """
    kept: dict[str, Tensor] = {}
    plain = _flatten(value, kept, MAX_DEPTH)
    return json.dumps(plain, separators=(",", ":")).encode(), kept


def _flatten(value: Any, kept: dict[str, Tensor], depth: int) -> Any:
    """Each value as a pair: the name of its kind, and what it is."""
    if depth == 0:
        raise unfit("optimizer-state")
    if _is_plain(value):
        name = f"{OPTIMIZER}{len(kept)}"
        kept[name] = value
        return ["tensor", name]
    if value is None or type(value) in (bool, str):
        return ["plain", value]
    if isinstance(value, int):
        return ["int", str(int(value))]
    if isinstance(value, float):
        return ["float", float(value).hex()]
    if isinstance(value, Mapping):
        pairs = value.items()
        return [
            "dict",
            [[_flatten(p, kept, depth - 1) for p in pair] for pair in pairs],
        ]
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return [kind, [_flatten(each, kept, depth - 1) for each in value]]
    raise unfit("optimizer-state")


def _unflatten(plain: Any, kept: Mapping[str, Tensor]) -> Any:
    kind, value = plain
    match kind:
        case "tensor":
            return kept[value]
        case "plain":
            return value
        case "int":
            return int(value)
        case "float":
            return float.fromhex(value)
        case "dict":
            return {_unflatten(k, kept): _unflatten(v, kept) for k, v in value}
        case "list":
            return [_unflatten(each, kept) for each in value]
        case _:
            return tuple(_unflatten(each, kept) for each in value)


def _is_plain(value: Any) -> bool:
    known = type(value) in (Tensor, nn.Parameter, nn.Buffer)
    return known and value.layout == torch.strided and value.dtype in _DTYPE_FOR


def _forms(tensors: Mapping[str, Tensor]) -> dict[str, tuple[Any, ...]]:
    return {name: _form(each) for name, each in tensors.items()}


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.shape)


def sum_table(
    recipe: LoadedRecipe,
    table: Tensor,
    schema: Schema,
    batch_rows: int,
    placement: DevicePlacement = HERE,
) -> bytes:
    """What ``prepare`` sums over a table, batch by batch in order, as a blob.

    Args:
        recipe: Has ``prepare``.
        table: ``uint8`` (rows, row_bytes).
        schema: Of the table.
        batch_rows: Rows of one call.
        placement: Where it computes; sums are added up on the CPU.

    Raises:
        JobError: if the recipe fails; ``bad-recipe``, if it returns no sums, or one that
            is not finite or out of its range.
    """
    sums: dict[str, Tensor] = {}
    # Copies: a recipe must not write into the visit's rows.
    parts = (part.clone() for part in table.split(batch_rows))
    for batch in placement.batches(batch_from_rows(part, schema) for part in parts):
        found = recipe.prepare(batch)
        new = {name: _exact(name, value) for name, value in found.items()}
        if sum(each.numel() for each in new.values()) > MAX_SUMS:
            raise unfit("many-sums")
        sums = sums or {name: torch.zeros_like(each) for name, each in new.items()}
        if {n: e.shape for n, e in new.items()} != {
            n: e.shape for n, e in sums.items()
        }:
            raise unfit("sums")
        sums = {name: sums[name] + each for name, each in new.items()}
    for total in sums.values():
        exact = total.is_floating_point() or bool((total.abs() <= MAX_INTEGER).all())
        if not exact or not bool(torch.isfinite(total).all()):
            raise unfit("other-sums")
    return pack_tensors({name: tensor_bytes(total) for name, total in sums.items()})


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
