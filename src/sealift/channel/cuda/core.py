"""What an engine is made of: lanes, rings, kernels, and everything it must give back."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final, Protocol, TypeVar

from sealift.channel.cuda.compilers import CudaKernels
from sealift.channel.cuda.driver import (
    Argument,
    CudaError,
    Driver,
    Grid,
    faults_as_errors,
)
from sealift.channel.cuda.memory import CudaMemory, SharedMemory
from sealift.channel.cuda.plan import KernelPlan, Launch, to_arguments
from sealift.channel.cuda.staging import CopySettings, HostBlock, Ring, Room, TableRing
from sealift.channel.cuda.streams import DeviceStream, EventPool, HoldsUp, Ticket
from sealift.channel.device.device import device_lost
from sealift.errors import IntegrityError, SealiftError, require_kind

_WORD: Final = 8


Ready = tuple[Any, Grid, tuple[Argument, ...]]
"""A kernel with its grid and arguments."""


class _Closing(Protocol):
    def close(self) -> None: ...


Closing = TypeVar("Closing", bound=_Closing)


class Upward:
    """One way to the GPU: a lane, its ring, and but for the first a context of its own."""

    def __init__(
        self, home: Driver, slots: int, number: int, copies: CopySettings
    ) -> None:
        with ExitStack() as made:
            driver = home
            if number:
                driver = _kept(made, home.another_context())
            pool = _kept(made, EventPool(driver))
            name = f"sealift-copy-{number}"
            self.ring = _kept(made, _ring_of(driver, home, slots, copies))
            self.lane = _kept(
                made, DeviceStream(driver, pool, name, threaded=copies.threads)
            )
            self._made = made.pop_all()

    def close(self) -> None:
        """Let it finish and give it back."""
        self._made.close()


def _ring_of(driver: Driver, home: Driver, slots: int, copies: CopySettings) -> Ring:
    """A ring of the usual size."""
    size = copies.piece_bytes
    return Ring(driver, home, slots, size, pinned=copies.pinned)


class Core:
    """The parts of an engine; ``engine.CudaEngine`` is the outside.

    Args:
        driver: The GPU's primary context.
        kernels: What runs on it.
        copies: How copies are made.
        slots: Slots of every ring, and batches that may be under way.
    """

    def __init__(
        self, driver: Driver, kernels: CudaKernels, copies: CopySettings, slots: int
    ) -> None:
        self.driver = driver
        self.kernels = kernels
        self.copies = copies
        self.lock = threading.RLock()
        self._handles: dict[str, Any] = {}
        self._live: list[CudaMemory] = []
        self._scratch = Room(driver)
        self._closed = False
        with ExitStack() as made:  # all of it, or nothing is left
            self._make(made, slots)
            self._made = made.pop_all()

    def _make(self, made: ExitStack, slots: int) -> None:
        driver, copies = self.driver, self.copies
        self._module = driver.load(self.kernels.code(driver.facts))
        made.callback(driver.release, self._module)
        self.pool = _kept(made, EventPool(driver))
        self._count = driver.allocate(_WORD)
        made.callback(driver.free, self._count)
        self._word = _kept(made, HostBlock(driver, _WORD, pinned=copies.pinned))
        self.tables = _kept(made, TableRing(driver, slots, pinned=copies.pinned))
        self.back_ring = _kept(made, _ring_of(driver, driver, slots, copies))
        made.callback(self._scratch.free)
        self.up = [
            _kept(made, Upward(driver, slots, number, copies))
            for number in range(copies.contexts)
        ]
        self.crypto = _kept(made, self._lane("crypto", threaded=copies.threads))
        self.answers = _kept(made, self._lane("answers", threaded=copies.threads))
        self.back = _kept(made, self._lane("back", threaded=True))

    def require_open(self) -> None:
        """Refuse after ``close``."""
        if self._closed:
            raise device_lost("the engine was closed")

    def allocate(self, nbytes: int) -> CudaMemory:
        """Device memory of any content, scrubbed when it is closed.

        Raises:
            UnavailableError: code ``device-out-of-memory``.
        """
        with faults_as_errors():
            address = self.driver.allocate(max(nbytes, 1))
        memory = CudaMemory(
            address, nbytes, scrub=self.scrub, give_back=self._give_back
        )
        with self.lock:
            self._live.append(memory)
        return memory

    def allocate_shared(self, nbytes: int) -> SharedMemory:
        """The same, for another process to map, which can write it at any time."""
        with faults_as_errors():
            address, descriptor = self.driver.allocate_shared(nbytes)
        memory = SharedMemory(
            address, nbytes, scrub=self.scrub, give_back=self._give_back_shared
        )
        memory.descriptor = descriptor
        with self.lock:
            self._live.append(memory)
        return memory

    def borrow(self, address: int, nbytes: int, owner: object) -> CudaMemory:
        """Somebody else's memory."""
        return CudaMemory(
            address, nbytes, scrub=self.scrub, give_back=lambda _: None, owner=owner
        )

    def run(self, plan: KernelPlan, places: Mapping[str, int], stream: Any) -> None:
        """Queue the kernels of a plan: all of them, or none was found wanting."""
        found = {**places, "scratch": self._scratch.of(plan.scratch_bytes)}
        self.launch([self.ready(launch, found) for launch in plan.launches], stream)

    def ready(self, launch: Launch, places: Mapping[str, int]) -> Ready:
        """A launch with its kernel and all that it is told."""
        return self.kernel(launch.kernel), launch.grid, to_arguments(launch, places)

    def launch(self, kernels: Sequence[Ready], stream: Any) -> None:
        """Queue them one behind the other."""
        if self.copies.threads:  # there a call may wait for what was queued before
            for kernel, grid, arguments in kernels:
                self.driver.launch(kernel, grid, arguments, stream)
        else:
            self.driver.issue(
                [self.driver.launch_call(*each, stream) for each in kernels]
            )

    def scrub(self, memory: CudaMemory) -> None:
        """Overwrite after everything queued on it, and read back.

        Raises:
            IntegrityError: if it does not become zeroes.
        """
        self.scrub_ranges(memory, ((0, memory.nbytes),))

    def scrub_ranges(
        self, memory: CudaMemory, ranges: Sequence[tuple[int, int]]
    ) -> None:
        """Overwrite some ranges (start, end) of it, and read each back."""

        def zero(stream: Any) -> None:
            for start, end in ranges:
                if start < end:
                    self.driver.zero(memory.address + start, end - start, stream)

        with self.lock:
            after = [p for r in ranges for p in memory.hazards.before_write(*r)]
            ticket = self.crypto.submit(zero, after=after)
            for start, end in ranges:
                memory.hazards.writes(start, end, ticket)
        ticket.wait()
        left = sum(self.count_nonzero(memory, *each) for each in ranges)
        if left:
            raise IntegrityError(
                f"{left} bytes were not zero after a scrub", code="scrub"
            )

    def count_nonzero(self, memory: CudaMemory, start: int, end: int) -> int:
        """How many bytes of a range are not zero, counted on the GPU."""
        if start == end:
            return 0
        plan = self.kernels.count_nonzero(end - start, self.driver.facts)
        return self.ask(plan, {"target": memory.address + start})

    def ask(
        self,
        plan: KernelPlan,
        places: Mapping[str, int],
        *,
        after: Sequence[HoldsUp] = (),
    ) -> int:
        """The number that kernels leave at the place ``count``, which is 0 before."""
        named = {**places, "count": self._count}

        def count(stream: Any) -> None:
            self.driver.zero(self._count, _WORD, stream)
            self.run(plan, named, stream)
            self.driver.copy_to_host(self._word.address, self._count, _WORD, stream)

        with self.lock:
            self.crypto.submit(count, after=after).wait()
            return int.from_bytes(self._word.view, "little")

    def scratch(self, nbytes: int) -> int:
        """Room for what is queued on the crypto lane, of any content."""
        return self._scratch.of(nbytes)

    def quiesce(self) -> None:
        """Wait for all that was queued, whatever comes of it."""
        lanes = (*(way.lane for way in self.up), self.crypto, self.answers, self.back)
        for lane in lanes:
            with suppress(SealiftError):
                lane.submit(lambda _: None).wait()

    def close(self) -> None:
        """Scrub and give back everything; a GPU that is gone only loses its own.

        Raises:
            IntegrityError: once all is given back, if something was not zeroes before.
        """
        with self.lock:
            if self._closed:
                return
            self._closed = True
        unclean = [error for each in list(self._live) if (error := _unclean(each))]
        with suppress(SealiftError):
            self.crypto.submit(self._wipe_scratch).wait()
        with suppress(CudaError):
            self._made.close()
        self.driver.close()
        if unclean:
            raise unclean[0]

    def _wipe_scratch(self, stream: Any) -> None:
        self._scratch.zero(stream)

    def _give_back(self, memory: CudaMemory) -> None:
        with self.lock:
            self._live = [each for each in self._live if each is not memory]
        with suppress(CudaError):  # a lost GPU has lost this, too
            self.driver.free(memory.address)

    def _give_back_shared(self, memory: CudaMemory) -> None:
        with self.lock:
            self._live = [each for each in self._live if each is not memory]
        require_kind(memory, SharedMemory).close_descriptor()
        with suppress(CudaError):
            self.driver.free_shared(memory.address, memory.nbytes)

    def kernel(self, name: str) -> Any:
        """A kernel by its name."""
        if name not in self._handles:
            self._handles[name] = self.driver.kernel(self._module, name)
        return self._handles[name]

    def ticket(self) -> Ticket:
        """One of the first context, which stands nowhere yet."""
        return Ticket(self.driver, self.pool)

    def _lane(self, name: str, *, threaded: bool) -> DeviceStream:
        return DeviceStream(
            self.driver, self.pool, f"sealift-{name}", threaded=threaded
        )


def _kept(made: ExitStack, part: Closing) -> Closing:
    made.callback(part.close)
    return part


def _unclean(memory: CudaMemory) -> IntegrityError | None:
    """Close it; what a scrub left is told, what a lost GPU cannot do is not."""
    try:
        memory.close()
    except IntegrityError as error:
        return error
    except SealiftError:
        pass
    return None
