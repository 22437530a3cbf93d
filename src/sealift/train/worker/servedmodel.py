"""A worker that answers with a model until its parent hangs up; torch, in the sandbox.

The parent asks for one step at a time: a batch to predict, or the next tokens of one
generation, so that nothing runs that nobody waits for. Questions lie in memory that
this process can only read and are copied first; answers go into memory that the parent
copies out of and checks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sealift.data.loader.rowtensors import batch_from_rows
from sealift.data.schema.schema import Field, Schema
from sealift.errors import PeerError, SealiftError
from sealift.train.loop.faults import Containment, Fault, describe, unfit
from sealift.train.loop.recipe import Recipe
from sealift.train.loop.torchstate import as_tensors
from sealift.train.output.modelform import Fields, form_from_plain
from sealift.train.sandbox.inventory import TALK
from sealift.train.worker.memory import (
    map_area,
    map_copy,
    map_shared,
    read_bundle_blob,
)
from sealift.train.worker.messages import (
    MAX_ORDER_BYTES,
    GoOn,
    Importing,
    ServeAnswer,
    ServeOrder,
    ServeStep,
    from_bytes,
    read_framed,
    to_bytes,
    write_framed,
)

_END = object()


class ServedModel:
    """A model with everything that it needs, mapped while that is possible.

    Args:
        order: What to serve.
        files: Descriptors: bundle, model, questions, answers.
    """

    def __init__(self, order: ServeOrder, files: Sequence[int]) -> None:
        bundle, model, room, area = files
        self._order = order
        self._turn = threading.Lock()  # a recipe may import in a thread of its own
        self._room = map_shared(room, order.room)
        self._area = map_area(area, order.area)
        self._files = read_bundle_blob(map_copy(bundle, order.bundle))
        self._state = map_copy(model, order.model)
        self._form = form_from_plain(order.form)
        self._streams: dict[int, tuple[Iterator[Any], int]] = {}

    def do(self) -> None:
        """Load it, say so, and answer until the parent hangs up."""
        try:
            self._load()
        except BaseException as error:
            return self._say(_fault(error))
        self._say(ServeAnswer(0))
        while True:
            try:
                raw = read_framed(TALK, max_bytes=MAX_ORDER_BYTES)
            except PeerError:
                return None
            self._say(self._answer(raw))

    def _load(self) -> None:
        torch.set_num_threads(self._order.threads)
        guard = Containment(self._files, text=True)
        self._recipe = Recipe(
            self._files, self._order.entry, guard=guard, notice=self._notice
        )
        self._model = self._build()
        state = as_tensors(bytes(self._state))
        self._state.release()
        _give(self._recipe, self._model, state)

    def _build(self) -> nn.Module:
        try:
            return self._recipe.build()
        except SealiftError:
            if self._recipe.takes_statistics:
                raise unfit("no-statistics") from None
            raise

    def _answer(self, raw: bytes) -> object:
        try:
            step = from_bytes(raw, ServeStep)
            assert isinstance(step, ServeStep)
            with torch.inference_mode():
                return ServeAnswer(self._step(step))
        except BaseException as error:
            return _fault(error)

    def _step(self, step: ServeStep) -> int:
        match step.work:
            case "predict":
                assert self._form.outputs is not None
                found = self._recipe.predict(self._model, self._batch(step.rows))
                return self._put(found, self._form.outputs, step.rows)
            case "begin":
                batch = self._batch(step.rows)
                stream = self._recipe.generate(self._model, batch)
                self._streams[step.stream] = (stream, step.rows)
                return 0
            case "next":
                return self._next(step.stream)
            case _:
                self._streams.pop(step.stream, None)
                return 0

    def _next(self, number: int) -> int:
        stream, rows = self._streams[number]
        assert self._form.tokens is not None
        found = self._recipe.guard(next, stream, _END)
        if found is _END:
            del self._streams[number]
            return 0
        return self._put(found, self._form.tokens, rows)

    def _batch(self, rows: int) -> dict[str, Tensor]:
        schema = self._form.inputs
        content = bytearray(self._room[: rows * schema.row_bytes])
        buffer = torch.frombuffer(content, dtype=torch.uint8)
        return batch_from_rows(buffer.view(rows, schema.row_bytes), schema)

    def _put(self, found: Any, fields: Fields, rows: int) -> int:
        packed = _pack_answer(found, fields.schema, rows)
        content = memoryview(packed.view(-1).numpy())
        if len(content) > len(self._area):
            raise unfit("state-bytes")
        self._area[: len(content)] = content
        return rows

    def _notice(self, path: str) -> None:
        """Tell the parent what is about to run, and wait until it was measured."""
        with self._turn:
            self._say(Importing(path))
            raw = read_framed(TALK, max_bytes=MAX_ORDER_BYTES)
        from_bytes(raw, GoOn)

    def _say(self, message: object) -> None:
        write_framed(TALK, to_bytes(message))


def _pack_answer(found: Any, schema: Schema, rows: int) -> Tensor:
    """Tensors by name as rows: ``uint8`` of shape ``(rows, row_bytes)``.

    Raises:
        JobError: code ``bad-recipe``, if they are not what the form says.
    """
    if isinstance(found, Tensor) and len(schema.fields) == 1:
        found = {schema.fields[0].name: found}
    if not isinstance(found, Mapping):
        raise unfit("answer")
    packed = torch.zeros(rows, schema.row_bytes, dtype=torch.uint8)
    for field, offset in zip(schema.fields, schema.offsets, strict=True):
        column = _column(found.get(field.name), field, rows)
        place = packed[:, offset : offset + field.size_bytes]
        place.view(column.dtype)[:] = column
    return packed


def _column(found: Any, field: Field, rows: int) -> Tensor:
    """The field's elements, one row each; kinds of numbers are never mixed up."""
    wanted = getattr(torch, field.dtype)
    # A subclass would bring methods of its own to where nothing contains them.
    if type(found) is not Tensor or tuple(found.shape) != (rows, *field.shape):
        raise unfit("answer")
    if found.is_complex() or found.is_floating_point() != wanted.is_floating_point:
        raise unfit("answer")
    if (found.dtype == torch.bool) != (wanted == torch.bool):
        raise unfit("answer")
    return found.detach().cpu().to(wanted).reshape(rows, -1)


def _give(recipe: Recipe, model: nn.Module, state: Mapping[str, Tensor]) -> None:
    own = recipe.guard(model.state_dict)
    forms = {name: (each.dtype, tuple(each.shape)) for name, each in own.items()}
    if forms != {name: (e.dtype, tuple(e.shape)) for name, e in state.items()}:
        raise unfit("model-differs")
    recipe.guard(model.load_state_dict, dict(state))
    recipe.guard(model.eval)


def _fault(error: BaseException) -> Fault:
    if isinstance(error, SealiftError):
        return describe(error)
    return Fault(kind="memory" if isinstance(error, MemoryError) else "error")
