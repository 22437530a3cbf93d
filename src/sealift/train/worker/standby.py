"""The next task's process, made ready while the present one works, seen from its parent.

It is forked, confined and told to load: the device's libraries, and the recipe, which makes
a step on synthetic rows. Then all its threads are stopped until there is a task. It has seen
no row and no state, and it serves one task, as every worker does. It is forked by another
zygote than the worker beside it, so that the two share no world. What fails in it costs no
task: that begins in a fresh process.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Final

from sealift.channel.device.device import SharedDeviceMemory, SummingEngine
from sealift.data.schedule.memory import free_memory_bytes
from sealift.errors import JobError, MalformedError, PeerError, SealiftError
from sealift.ids import Digest
from sealift.outsource.trace import Phase
from sealift.train.loop.faults import Fault
from sealift.train.loop.tasks import SliceTask, StepForm
from sealift.train.worker.messages import (
    Assignment,
    Begun,
    StandbyOrder,
    WorkerReady,
    stretches_of,
)
from sealift.train.worker.process import (
    FILE_STRETCH,
    TaskEquipment,
    TextTap,
    WorkerProcess,
    send_with,
)
from sealift.train.worker.requests import Area
from sealift.travel.settings import TrainingSettings

READY_S: Final = 120.0
BEGUN_S: Final = 30.0
_AREA_BYTES: Final = 4096  # nothing but messages passes
_REFUSED: Final = "the recipe fails on random rows, or cannot be loaded twice"
_MEMORY: Final = "there is not enough memory for a step in a second process"
_ENOUGH: Final = b"\1"
_KINDS: Final = 2  # of tasks, the last ones, whose steps are made beforehand

Lane = Callable[[], tuple[socket.socket, TaskEquipment]]
"""Waits for a zygote, and gives it and what its workers get; its bundle was verified."""


@dataclass(frozen=True, slots=True)
class Share:
    """Memory of a device for gradients, which a worker maps, too.

    Attributes:
        engine: The device.
        nbytes: How much is needed.
    """

    engine: SummingEngine
    nbytes: int

    def make(self) -> SharedDeviceMemory:
        """Allocate it."""
        return self.engine.share(self.nbytes)

    def demand(self, found: SharedDeviceMemory | None) -> None:
        """Raises ``StandbyLostError`` unless who stands by has enough of it."""
        if found is None or found.nbytes < self.nbytes:
            raise StandbyLostError("it has no memory for gradients on the GPU")


class StandbyLostError(Exception):
    """It cannot serve; the task has not begun."""


class Standby:
    """One worker that is made ready.

    Args:
        lane: Has a zygote without a worker.
        rehearsal: Steps to make first; None to load no recipe.
        share: Allocates memory of the device for gradients; None for a worker without.

    Attributes:
        process: The worker; None until it is forked.
        gradients: That memory, scrubbed once the worker is gone; None until it is forked.
        refused: Whether the recipe failed on synthetic rows.
    """

    def __init__(
        self,
        lane: Lane,
        rehearsal: SliceTask | None,
        share: Share | None = None,
    ) -> None:
        self._lane, self._rehearsal, self._share = lane, rehearsal, share
        self.gradients: SharedDeviceMemory | None = None
        self.process: WorkerProcess | None = None
        self._area: Area | None = None
        self.refused = False
        self._measured: Digest | None = None
        self._failed = ""
        self._cut = False
        self._stack = ExitStack()
        self._forked, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._prepare, daemon=True)
        self._thread.start()

    @property
    def was_cut(self) -> bool:
        """Whether nobody wants it any more."""
        return self._cut

    def forked(self) -> WorkerProcess:
        """The worker.

        Raises:
            StandbyLostError: if there is none.
        """
        self._forked.wait()
        if self.process is None:
            raise StandbyLostError(self._failed)
        return self.process

    def await_ready(self) -> None:
        """Wait until it is ready; of what it has not begun to load it loads nothing more.

        Raises:
            StandbyLostError: if it never will be.
        """
        if self._area is not None and not self._over.is_set():
            self._area.place(0, _ENOUGH)
        self._over.wait()
        if self._failed and not self._cut:
            raise StandbyLostError(self._failed)

    def assign(
        self,
        order: Assignment,
        files: Sequence[int],
        area: Area,
        *,
        memory_bytes: int,
        measured: Digest,
    ) -> WorkerProcess:
        """Give it its task, the only one; it has begun when this returns.

        Args:
            order: The task.
            files: Descriptors of states and rows.
            area: For this task alone.
            memory_bytes: Private memory that it may have.
            measured: Digest of the bundle that it must have loaded.

        Raises:
            JobError: code ``state-changed``.
            PeerError: code ``worker-gone``, if it was cut.
            StandbyLostError: if it is gone, or does not begin.
        """
        process = self.forked()
        if self._measured != measured:
            raise JobError(
                "the recipe changed in the accelerator's memory", code="state-changed"
            )
        process.allow(BEGUN_S)
        try:
            whole = 0, os.fstat(area.descriptor).st_size
            stretches = [whole, *stretches_of(order)]
            send_with(
                self._window,
                b"".join(FILE_STRETCH.pack(*each) for each in stretches),
                [area.descriptor, *files],
            )
            self._text.release()
            process.release(memory_bytes)
            process.tell(order)
            process.move(area)
            process.hear(Begun)
            process.tell()
        except (PeerError, MalformedError) as error:
            if self._cut:
                raise
            raise StandbyLostError(error) from None
        return process

    def cut(self) -> None:
        """Nobody wants it any more; from any thread."""
        self._cut = True
        if self.process is not None:
            self.process.cut()

    def close(self) -> None:
        """End it. Idempotent."""
        self._thread.join()
        self._stack.close()

    def _prepare(self) -> None:
        try:
            self._make_ready()
        except (SealiftError, OSError) as error:
            self._failed = str(error)
        finally:
            self._forked.set()
            self._over.set()

    def _make_ready(self) -> None:
        control, equipment = self._lane()
        self._measured = Digest.of(bytes(equipment.bundle.code))
        stack = self._stack
        if self._share is not None:
            self.gradients = self._share.make()
            stack.callback(self.gradients.close)
        area = self._area = stack.enter_context(closing(Area(_AREA_BYTES)))
        self._text = stack.enter_context(closing(TextTap(equipment.text, held=True)))
        process = WorkerProcess(control, equipment, area)
        stack.callback(process.end, 0.0)
        self._window, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.enter_context(self._window)
        process.allow(READY_S)
        free, most = free_memory_bytes(), _memory_of_machine()
        with theirs:
            half = [theirs.fileno()]
            if self.gradients is not None:
                half.append(self.gradients.descriptor)
            process.start(free // 2, self._text, half, most_bytes=most)
        self.process = process
        if self._cut:
            process.cut()
        self._forked.set()
        process.tell(
            StandbyOrder(
                rehearsal=self._rehearsal,
                entry=equipment.entry,
                device=equipment.device,
                bundle=equipment.bundle.length,
                gradients=self.gradients.nbytes if self.gradients else 0,
            )
        )
        answer = process.hear(WorkerReady, Fault).message
        if isinstance(answer, Fault):
            self.refused = True
            self._failed = _MEMORY if answer.kind == "memory" else _REFUSED
        else:
            process.hold()


def _memory_of_machine() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class Standbys:
    """Who comes next.

    Args:
        lanes: Zygotes, two: a task has a worker of one, and who stands by is of the other.
        settings: Of training.
        forms: Of steps that are expected first.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        settings: TrainingSettings,
        forms: Sequence[StepForm],
    ) -> None:
        self._lanes = lanes
        self._settings = settings
        self._forms = deque(forms, maxlen=_KINDS)
        self._loads = True
        self._former: Standby | None = None
        self._next: tuple[int, Standby] | None = None
        self._tasks = self._served = 0
        self._waited_s = 0.0

    def take(self) -> tuple[int, Standby | None]:
        """A lane for a task, and who stands by there; None to fork a worker for it."""
        if self._next is None:
            return 0, None
        lane, standby = self._next
        self._next = None
        self._former = standby
        if standby.was_cut:
            standby.close()
            return 0, None
        return lane, standby

    def note(self, standby: Standby | None, waited_s: float) -> None:
        """A task has begun, in a fresh process or after so long a wait for who stood by."""
        self._tasks += 1
        self._served += standby is not None
        self._waited_s += waited_s

    def prepare(
        self,
        lane: int,
        task: SliceTask | None = None,
        share: Share | None = None,
    ) -> None:
        """Have the next one made ready, as for the task that now has the other lane."""
        if task is not None:
            self._expect(task)
        if self._former is not None and self._former.refused:
            self._loads = False
        if self._next is None:
            rehearsal = None
            if self._loads:
                rehearsal = SliceTask("rehearse", self._settings, forms=(*self._forms,))
            self._next = lane, Standby(self._lanes[lane], rehearsal, share)

    def say(self) -> str:
        """How often a task's process was ready, and what was waited for it."""
        if not self._tasks:
            return ""
        return (
            f"{self._served} of {self._tasks} tasks began in a process that was "
            f"prepared in advance; they waited {self._waited_s * 1e3:.0f} ms for it"
        )

    def cut(self) -> None:
        """Nobody needs the next one; from any thread."""
        if self._next is not None:
            self._next[1].cut()

    def close(self) -> None:
        """End it."""
        self.cut()
        if self._next is not None:
            self._next[1].close()
            self._next = None

    def _expect(self, task: SliceTask) -> None:
        if task.outsourced or not task.parts:  # products have to be asked for
            return
        part, rows = task.parts[0], task.settings.batch_rows
        phase: Phase = "evaluate" if task.work == "heldout" else "train"
        form = StepForm(phase, min(rows, part.rows), part.schema)
        if form in self._forms:
            self._forms.remove(form)
        self._forms.append(form)
