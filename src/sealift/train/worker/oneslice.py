"""A worker: one task, one recipe, then the end of the process and all its memory."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

from sealift.errors import MalformedError, SealiftError
from sealift.train.loop.containment import Containment
from sealift.train.loop.faults import Fault, describe, unfit
from sealift.train.loop.states import TrainingState
from sealift.train.loop.tasks import Given, TaskDone
from sealift.train.loop.taskwork import carry_out
from sealift.train.sandbox.confine import (
    Confinement,
    confine_worker,
    keep_descriptors,
)
from sealift.train.sandbox.inventory import TALK
from sealift.train.sandbox.places import CACHES
from sealift.train.worker.exits import NOT_CONFINED
from sealift.train.worker.mappings import map_area, map_copy, read_bundle_blob
from sealift.train.worker.messages import (
    MAX_ORDER_BYTES,
    Assignment,
    Done,
    DoneModel,
    GoOn,
    Handed,
    Importing,
    ServeOrder,
    from_bytes,
    size_of,
    to_bytes,
)
from sealift.train.worker.servedmodel import ServedModel
from sealift.train.worker.wire import read_framed, write_framed


class MappedRows:
    """Rows of a visit, mapped to read; nobody is handed them on."""

    descriptor = -1

    def __init__(self, descriptor: int, length: int) -> None:
        self.view = map_copy(descriptor, length)


def run_worker(
    descriptors: Sequence[int],
    confinement: Confinement,
    places: Sequence[str],
    memory_bytes: int,
) -> NoReturn:
    """Do the one task of this process, and end it."""
    try:
        talk, text, *files = descriptors
        raw = read_framed(talk, max_bytes=MAX_ORDER_BYTES)
        order = from_bytes(raw, Assignment, ServeOrder, max_bytes=MAX_ORDER_BYTES)
        work = _take_order(order, files)
        keep_descriptors(talk, text)
        confine_worker(confinement, places, memory_bytes)
        if "namespaces" in confinement.parts:  # without, no place can be written
            os.environ.update(CACHES)
    except BaseException:
        os._exit(NOT_CONFINED)
    work.do()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(0)


def _take_order(order: object, files: Sequence[int]) -> Assigned | ServedModel:
    if isinstance(order, ServeOrder):
        return ServedModel(order, files)
    assert isinstance(order, Assignment)
    return Assigned(order, files)


class Assigned:
    """An assignment with everything that it needs, mapped while that is possible."""

    def __init__(self, order: Assignment, files: Sequence[int]) -> None:
        bundle, states, area, *rows = files
        self._order = order
        self._turn = threading.Lock()  # a recipe may import in a thread of its own
        self._area = map_area(area, order.area)
        self._files = read_bundle_blob(map_copy(bundle, order.bundle))
        parts = zip(rows, order.task.parts, strict=True)
        self._given = _read_given(
            order, states, [MappedRows(each, p.rows * p.row_bytes) for each, p in parts]
        )

    def do(self) -> None:
        """Do it, and say how it went."""
        answer: object
        try:
            done = carry_out(
                self._order.task,
                self._given,
                self._files,
                self._order.entry,
                guard=Containment(self._files, text=True),
                hand_over=self._hand_over,
                notice=lambda path: self._ask(Importing(path)),
            )
            answer = self._put(done)
        except SealiftError as error:
            answer = describe(error)
        except MemoryError:
            answer = Fault(kind="memory")
        except BaseException:  # whatever a recipe's objects did outside of their guard
            answer = Fault(kind="error")
        write_framed(TALK, to_bytes(answer))

    def _hand_over(self, model: int, state: TrainingState) -> None:
        self._write(0, state)
        self._ask(Handed(model, size_of(state)))

    def _ask(self, message: Handed | Importing) -> None:
        """Tell the parent, and wait until it has done its part."""
        with self._turn:
            write_framed(TALK, to_bytes(message))
            raw = read_framed(TALK, max_bytes=MAX_ORDER_BYTES)
        from_bytes(raw, GoOn)

    def _put(self, done: TaskDone) -> Done:
        at, models = 0, []
        for each in done.models:
            if each.state is not None:
                at = self._write(at, each.state)
            size = None if each.state is None else size_of(each.state)
            metrics = tuple(_finite(found) for found in each.metrics)
            models.append(DoneModel(size, each.sums, metrics))
        for blob in done.statistics:
            at = self._write_bytes(at, blob)
        return Done(tuple(models), tuple(len(blob) for blob in done.statistics))

    def _write(self, at: int, state: TrainingState) -> int:
        return self._write_bytes(self._write_bytes(at, state.tensors), state.tree)

    def _write_bytes(self, at: int, content: bytes) -> int:
        if at + len(content) > len(self._area):
            raise unfit("state-bytes")
        self._area[at : at + len(content)] = content
        return at + len(content)


def _read_given(order: Assignment, states: int, rows: Sequence[MappedRows]) -> Given:
    sizes = [size for size in order.states if size is not None]
    total = sum(size.tensors + size.tree for size in sizes) + order.statistics
    blob, at = bytes(map_copy(states, total)) if total else b"", 0
    found: list[TrainingState | None] = []
    for size in order.states:
        if size is None:
            found.append(None)
            continue
        middle = at + size.tensors
        end = middle + size.tree
        found.append(TrainingState(size.step, blob[at:middle], blob[middle:end]))
        at = end
    if len(blob) - at != order.statistics:
        raise MalformedError("the states have another length", code="bad-message")
    return Given(rows=rows, states=found, statistics=blob[at:])


def _finite(metrics: object) -> dict[str, float]:
    """JSON has no NaN; a number that is none is no result either."""
    assert isinstance(metrics, dict)
    return {name: value for name, value in metrics.items() if abs(value) < float("inf")}
