"""The process that forks a worker for each task: ``python -m`` this, DESCRIPTOR SANDBOX.

Started by the executor alone. With namespaces the first process only forks the one that
is process 1 in there, and waits for it. That one loads torch, once. It never runs a recipe
and never sees rows: descriptors pass through it unread. One thread, so that a fork is
whole. A worker that was told to end, or whose parent is gone, is killed here. A worker
does one task with one recipe, and then its process and all its memory end.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from sealift.errors import catalogue
from sealift.train.sandbox import kernel as limits
from sealift.train.sandbox import landlock, namespaces
from sealift.train.sandbox.confine import Confinement, confine_worker
from sealift.train.sandbox.inventory import (
    CACHES,
    SCRATCH,
    installed_places,
    pin_libraries,
    readable,
)
from sealift.train.sandbox.kernel import PR_SET_PDEATHSIG, prctl
from sealift.train.sandboxed.imports import close_gate
from sealift.train.worker.messages import from_bytes, to_bytes
from sealift.train.worker.process import (
    NO_NAMESPACES,
    NOT_CONFINED,
    HoldWorker,
    KillWorker,
    ReleaseWorker,
    StartWorker,
    Waiting,
    WorkerEnded,
    receive_with,
)
from sealift.travel.visit.memory import freed_is_overwritten


def main() -> int:
    """Serve until the parent closes its end; the exit code."""
    control = socket.socket(fileno=int(sys.argv[1]))
    wanted = Confinement.parse(sys.argv[2])
    limits.die_first()
    places, numbers = tuple(readable()), None
    if "namespaces" in wanted.parts:
        try:
            namespaces.leave_world()
        except OSError:
            return NO_NAMESPACES
        child = os.fork()
        if child:
            control.close()
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        numbers = namespaces.open_numbers()
        try:
            namespaces.enter_root(places)
        except OSError:
            return NO_NAMESPACES
        os.environ.update(CACHES)  # without namespaces there is no place to write to
    Zygote(control, wanted, places, numbers).serve()
    return 0


TRIAL_BYTES: Final = 1 << 40
_TO_A_WORKER: Final = KillWorker, HoldWorker, ReleaseWorker


class Zygote:
    """Waits for orders.

    Args:
        control: To the parent.
        wanted: Parts of the sandbox to have if they are to be had.
        places: What a worker may read.
        numbers: Of ``namespaces.open_numbers``.
    """

    def __init__(
        self,
        control: socket.socket,
        wanted: Confinement,
        places: Sequence[str],
        numbers: int | None,
    ) -> None:
        self._control = control
        self._numbers = numbers
        self._places = places
        self._wanted = wanted
        self._installed: Sequence[str] = ()

    def serve(self) -> None:
        """Fork workers until the parent closes its end."""
        # Only now: torch is loaded in the world that recipes run in.
        from sealift.train.sandboxed.gpus import find_gpus
        from sealift.train.sandboxed.recipeworker import warm_up

        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when it is over
        limits.hide_memory()
        warm_up()
        catalogue()  # a worker's errors say their remedy without another file
        pin_libraries()
        self._installed = installed_places()
        confinement = _best_of(self._wanted, self._places)
        gpus, why = find_gpus(
            lambda: confine_worker(confinement, self._places, TRIAL_BYTES, gpu=True)
        )
        _say_no_more()
        self._tell(Waiting(confinement.word, freed_is_overwritten(), gpus, why))
        while True:
            raw, descriptors = receive_with(self._control)
            if not raw:
                return
            order = from_bytes(raw, StartWorker, *_TO_A_WORKER)
            # A worker that was to be killed may have ended by itself just before.
            if isinstance(order, StartWorker):
                self._run(confinement, order, descriptors)

    def _run(
        self, confinement: Confinement, order: StartWorker, descriptors: list[int]
    ) -> None:
        if self._numbers is not None:  # else its own tells how many the last one had
            with suppress(OSError):  # not where the kernel lets nobody
                os.pwrite(self._numbers, b"1", 0)
        zygote, worker = os.getpid(), os.fork()
        if worker == 0:
            from sealift.train.sandboxed.recipeworker import run_worker

            self._control.close()
            limits.end_with_parent(zygote)
            close_gate(self._installed, bytecode=f"{SCRATCH}/bytecode")
            if not order.gpu:  # what the job did not give it does not take by mistake
                os.environ["CUDA_VISIBLE_DEVICES"] = ""
            run_worker(descriptors, confinement, self._places, order)
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
                if self._control.fileno() in ready and not self._heed(worker):
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

    def _heed(self, worker: int) -> bool:
        """Do what the parent says of a worker; whether it still wants it."""
        raw, _none = receive_with(self._control)
        order = from_bytes(raw, *_TO_A_WORKER) if raw else KillWorker()
        if isinstance(order, HoldWorker):
            os.kill(worker, signal.SIGSTOP)
        if isinstance(order, ReleaseWorker):
            most = order.memory_bytes
            limits.change_memory(worker, most, most)
            os.kill(worker, signal.SIGCONT)
        return not isinstance(order, KillWorker)


def _say_no_more() -> None:
    """No worker inherits what the parent reads where this process does not start."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stderr.fileno())
    os.close(null)


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


if __name__ == "__main__":
    os._exit(main())  # nothing of ours is left to do, and the parent waits for it
