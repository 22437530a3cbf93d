"""The process that has loaded torch and forks a worker for each task; and the worker.

The zygote never runs a recipe and never sees rows: descriptors pass through it unread.
One thread, so that a fork is whole. A worker that was told to end, or whose parent is
gone, is killed here. A worker does one task with one recipe, and then its process and
all its memory end.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NoReturn

import torch
from torch import nn

from sealift.errors import MalformedError, SealiftError, catalogue
from sealift.train.loop.faults import Containment, Fault, describe, unfit
from sealift.train.loop.imports import close_gate, installed_places
from sealift.train.loop.states import TrainingState
from sealift.train.loop.tasks import Given, TaskDone
from sealift.train.loop.training import carry_out
from sealift.train.sandbox import kernel as limits
from sealift.train.sandbox import landlock
from sealift.train.sandbox.confine import Confinement, confine_worker, keep_descriptors
from sealift.train.sandbox.inventory import SCRATCH, TALK
from sealift.train.sandbox.places import CACHES, pin_libraries
from sealift.train.worker.memory import map_area, map_copy, read_bundle_blob
from sealift.train.worker.messages import (
    MAX_ORDER_BYTES,
    NOT_CONFINED,
    Assignment,
    Done,
    DoneModel,
    GoOn,
    Handed,
    Importing,
    KillWorker,
    ServeOrder,
    StartWorker,
    Waiting,
    WorkerEnded,
    from_bytes,
    read_framed,
    receive_with,
    size_of,
    to_bytes,
    write_framed,
)
from sealift.train.worker.servedmodel import ServedModel
from sealift.travel.visit.memory import freed_is_overwritten


class MappedRows:
    """Rows of a visit, mapped to read; nobody is handed them on."""

    descriptor = -1

    def __init__(self, descriptor: int, length: int) -> None:
        self.view = map_copy(descriptor, length)


def _run_worker(
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


TRIAL_BYTES: Final = 1 << 40


class Zygote:
    """Waits for orders.

    Args:
        control: To the parent.
        wanted: Parts of the sandbox to have if they are to be had.
        places: What a worker may read.
    """

    def __init__(
        self, control: socket.socket, wanted: Confinement, places: Sequence[str]
    ) -> None:
        self._control = control
        self._places = places
        self._wanted = wanted
        self._installed: Sequence[str] = ()

    def serve(self) -> None:
        """Fork workers until the parent closes its end."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when it is over
        limits.hide_memory()
        warm_up()
        catalogue()  # a worker's errors say their remedy without another file
        pin_libraries()
        self._installed = installed_places()
        confinement = _best_of(self._wanted, self._places)
        self._tell(Waiting(confinement.word, freed_is_overwritten()))
        while True:
            raw, descriptors = receive_with(self._control)
            if not raw:
                return
            order = from_bytes(raw, StartWorker, KillWorker)
            # A worker that was to be killed may have ended by itself just before.
            if isinstance(order, StartWorker):
                self._run(confinement, order.memory_bytes, descriptors)

    def _run(
        self, confinement: Confinement, memory_bytes: int, descriptors: list[int]
    ) -> None:
        zygote, worker = os.getpid(), os.fork()
        if worker == 0:
            self._control.close()
            limits.end_with_parent(zygote)
            close_gate(self._installed, bytecode=f"{SCRATCH}/bytecode")
            _run_worker(descriptors, confinement, self._places, memory_bytes)
        for descriptor in descriptors:
            os.close(descriptor)
        status = self._wait(worker)
        self._tell(WorkerEnded(status))

    def _tell(self, message: object) -> None:
        with suppress(OSError):  # the parent is gone: the next read says so
            self._control.send(to_bytes(message))

    def _wait(self, worker: int) -> int:
        watched = os.pidfd_open(worker)
        try:
            while watched not in (ready := self._ready(watched)):
                if self._control.fileno() in ready and not self._still_wanted():
                    os.kill(worker, signal.SIGKILL)
                    break
        finally:
            os.close(watched)
        return os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])

    def _ready(self, watched: int) -> list[int]:
        waiting = select.poll()  # select() takes no descriptor above 1023
        for descriptor in (watched, self._control.fileno()):
            waiting.register(descriptor, select.POLLIN)
        return [descriptor for descriptor, _ in waiting.poll()]

    def _still_wanted(self) -> bool:
        raw, _none = receive_with(self._control)
        if raw:
            from_bytes(raw, KillWorker)
        return False


def warm_up() -> None:
    """Make torch load what it loads late, so that no worker has to (1.5 s, once)."""
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    loss = nn.functional.cross_entropy(
        model(torch.zeros(2, 1, 4, 4)), torch.zeros(2, dtype=torch.int64)
    )
    # On a device, the backward pass would start threads that no fork survives.
    if not torch.backends.cuda.is_built():
        loss.backward()
        optimizer.step()
    gc.collect()
    gc.freeze()


def _best_of(wanted: Confinement, places: Sequence[str]) -> Confinement:
    """The strongest of the wanted parts that hold together here; each is tried."""
    parts = [part for part in wanted.parts if part != "landlock" or landlock.version()]
    without = [[], ["landlock"], ["seccomp"], ["landlock", "seccomp"]]
    for missing in without:
        confinement = Confinement([part for part in parts if part not in missing])
        if _holds(confinement, places):
            return confinement
    return Confinement([])


def _holds(confinement: Confinement, places: Sequence[str]) -> bool:
    child = os.fork()
    if child == 0:
        try:
            confine_worker(confinement, places, TRIAL_BYTES)
            os._exit(NOT_CONFINED if _reaches_out(confinement) else 0)
        except BaseException:
            os._exit(NOT_CONFINED)
    return os.waitpid(child, 0)[1] == 0


def _reaches_out(confinement: Confinement) -> bool:
    """Whether this process can do what its sandbox must forbid."""
    if "seccomp" in confinement.parts and _succeeds(socket.socket):
        return True
    files = not {"namespaces", "landlock"}.isdisjoint(confinement.parts)
    return files and _succeeds(os.open, "/etc/passwd", os.O_RDONLY)


def _succeeds(call: object, *parts: object) -> bool:
    try:
        call(*parts)  # type: ignore[operator]
    except OSError:
        return False
    return True
