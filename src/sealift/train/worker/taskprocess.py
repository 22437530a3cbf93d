"""One task's worker, seen from its parent: what it asks, answers, and leaves on a GPU."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Final

from sealift.data.schedule.memory import SharedBuffer, free_memory_bytes, overwritten
from sealift.errors import (
    IntegrityError,
    MalformedError,
    PeerError,
    SealiftError,
    require_value,
)
from sealift.ids import Digest
from sealift.outsource.terms import Backward, Forward
from sealift.release.receipt import ScrubbedPart, ScrubSummary
from sealift.train.loop.buckets import ALIGNMENT, Trained
from sealift.train.loop.faults import Fault, RecipeError, explain
from sealift.train.loop.held import Held
from sealift.train.loop.tasks import SliceTask, TaskDone, TaskInputs, TaskParent
from sealift.train.worker.devices import CPU
from sealift.train.worker.messages import (
    GONE,
    AddUp,
    Assignment,
    AssignmentDone,
    Handed,
    Loaded,
    TaskAnswers,
    TaskMetrics,
    size_of,
)
from sealift.train.worker.process import (
    FAREWELL_S,
    TaskEquipment,
    TextTap,
    WorkerProcess,
    garbled,
)
from sealift.train.worker.products import BeginStep, Settle
from sealift.train.worker.requests import TIMED_OUT, Area
from sealift.train.worker.standby import Share, Standby


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLimits:
    """What one task may take.

    Attributes:
        work_s: Seconds.
        memory_bytes: Private memory; 0 for what is free when it starts.
        area_bytes: Room for the states handed over; 0 for half of that.
    """

    work_s: float = 3600.0
    memory_bytes: int = 0
    area_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ReadyWorker:
    """A worker that stands by, for one task.

    Attributes:
        measured: Digest of the bundle that it must have loaded.
    """

    standby: Standby
    measured: Digest


class TaskProcess:
    """One worker, seen from its parent.

    Args:
        on: The zygote that forks it, or one that stands by.
        equipment: What every task gets.
        limits: What this one may take.
        stack: Ends what is opened here.
        begun: Told once the task has begun, and for how long a worker was waited for.
        share: Allocates memory of a device for its gradients; who stands by has some.

    Raises:
        StandbyLostError: if there is none.
    """

    def __init__(
        self,
        on: socket.socket | ReadyWorker,
        equipment: TaskEquipment,
        limits: TaskLimits,
        stack: ExitStack,
        *,
        begun: Callable[[float], None] = lambda waited_s: None,
        share: Share | None = None,
    ) -> None:
        self._equipment = equipment
        self._limits = limits
        self._stack = stack
        self._begun = begun
        self._ready = on if isinstance(on, ReadyWorker) else None
        if isinstance(on, ReadyWorker):
            stack.callback(on.standby.close)
            self._process = on.standby.forked()
            self._gradients = None
            if share is not None:
                share.demand(on.standby.gradients)
                self._gradients = on.standby.gradients
            return
        self._gradients = share.make() if share else None
        if self._gradients is not None:  # scrubbed once the worker is gone
            stack.callback(self._gradients.close)
        self._measure_memory()
        self._text = stack.enter_context(closing(TextTap(equipment.text)))
        self._process = WorkerProcess(on, equipment, self._area)
        stack.callback(self._process.end, 0.0)
        self._process.allow(limits.work_s)

    def _measure_memory(self) -> None:
        """What is free when the task starts is what it may have."""
        free, limits = free_memory_bytes(), self._limits
        self._memory_bytes = limits.memory_bytes or free
        area = Area(limits.area_bytes or free // 2)
        self._area = self._stack.enter_context(closing(area))

    def _start(self, order: Assignment, files: Sequence[int]) -> None:
        if self._ready is None:
            first = [self._gradients.descriptor] if self._gradients else []
            self._process.start(self._memory_bytes, self._text, [*first, *files])
            self._process.tell(order)
            self._begun(0.0)
            return
        started_s = self._equipment.clock()
        self._ready.standby.await_ready()
        waited_s = self._equipment.clock() - started_s
        self._measure_memory()
        self._ready.standby.assign(
            order,
            files,
            self._area,
            memory_bytes=self._memory_bytes,
            measured=self._ready.measured,
        )
        self._process.allow(self._limits.work_s)
        self._begun(waited_s)

    def do(self, task: SliceTask, given: TaskInputs, parent: TaskParent) -> TaskDone:
        """Start it, give it its task, take its answer; it is gone afterwards."""
        try:
            return self._do(task, given, parent)
        except SealiftError as error:
            if left := self._process.left:
                error.why = f"{error.why}; {left}" if error.why else left
            if isinstance(error, RecipeError):
                error.left = left
            raise

    def report(self, scrub: ScrubSummary) -> ScrubSummary:
        """A visit's account, with what the worker said of its GPU's memory, or did not say."""
        on_device = self._process.scrub
        if self._process.left:
            return replace(scrub, verified=False)
        if on_device is None:
            return scrub
        part = ScrubbedPart(self._equipment.device, on_device.size_bytes, 0)
        return replace(scrub, regions=(*scrub.regions, part))

    def _do(self, task: SliceTask, given: TaskInputs, parent: TaskParent) -> TaskDone:
        answers = TaskAnswers(task, given, self._gradients)
        process, farewell_s = self._process, 0.0
        held = [Held.of(each.tensors) for each in given.states if each]
        if self._ready is not None:  # its recipe may map more than its stretch
            held = [each.by_itself() for each in held]
        with overwritten(_plain_of(given)) as plain, ExitStack() as opened:
            states = [opened.enter_context(each.open_to_read()) for each in held]
            files = [plain.descriptor, *(each.fileno() for each in states)]
            files += [each.descriptor for each in given.rows]
            try:
                order = self._assignment(task, given, held)
                self._start(order, files)
                answer = self._serve(answers, parent)
                farewell_s = FAREWELL_S
            except MalformedError as error:
                if error.code == "bad-share" or error.ranks:  # a server's, a rank's
                    raise
                raise garbled() from None
            except PeerError as error:
                if error.code not in (GONE, TIMED_OUT):  # another slice's
                    raise
                raise process.died(error, "visit") from None
            finally:
                process.part(farewell_s)
        process.demand_ended()
        return self._read(answers, given, answer)

    def _serve(
        self, answers: TaskAnswers, parent: TaskParent
    ) -> AssignmentDone | Fault:
        """Reply to whatever it asks, until it says how the task went."""
        while True:
            request = self._process.hear(
                *_ASKED, AssignmentDone, Fault, length_of=answers.length_of
            )
            if isinstance(request.message, AssignmentDone | Fault):
                return request.message
            reply = answers.reply(request.message, request.buffer, parent)
            del request  # its buffer, before the next one is copied
            self._process.tell(None, reply)
            del reply

    def demand_time(self) -> None:
        """Demand that the task was not cut, and that its time is not over.

        Raises:
            PeerError: code ``worker-gone`` or ``worker-timeout``.
        """
        self._process.demand_time()

    def cut(self) -> None:
        """End it, from another thread."""
        self._process.cut()

    def _assignment(
        self, task: SliceTask, given: TaskInputs, held: Sequence[Held]
    ) -> Assignment:
        return Assignment(
            task=task,
            entry=self._equipment.entry,
            device=self._equipment.device,
            bundle=self._equipment.bundle.length,
            states=tuple(
                None if each is None else size_of(each) for each in given.states
            ),
            starts=tuple(each.start for each in held),
            statistics=len(given.statistics),
            gradients=self._gradients.nbytes if self._gradients else 0,
        )

    def _read(
        self, answers: TaskAnswers, given: TaskInputs, answer: AssignmentDone | Fault
    ) -> TaskDone:
        device, scrub = self._equipment.device, self._process.scrub
        if scrub is not None and scrub.nonzero_bytes:
            raise IntegrityError(
                f"the memory of {device} was not overwritten completely",
                why=f"at least {scrub.nonzero_bytes} bytes were not zero",
                code="scrub",
            )
        try:
            if isinstance(answer, AssignmentDone):
                if self._process.left:
                    raise garbled()
                return answers.finish(answer, self._area)
            gpu = device != CPU
            fault = answers.believe(answer, self._equipment.files, gpu=gpu)
            error = explain(fault)
            if fault.kind == "memory" and not gpu:
                error.why = _say_room(self._memory_bytes, given)
            raise error
        except MalformedError as error:
            if error.code in ("bad-row", "bundle-hides-module"):
                raise
            raise garbled() from None


_ASKED: Final = (
    Handed, Loaded, TaskMetrics, Trained, AddUp, BeginStep, Forward, Backward, Settle
)  # fmt: skip


def _say_room(memory_bytes: int, given: TaskInputs) -> str:
    """What a recipe's process on a CPU may have, what its model takes, and what would fit."""
    may = f"its process may use {memory_bytes:,} bytes"
    state = given.states[0] if given.states else None
    model = sum(len(each.content) for each in state.model().values()) if state else 0
    needs = (
        f", and the model's {model:,} bytes take {_COPIES * model:,} with gradients and "
        "the two moments of Adam, without a batch"
    )
    fits = memory_bytes // (4 * _COPIES)
    return f"{may}{needs * bool(model)}; at most {fits:,} float32 parameters fit"


_COPIES: Final = 4  # weights, gradients, two moments


def gradient_room(given: TaskInputs) -> int:
    """Bytes that the gradients of a task's model take at most, in buckets of any size."""
    state = require_value(given.states[0], "a model is built before it is trained")
    tensors = state.model().values()
    return sum(len(each.content) + ALIGNMENT for each in tensors)


def _plain_of(given: TaskInputs) -> SharedBuffer:
    """Trees and sums end to end; never empty, as nothing can be mapped of nothing."""
    parts = [*(each.tree for each in given.states if each), given.statistics]
    return SharedBuffer.of(b"".join(parts) or bytes(1))
