"""The host's stand-in for a device: private memory, and threads that open and seal.

It is the oracle of the contract suite and the device of machines without a GPU. Its
memory is the process's own: put it into a process of its own where the device is to be
apart from the host (``linkdevice.py``).
Several records are opened at once where the engine has threads; one thread more than
cores gains nothing, since each call keeps a core busy outside the interpreter.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from sealift.channel.backend import AeadBackend, RecordCipher
from sealift.channel.cpu import CpuBackend
from sealift.channel.device import (
    DeviceKey,
    DeviceMemory,
    Event,
    RecordPlace,
    check_places,
    device_lost,
    device_out_of_memory,
)
from sealift.channel.quarantine import scrub
from sealift.crypto.aead import TAG_BYTES, Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError, UnavailableError, UsageError
from sealift.ids import Buffer

MAX_THREADS: Final = 16


class HostMemory:
    """Memory of this process; ``view`` reads and writes it."""

    def __init__(self, view: memoryview, give_back: Callable[[], None]) -> None:
        self.view = view
        self.nbytes = view.nbytes
        self._give_back = give_back
        self._closed = False

    def scrub(self) -> None:
        """Overwrite it with zeroes."""
        if not self._closed:
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

    def __init__(self, suite: Suite, cipher: RecordCipher) -> None:
        self.suite = suite
        self._cipher: RecordCipher | None = cipher

    def cipher(self) -> RecordCipher:
        """The cipher.

        Raises:
            UsageError: after ``close``.
        """
        if self._cipher is None:
            raise UsageError("this key was taken off the device", code="dead-key")
        return self._cipher

    def close(self) -> None:
        """Forget it."""
        self._cipher = None


class Work:
    """What one call queued: an event, and for ``open`` the verdicts."""

    def __init__(
        self, parts: Iterable[Future[None]], undo: Callable[[], None] | None = None
    ) -> None:
        self._parts = list(parts)
        self._undo = undo
        self._failed: BaseException | None = None

    def wait(self) -> None:
        """Wait for all parts; when one failed, undo all and raise what it raised."""
        # Every part is waited for: none may write after the memory was scrubbed.
        errors = [error for part in self._parts if (error := part.exception())]
        self._parts = []
        if errors and self._failed is None:
            if self._undo is not None:
                self._undo()
            self._failed = _worst(errors)
        if isinstance(self._failed, AuthenticationError):
            raise AuthenticationError
        if self._failed is not None:
            raise self._failed


class HostDevice:
    """A device made of this process's memory and threads.

    Args:
        threads: Records opened or sealed at once; the cores of this process if None.
        memory_bytes: What may be allocated altogether, None for no limit.
        backend: Who computes the AEAD.
    """

    name = "host"

    def __init__(
        self,
        *,
        threads: int | None = None,
        memory_bytes: int | None = None,
        backend: AeadBackend | None = None,
    ) -> None:
        count = threads or len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(
            min(count, MAX_THREADS), thread_name_prefix="sealift-device"
        )
        self._backend = backend or CpuBackend()
        self._free_bytes = memory_bytes
        self._memories: list[HostMemory] = []

    def suites(self) -> tuple[Suite, ...]:
        """What the processor computes."""
        return self._backend.suites()

    def allocate(self, nbytes: int) -> HostMemory:
        """Zeroed memory whose pages all exist: a first touch costs more than a copy."""
        if self._free_bytes is not None and nbytes > self._free_bytes:
            raise device_out_of_memory(nbytes, f"{self._free_bytes} are left")
        mapped = _mapped(nbytes)
        if self._free_bytes is not None:
            self._free_bytes -= nbytes

        def give_back() -> None:
            if self._free_bytes is not None:
                self._free_bytes += nbytes
            mapped.close()

        memory = HostMemory(memoryview(mapped)[:nbytes], give_back)
        self._memories.append(memory)
        return memory

    def adopt(self, view: memoryview) -> HostMemory:
        """Memory that the host shares with the device, as sealed memory of ``open``.

        Only what the sender alone can write besides this process (rule H3).
        """
        return HostMemory(view.cast("B"), lambda: None)

    def key(self, suite: Suite, key: SecretKey) -> HostKey:
        """Make a cipher ready."""
        if suite not in self.suites():
            raise UnavailableError(
                f"engine {self.name} does not compute {suite.name}",
                code="no-such-suite",
            )
        return HostKey(suite, self._backend.cipher(suite, key))

    def upload(self, host: Buffer, to: DeviceMemory, offset: int = 0) -> Work:
        """Copy from the host."""
        source = memoryview(host).cast("B")
        target = _range(to, offset, source.nbytes)
        return self._queue([lambda: _copy(target, source)])

    def download(
        self,
        source: DeviceMemory,
        offset: int,
        out: bytearray | memoryview,
        *,
        after: Sequence[Event] = (),
    ) -> Work:
        """Copy to the host."""
        target = memoryview(out).cast("B")
        found = _range(source, offset, target.nbytes)
        return self._queue([lambda: _copy(target, found)], after)

    def open(
        self,
        key: DeviceKey,
        sealed: DeviceMemory,
        plain: DeviceMemory,
        places: Sequence[RecordPlace],
        *,
        after: Sequence[Event] = (),
    ) -> Work:
        """Open the records, several at once."""
        check_places(places, sealed, plain)
        cipher = _own(key).cipher()

        def opened(place: RecordPlace) -> Callable[[], None]:
            record = _sealed_range(sealed, place)
            room = _plain_range(plain, place)
            return lambda: _discard(
                cipher.open_into(place.nonce, record, place.associated_data, room)
            )

        def undo() -> None:
            for place in places:
                scrub(_plain_range(plain, place))

        return self._queue([opened(place) for place in places], after, undo)

    def seal(
        self,
        key: DeviceKey,
        plain: DeviceMemory,
        sealed: DeviceMemory,
        places: Sequence[RecordPlace],
        *,
        after: Sequence[Event] = (),
    ) -> Work:
        """Seal the records, several at once."""
        check_places(places, sealed, plain)
        cipher = _own(key).cipher()

        def sealing(place: RecordPlace) -> Callable[[], None]:
            source = _plain_range(plain, place)
            room = _sealed_range(sealed, place)
            return lambda: _discard(
                cipher.seal_into(place.nonce, source, place.associated_data, room)
            )

        return self._queue([sealing(place) for place in places], after)

    def close(self) -> None:
        """Wait for what is queued, scrub all memory. Idempotent."""
        self._pool.shutdown(wait=True)
        for memory in self._memories:
            memory.close()
        self._memories = []

    def _queue(
        self,
        steps: Sequence[Callable[[], None]],
        after: Sequence[Event] = (),
        undo: Callable[[], None] | None = None,
    ) -> Work:
        for event in after:
            event.wait()
        try:
            return Work([self._pool.submit(step) for step in steps], undo)
        except RuntimeError as error:
            raise device_lost("it was closed") from error


def _mapped(nbytes: int) -> mmap.mmap:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    try:
        return mmap.mmap(-1, max(nbytes, 1), flags=flags)
    except (OSError, OverflowError) as error:
        raise device_out_of_memory(nbytes, str(error)) from error


def _own(key: DeviceKey) -> HostKey:
    if not isinstance(key, HostKey):
        raise UsageError("this key is on another device")
    return key


def _range(memory: DeviceMemory, start: int, nbytes: int) -> memoryview:
    if not isinstance(memory, HostMemory):
        raise UsageError("this memory is another device's")
    if start < 0 or start + nbytes > memory.nbytes:
        raise UsageError(
            f"{nbytes} bytes at {start} do not lie in {memory.nbytes} bytes",
            code="bad-record-place",
        )
    return memory.view[start : start + nbytes]


def _sealed_range(memory: DeviceMemory, place: RecordPlace) -> memoryview:
    return _range(memory, place.sealed_offset, place.plaintext_bytes + TAG_BYTES)


def _plain_range(memory: DeviceMemory, place: RecordPlace) -> memoryview:
    return _range(memory, place.plain_offset, place.plaintext_bytes)


def _copy(target: memoryview, source: memoryview) -> None:
    target[:] = source


def _discard(_written: int) -> None:
    """The length is known beforehand."""


def _worst(errors: list[BaseException]) -> BaseException:
    """A tag that failed outranks everything that came of it (rule M3)."""
    failed = [e for e in errors if isinstance(e, AuthenticationError)]
    return (failed or errors)[0]
