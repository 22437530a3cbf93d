"""A worker from start to end, seen from its parent, and what it lets out on the way.

It is forked by the zygote, and gone at the end. What its recipe prints is passed on, so
much of it and one safe line each, where the agreement lets it out. Each module of the
bundle that runs is measured first, once: the worker only says which path it is about to
run, and the digest is of the parent's own bytes, those that the agreement names. So a
recipe that has taken its process over can leave a module out of the log, but not bring
one in that the parties did not sign.

Workers copy a bundle's code, which is small, and map its assets to read: weights of any size
are there once, whatever the number of workers. Nobody can map this memory to write.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import FileIO
from typing import Final, TextIO

from sealift.attest.evidence import Measure
from sealift.attest.runtimelog import module_event
from sealift.data.schedule.memory import SharedBuffer, free_memory_bytes
from sealift.errors import (
    JobError,
    MalformedError,
    PeerError,
    UnavailableError,
    require_kind,
)
from sealift.ids import Buffer, Digest
from sealift.release.agreement.code import Asset
from sealift.train.loop.faults import MOST_ROOM, NOT_OVERWRITTEN
from sealift.train.loop.states import TensorBytes, head_of, pack_tensors
from sealift.train.loop.tasks import DeviceScrub
from sealift.train.worker.devices import CPU, Gpu
from sealift.train.worker.messages import (
    GONE,
    Importing,
    from_bytes,
    to_bytes,
    worker_gone,
)
from sealift.train.worker.requests import (
    TIMED_OUT,
    Area,
    LengthOf,
    ParentEnd,
    Request,
    timed_out,
)


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Fork a worker; its descriptors come along.

    Attributes:
        memory_bytes: Private memory that it may have.
        gpu: Whether it computes on one.
        most_bytes: What that may be raised to when its task is known; 0 for no more.
    """

    memory_bytes: int
    gpu: bool
    most_bytes: int = 0


@dataclass(frozen=True, slots=True)
class KillWorker:
    """End the worker at once."""


@dataclass(frozen=True, slots=True)
class HoldWorker:
    """Stop the worker: none of its threads runs until its task is there."""


@dataclass(frozen=True, slots=True)
class ReleaseWorker:
    """Let the worker that was stopped go on.

    Attributes:
        memory_bytes: Private memory that it may have from now on.
    """

    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """The zygote has loaded torch and waits.

    Attributes:
        sandbox: What will keep a recipe in; it was tried.
        overwrites: Whether its allocators overwrite what is freed; it was tried.
        gpus: Those that a worker would have.
        no_gpu: Why there are none.
    """

    sandbox: str
    overwrites: bool
    gpus: tuple[Gpu, ...]
    no_gpu: str


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """The worker is gone, and its memory with it.

    Attributes:
        status: Exit code, or the negative number of a signal.
    """

    status: int


NO_NAMESPACES: Final = 77
NOT_CONFINED: Final = 78
MAX_CONTROL_BYTES: Final = 4096
MAX_DESCRIPTORS: Final = 200


# Of what is mapped of each file that comes to a worker that stood by: start and length.
FILE_STRETCH: Final = struct.Struct("<QQ")


def send_with(control: socket.socket, raw: bytes, descriptors: Sequence[int]) -> None:
    """Send one packet and descriptors along with it.

    Raises:
        PeerError: code ``worker-gone``.
    """
    try:
        socket.send_fds(control, [raw], list(descriptors))
    except OSError:
        raise worker_gone() from None


def receive_with(control: socket.socket) -> tuple[bytes, list[int]]:
    """Receive one packet and its descriptors; empty when the other end is closed."""
    try:
        raw, found, _flags, _address = socket.recv_fds(
            control, MAX_CONTROL_BYTES, MAX_DESCRIPTORS
        )
    except OSError:
        return b"", []
    return raw, found


START_S: Final = 120.0
FAREWELL_S: Final = 5.0
SCRUB_S: Final = 30.0  # of a GPU; what it was at when it hears of it has to end first


@dataclass(frozen=True, slots=True)
class TaskEquipment:
    """What every task of a executor gets.

    Attributes:
        files: The code bundle.
        entry: Path of the recipe inside it.
        bundle: The same files in memory that a worker maps, with the assets.
        modules: Measures what of the bundle is imported.
        text: Where a recipe's prints go; None for nowhere.
        clock: Monotonic seconds.
        device: Where it computes, as torch writes it.
    """

    files: Mapping[str, bytes]
    entry: str
    bundle: BundleMemory
    modules: ModuleLog
    text: TextIO | None
    clock: Callable[[], float]
    device: str = CPU


class WorkerProcess:
    """One worker.

    Args:
        control: To the zygote, which has one worker at a time.
        equipment: What every worker of an executor gets.
        area: Of this worker alone.

    Attributes:
        status: Exit code, or the negative number of a signal; None while it runs, and where
            nobody confirmed that it ended.
        scrub: What it said of its GPU's memory, before it was gone.
    """

    def __init__(
        self, control: socket.socket, equipment: TaskEquipment, area: Area
    ) -> None:
        self._control = control
        self._equipment = equipment
        self._area = area
        self._imported: set[str] = set()
        self._cut = False
        self._within_s = self._deadline = 0.0
        self._stream, self._theirs = socket.socketpair()
        self._stream.setblocking(False)
        self._end = ParentEnd(area, self._stream.fileno(), self._left_s)
        self.status: int | None = 0
        self._started = self._runs = False
        self.scrub: DeviceScrub | None = None

    def start(
        self,
        memory_bytes: int,
        text: TextTap,
        files: Sequence[int],
        *,
        most_bytes: int = 0,
    ) -> None:
        """Have it forked, with descriptors of what else it maps.

        Raises:
            PeerError: code ``worker-gone``, if the zygote is.
        """
        order = StartWorker(memory_bytes, self._equipment.device != CPU)
        with self._theirs as theirs:
            shared = text, self._area, self._equipment.bundle
            descriptors = [theirs.fileno(), *(each.descriptor for each in shared)]
            order = replace(order, most_bytes=most_bytes) if most_bytes else order
            send_with(self._control, to_bytes(order), [*descriptors, *files])
        self.status, self._started, self._runs = None, True, True

    def hold(self) -> None:
        """Stop it; nothing of it runs until ``release``."""
        send_with(self._control, to_bytes(HoldWorker()), ())

    def release(self, memory_bytes: int) -> None:
        """Let it go on, with so much private memory.

        Raises:
            PeerError: code ``worker-gone``, if the zygote is.
        """
        send_with(self._control, to_bytes(ReleaseWorker(memory_bytes)), ())

    def move(self, area: Area) -> None:
        """Go on in another area, once everything was said in the former one."""
        self._area = area
        self._end.move(area)

    def allow(self, within_s: float) -> None:
        """Whatever is asked from now on has to be answered within so many seconds."""
        self._within_s = within_s
        self._deadline = self._equipment.clock() + within_s

    def tell(self, message: object = None, buffer: Buffer = b"") -> None:
        """Give it an order, or reply to its last request; see ``ParentEnd.tell``."""
        self._end.tell(message, buffer)

    def hear(self, *kinds: type, length_of: LengthOf | None = None) -> Request:
        """What it says next; modules that it imports meanwhile are measured first.

        Its arguments are those of ``ParentEnd.hear``.

        Raises:
            PeerError: see ``died``.
            MalformedError: if it makes no sense.
        """
        while True:
            request = self._end.hear(Importing, *kinds, length_of=length_of)
            if not isinstance(request.message, Importing):
                return request
            self._measure(request.message.path)
            self._end.tell()

    def _measure(self, path: str) -> None:
        """Once for each module: else a worker could ask without end."""
        if path in self._imported:
            raise MalformedError("a module was run twice", code="bad-message")
        self._imported.add(path)
        self._equipment.modules.note(path)

    def demand_time(self) -> None:
        """Demand that there is time left, and that nobody cut the work.

        Raises:
            PeerError: code ``worker-gone`` or ``worker-timeout``.
        """
        if self._left_s() <= 0:
            raise timed_out()

    @property
    def was_cut(self) -> bool:
        """Whether somebody wants no more of it."""
        return self._cut

    def cut(self) -> None:
        """End the work, from another thread."""
        self._cut = True
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)

    def died(self, error: PeerError, unit: str) -> JobError:
        """End it after an error of ``start``, ``tell`` or ``hear``, and say what became of it."""
        self.end(FAREWELL_S if error.code == GONE and not self._cut else 0.0)
        if error.code == TIMED_OUT:
            return JobError(
                f"the recipe took more than {self._within_s:g} s for one {unit}",
                code="recipe-timeout",
            )
        if self.status is None:
            return _unconfirmed()
        status = self.status
        if status == NOT_CONFINED:  # a recipe that ends so says no more than that
            return killed("its sandbox was not in force before the recipe was loaded")
        return killed(f"signal {-status}" if status < 0 else "it exited by itself")

    def _left_s(self) -> float:
        if self._cut:
            raise PeerError("the work was cancelled", code=GONE)
        return self._deadline - self._equipment.clock()

    @property
    def left(self) -> str:
        """What stayed on a GPU, in words; empty if nothing did."""
        clean = self.scrub is not None and not self.scrub.nonzero_bytes
        had = self._started and self._equipment.device != CPU
        return NOT_OVERWRITTEN if had and not clean else ""

    def part(self, farewell_s: float) -> None:
        """Hang up on it, hear what it says of its GPU's memory, and ``end`` it.

        That is its own word: no more than that its code ran.
        """
        if self._runs and self._equipment.device != CPU:
            with suppress(OSError):
                self._stream.shutdown(socket.SHUT_WR)
            # Who ends it before its answer does not wait long.
            self.scrub = self._hear_scrub(SCRUB_S if farewell_s else FAREWELL_S)
        self.end(farewell_s)

    def _hear_scrub(self, within_s: float) -> DeviceScrub | None:
        """Its last word, if it is one on a GPU's memory; what it rang for before is not read."""
        deadline = self._equipment.clock() + within_s
        with suppress(OSError):
            while (left_s := deadline - self._equipment.clock()) > 0:
                self._stream.settimeout(left_s)
                if not self._stream.recv(64):
                    break
        try:
            raw = self._area.read_message(self._area.read_head().message_bytes)
            told = from_bytes(raw, DeviceScrub)
        except MalformedError:
            return None
        told = require_kind(told, DeviceScrub)
        possible = 0 <= told.nonzero_bytes <= told.size_bytes < MOST_ROOM
        return told if possible else None

    def end(self, farewell_s: float) -> None:
        """Make sure that it is gone, and know how it went; see ``demand_ended``.

        Args:
            farewell_s: How long it may take to end by itself.
        """
        try:
            if self._runs:
                self._runs = False
                self.status = self._await_end(farewell_s)
        finally:
            self._stream.close()
            self._theirs.close()

    def demand_ended(self) -> None:
        """Demand that its end was confirmed: until then it may still write what it left.

        Raises:
            JobError: code ``recipe-killed``.
        """
        if self.status is None:
            raise _unconfirmed()

    def _await_end(self, farewell_s: float) -> int | None:
        """Its status; None if the zygote does not say it, which then forks no other one."""
        self._control.settimeout(farewell_s)
        raw = read_packet(self._control)
        if not raw:
            self._control.settimeout(START_S)
            with suppress(OSError):
                self._control.send(to_bytes(KillWorker()))
            raw = read_packet(self._control)
        if not raw:
            with suppress(OSError):  # a late word would be about the next worker
                self._control.shutdown(socket.SHUT_RDWR)
            return None
        told = require_kind(from_bytes(raw, WorkerEnded), WorkerEnded)
        return told.status


def read_packet(control: socket.socket) -> bytes:
    """What the zygote says; empty if it is gone or says nothing in time."""
    try:
        return control.recv(4096)
    except OSError:
        return b""


TEXT_BYTES: Final = 64 << 10


class TextTap:
    """A pipe whose reader passes on what a worker prints.

    Args:
        stream: Where to; None to let nothing out.
        most: Bytes of one task that are passed on.
        held: Whether what comes before ``release`` is dropped.
    """

    def __init__(
        self, stream: TextIO | None, *, most: int = TEXT_BYTES, held: bool = False
    ) -> None:
        self._stream = stream
        self._left = 0 if held else most
        self._most = most
        self._turn = threading.Lock()
        self._reader: threading.Thread | None = None
        if stream is None:
            self._sink = FileIO(os.devnull, "w")
            return
        source, sink = os.pipe2(os.O_CLOEXEC)
        self._sink = FileIO(sink, "w")
        os.set_blocking(source, False)
        self._source = FileIO(source)
        self._reader = threading.Thread(target=self._pass_on)
        self._reader.start()

    @property
    def descriptor(self) -> int:
        """What the worker writes to, until ``close``."""
        return self._sink.fileno()

    def release(self) -> None:
        """Pass on what is printed from now on, and nothing of before."""
        if self._reader is None:
            return
        with self._turn:
            while not self._source.closed and self._source.read(4096):
                pass
            self._left = self._most

    def close(self) -> None:
        """Once the worker is gone: wait until all was passed on. Idempotent."""
        self._sink.close()
        if self._reader is not None:
            self._reader.join()

    def _pass_on(self) -> None:
        waiting = select.poll()  # select() takes no descriptor above 1023
        waiting.register(self._source, select.POLLIN)
        while waiting.poll():
            with self._turn:
                piece = self._source.read(4096)
                if piece == b"":
                    self._source.close()
                    return
                shown = (piece or b"")[: self._left]
                self._left -= len(shown)
            self._show(shown)

    def _show(self, piece: bytes) -> None:
        text = piece.decode("utf-8", "replace")
        shown = "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
        if shown and self._stream is not None:
            self._stream.write(shown)
            self._stream.flush()


class ModuleLog:
    """The modules that ran so far.

    Args:
        files: The bundle, measured against the agreement.
        measure: Gets the event of each module before it runs.
    """

    def __init__(self, files: Mapping[str, bytes], measure: Measure) -> None:
        self._files = files
        self._measure = measure
        self._noted: set[str] = set()
        self._lock = threading.Lock()

    def note(self, path: str) -> None:
        """Measure a module, unless it was.

        Raises:
            MalformedError: if the bundle has no such module.
        """
        if path not in self._files or not path.endswith(".py"):
            raise MalformedError(
                "the module is not in the code bundle", code="bad-message"
            )
        with self._lock:
            if path not in self._noted:
                self._measure(module_event(path, Digest.of(self._files[path])))
                self._noted.add(path)


def killed(why: str) -> JobError:
    """The error for a process that is gone without an answer."""
    return JobError(
        "the recipe's process ended before its work was done",
        why=why,
        code="recipe-killed",
    )


def _unconfirmed() -> JobError:
    return killed("the process that started it did not confirm its end")


def garbled() -> JobError:
    """The error for an answer that is none."""
    return JobError(
        "the recipe's process sent an invalid message", code="recipe-garbled"
    )


LENGTH_BYTES: Final = 8  # before the assets' blob: how long it is


class BundleMemory:
    """Code and assets.

    Args:
        files: The code, measured.
        assets: Files of weights and texts; each is measured as it is read.

    Attributes:
        length: Bytes of the code's blob, with which it begins.

    Raises:
        IntegrityError: ``code-bundle-differs``, if an asset is not the agreed one.
        UnavailableError: ``no-memory``; or a file cannot be read.
    """

    def __init__(
        self, files: Mapping[str, bytes], assets: Sequence[Asset] = ()
    ) -> None:
        code = pack_bundle(files)
        self.length = len(code)
        if not assets:
            self._buffer = SharedBuffer.of(code)
            return
        forms = {each.name: TensorBytes("U8", (each.size,), b"") for each in assets}
        head, order = head_of(forms)
        at, whole = assets_at(len(code)), len(head) + sum(each.size for each in assets)
        total, free = at + LENGTH_BYTES + whole, free_memory_bytes()
        if total > free:
            raise UnavailableError(
                f"the recipe's code and assets have {total:,} bytes",
                why=f"this machine has {free:,} bytes of free memory",
                code="no-memory",
            )
        self._buffer = SharedBuffer(total)
        try:
            view = self._buffer.view
            view[: len(code)] = code
            view[at : at + LENGTH_BYTES] = whole.to_bytes(LENGTH_BYTES, "little")
            at += LENGTH_BYTES
            view[at : at + len(head)] = head
            at += len(head)
            by_name = {each.name: each for each in assets}
            for name in order:
                for piece in by_name[name].pieces():
                    view[at : at + len(piece)] = piece
                    at += len(piece)
        except BaseException:
            self._buffer.close()
            raise

    @property
    def descriptor(self) -> int:
        """What is handed over, until ``close``."""
        return self._buffer.descriptor

    @property
    def code(self) -> memoryview:
        """The code's blob."""
        return self._buffer.view[: self.length]

    def close(self) -> None:
        """Give the memory back. Idempotent."""
        self._buffer.close()


def assets_at(code_bytes: int) -> int:
    """Where the assets begin: on a page of their own."""
    return code_bytes + -code_bytes % mmap.PAGESIZE


def pack_bundle(files: Mapping[str, bytes]) -> bytes:
    """Code as one blob."""
    return pack_tensors(
        {
            path: TensorBytes("U8", (len(content),), memoryview(content))
            for path, content in files.items()
        }
    )
