"""The process that has loaded torch and forks a worker for each task.

It never runs a recipe and never sees rows: descriptors pass through it unread. One
thread, so that a fork is whole. A worker that was told to end, or whose parent is gone,
is killed here.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import torch
from torch import nn

from sealift.errors import catalogue
from sealift.train.loop.importgate import close_gate, installed_places
from sealift.train.sandbox import landlock, limits
from sealift.train.sandbox.confine import Confinement, confine_worker
from sealift.train.sandbox.inventory import SCRATCH
from sealift.train.sandbox.pages import pin_libraries
from sealift.train.worker.exits import NOT_CONFINED
from sealift.train.worker.messages import (
    KillWorker,
    StartWorker,
    Waiting,
    WorkerEnded,
    from_bytes,
    to_bytes,
)
from sealift.train.worker.oneslice import run_worker
from sealift.train.worker.wire import receive_with
from sealift.travel.visit.memory import freed_is_overwritten

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
        confinement = best_of(self._wanted, self._places)
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
            run_worker(descriptors, confinement, self._places, memory_bytes)
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


def best_of(wanted: Confinement, places: Sequence[str]) -> Confinement:
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
