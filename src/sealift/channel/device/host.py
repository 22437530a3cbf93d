"""The host's stand-in for a device: private memory, and threads that open and seal.

It is the oracle of the contract suite and the device of machines without a GPU. Its
memory is the process's own: put it into a process of its own where the device is to be
apart from the host.
What a call queued has one answer: of several parts that fail, the worst.
Several records are opened at once where the engine has threads; one thread more than
cores gains nothing, since each call keeps a core busy outside the interpreter.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Final, TypeVar

from sealift.channel.device.device import (
    DeviceEvent,
    DeviceKey,
    DeviceMemory,
    Group,
    Part,
    RecordPlace,
    check_places,
    check_range,
    check_transfer,
    device_lost,
    device_out_of_memory,
)
from sealift.channel.record.opener import scrub
from sealift.channel.record.record import MakeCipher
from sealift.crypto.aead import Aead, Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError, UsageError
from sealift.ids import Buffer

MAX_THREADS: Final = 16
Unit = TypeVar("Unit")


class HostMemory:
    """Memory of this process; ``view`` reads and writes it.

    Args:
        view: The bytes.
        give_back: Called once, when it is closed.
        settle: Returns when nothing that was queued writes to it any more.
    """

    def __init__(
        self,
        view: memoryview,
        give_back: Callable[[], None],
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        self.view = view
        self.nbytes = view.nbytes
        self._give_back = give_back
        self._settle = settle
        self._closed = False

    def require_open(self) -> None:
        """Refuse to be used after ``close``."""
        if self._closed:
            raise UsageError("this memory was freed", code="dead-memory")

    def scrub(self) -> None:
        """Overwrite it with zeroes, after what is queued."""
        if not self._closed:
            self._settle()
            scrub(self.view)

    def close(self) -> None:
        """Scrub and give back. Idempotent."""
        if not self._closed:
            self.scrub()
            self._closed = True
            # Views that were lent out keep the (scrubbed) memory until they are gone.
            with contextlib.suppress(BufferError):
                self.view.release()
            with contextlib.suppress(BufferError):
                self._give_back()


class HostKey:
    """A cipher made ready; the library below keeps its own copy of the key."""

    def __init__(self, suite: Suite, cipher: Aead) -> None:
        self.suite = suite
        self._cipher: Aead | None = cipher

    def cipher(self) -> Aead:
        """The cipher.

        Raises:
            UsageError: after ``close``.
        """
        if self._cipher is None:
            raise UsageError("this key was removed from the device", code="dead-key")
        return self._cipher

    def close(self) -> None:
        """Forget it."""
        self._cipher = None


class QueuedWork:
    """What one call queued: an event, and for ``open`` the verdicts.

    Args:
        parts: What runs in the engine's threads.
        failed: What went wrong already, if it ran at once.
        undo: Scrubs what the call wrote.
    """

    def __init__(
        self,
        parts: Iterable[Future[None]] = (),
        failed: BaseException | None = None,
        undo: Callable[[], None] | None = None,
    ) -> None:
        self._parts = list(parts)
        self._undo = undo
        self._failed = failed
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Wait for all parts; when one failed, undo all and raise what it raised."""
        with self._lock:  # nobody hears an answer before it is known and undone
            self._settle()
        if isinstance(self._failed, AuthenticationError):
            raise AuthenticationError
        if self._failed is not None:
            raise self._failed

    def wait_copied(self) -> None:
        """Nothing to wait for: a call returns when it has copied."""

    def _settle(self) -> None:
        if self._parts:
            # All of them: none may write after the memory was scrubbed.
            errors = [error for part in self._parts if (error := part.exception())]
            self._parts = []
            self._failed = _worst(errors) if errors else None
        if self._failed is not None and self._undo is not None:
            self._undo()
            self._undo = None


class HostDevice:
    """A device made of this process's memory and threads.

    Args:
        threads: Records opened or sealed at once; the cores of this process if None.
        cores: Where those threads run, in turn; wherever they may if None.
        memory_bytes: What may be allocated altogether, None for no limit.
        make_cipher: Who computes the AEAD.
    """

    name = "host"

    def __init__(
        self,
        *,
        threads: int | None = None,
        cores: Sequence[int] | None = None,
        memory_bytes: int | None = None,
        make_cipher: MakeCipher = Aead,
    ) -> None:
        self._threads = min(threads or len(os.sched_getaffinity(0)), MAX_THREADS)
        self._pool = ThreadPoolExecutor(
            self._threads,
            thread_name_prefix="sealift-device",
            initializer=_pin_in_turn(cores) if cores else None,
        )
        self._make_cipher = make_cipher
        self._free_bytes = memory_bytes
        self._memories: set[HostMemory] = set()
        self._running: set[Future[None]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def warm_up(self) -> None:
        """Start every thread now; otherwise each starts with the work it is for."""
        count = self._threads
        started = threading.Barrier(count)
        waiting = [self._pool.submit(started.wait) for _ in range(count)]
        for each in waiting:
            each.result()

    def suites(self) -> tuple[Suite, ...]:
        """All: the processor computes them."""
        return tuple(Suite)

    def allocate(self, nbytes: int) -> HostMemory:
        """Zeroed memory whose pages all exist: a first touch costs more than a copy."""
        self._spend(nbytes)
        try:
            mapped = _mapped(nbytes)
        except BaseException:
            self._spend(-nbytes)
            raise

        def give_back() -> None:
            self._spend(-nbytes)
            self._memories.discard(memory)
            mapped.close()

        memory = HostMemory(memoryview(mapped)[:nbytes], give_back, self._settle)
        self._memories.add(memory)
        return memory

    def adopt(self, view: memoryview) -> HostMemory:
        """Memory that the host shares with the device, as sealed memory of ``open``.

        Only what the sender alone can write besides this process (rule H3).
        """
        return HostMemory(view.cast("B"), lambda: None)

    def key(self, suite: Suite, key: SecretKey) -> HostKey:
        """Make a cipher ready."""
        return HostKey(suite, self._make_cipher(suite, key))

    def pinned(self, nbytes: int) -> None:
        """None: copies here are made by the processor."""

    def pin(self, memory: memoryview) -> None:
        """None: copies here are made by the processor."""

    def upload(self, host: Buffer, to: DeviceMemory, offset: int = 0) -> QueuedWork:
        """Copy from the host."""
        source = memoryview(host).cast("B")
        _range(to, offset, source.nbytes)[:] = source
        return _DONE

    def download(
        self,
        source: DeviceMemory,
        offset: int,
        out: bytearray | memoryview,
        *,
        after: Sequence[DeviceEvent] = (),
    ) -> QueuedWork:
        """Copy to the host."""
        for event in after:
            event.wait()
        target = memoryview(out).cast("B")
        target[:] = _range(source, offset, target.nbytes)
        return _DONE

    def open(
        self,
        key: DeviceKey,
        sealed: DeviceMemory,
        plain: DeviceMemory,
        places: Sequence[RecordPlace],
        *,
        after: Sequence[DeviceEvent] = (),
    ) -> QueuedWork:
        """Open the records, several at once."""
        check_places(places, sealed, plain)
        return self._open([(key, places)], sealed, plain, after)

    def transfer(
        self,
        parts: Sequence[Part],
        sealed: DeviceMemory,
        plain: DeviceMemory,
        groups: Sequence[Group],
        *,
        after: Sequence[DeviceEvent] = (),
    ) -> QueuedWork:
        """Copy, then open the records, several at once."""
        check_transfer(parts, sealed, plain, groups)
        for event in after:
            event.wait()
        for host, offset in parts:
            self.upload(host, sealed, offset)
        return self._open(groups, sealed, plain, ())

    def seal(
        self,
        key: DeviceKey,
        plain: DeviceMemory,
        sealed: DeviceMemory,
        places: Sequence[RecordPlace],
        *,
        after: Sequence[DeviceEvent] = (),
    ) -> QueuedWork:
        """Seal the records, several at once."""
        check_places(places, sealed, plain)
        cipher, source, target = _own(key).cipher(), _view(plain), _view(sealed)

        def seal_one(place: RecordPlace) -> None:
            text, room = place.plain_in(source), place.sealed_in(target)
            cipher.seal_into(place.nonce, text, place.associated_data, room)

        return self._run(seal_one, places, after)

    def close(self) -> None:
        """Wait for what is queued, scrub all memory. Idempotent."""
        self._closed = True
        self._pool.shutdown(wait=True)
        for memory in list(self._memories):
            memory.close()

    def _open(
        self,
        groups: Sequence[Group],
        sealed: DeviceMemory,
        plain: DeviceMemory,
        after: Sequence[DeviceEvent],
    ) -> QueuedWork:
        source, target = _view(sealed), _view(plain)
        units = [
            (_own(key).cipher(), place) for key, places in groups for place in places
        ]

        def open_one(unit: tuple[Aead, RecordPlace]) -> None:
            cipher, place = unit
            record, room = place.sealed_in(source), place.plain_in(target)
            if place.tag:
                record[place.plaintext_bytes :] = place.tag
            cipher.open_into(place.nonce, record, place.associated_data, room)

        def undo() -> None:
            for _, place in units:
                scrub(place.plain_in(target))

        return self._run(open_one, units, after, undo)

    def _spend(self, nbytes: int) -> None:
        with self._lock:
            if self._free_bytes is None:
                return
            if nbytes > self._free_bytes:
                raise device_out_of_memory(
                    nbytes, f"{self._free_bytes:,} bytes are free"
                )
            self._free_bytes -= nbytes

    def _settle(self) -> None:
        wait(list(self._running))

    def _queue(self, step: Callable[[], None]) -> Future[None]:
        try:
            queued = self._pool.submit(step)
        except RuntimeError as error:  # closed meanwhile, or no more threads
            raise device_lost(str(error)) from None
        self._running.add(queued)
        queued.add_done_callback(self._running.discard)
        return queued

    def _run(
        self,
        step: Callable[[Unit], None],
        units: Sequence[Unit],
        after: Sequence[DeviceEvent],
        undo: Callable[[], None] | None = None,
    ) -> QueuedWork:
        for event in after:
            event.wait()
        if self._closed:
            raise device_lost("it was closed")
        if len(units) > 1:
            parts = [self._queue(partial(step, unit)) for unit in units]
            return QueuedWork(parts, undo=undo)
        try:
            for unit in units:
                step(unit)
        except Exception as error:  # what went wrong is for whoever waits
            return QueuedWork(failed=error, undo=undo)
        return _DONE


_DONE: Final = QueuedWork()


def _worst(errors: list[BaseException]) -> BaseException:
    """A tag that failed outranks everything that came of it (rule M3)."""
    failed = [e for e in errors if isinstance(e, AuthenticationError)]
    return (failed or errors)[0]


def _pin_in_turn(cores: Sequence[int]) -> Callable[[], None]:
    turn = itertools.cycle(cores)
    return lambda: os.sched_setaffinity(0, {next(turn)})  # 0: this thread alone


def _mapped(nbytes: int) -> mmap.mmap:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        mapped = mmap.mmap(-1, max(nbytes, 1), flags=flags)
    except (OSError, OverflowError) as error:
        raise device_out_of_memory(nbytes, str(error)) from error
    with contextlib.suppress(OSError):  # a wish; less time goes into page tables
        mapped.madvise(mmap.MADV_HUGEPAGE)
    scrub(memoryview(mapped))  # every page exists from now on
    return mapped


def _own(key: DeviceKey) -> HostKey:
    if not isinstance(key, HostKey):
        raise UsageError("this key is on another device")
    return key


def _view(memory: DeviceMemory) -> memoryview:
    if not isinstance(memory, HostMemory):
        raise UsageError("this memory belongs to another device")
    memory.require_open()
    return memory.view


def _range(memory: DeviceMemory, start: int, nbytes: int) -> memoryview:
    view = _view(memory)
    check_range(memory, start, nbytes)
    return view[start : start + nbytes]
