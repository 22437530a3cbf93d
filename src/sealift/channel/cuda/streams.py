"""Lanes: a stream each, tickets that stand behind what was queued, and who queues it.

A lane queues either in the caller's thread or in a thread of its own. The latter is for
confidential GPUs, where a copy returns only when everything before it is done (NVIDIA
says so of CC mode; ``staging.py`` measures it): nothing but that thread may wait then.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from sealift.channel.cuda.driver import CudaError, Driver, PreparedCall
from sealift.channel.device.device import DeviceEvent, device_lost
from sealift.errors import SealiftError

Step = Callable[[Any], None]
"""Queues something on the stream that it is given."""

_END: Final = None


class EventPool:
    """Events of one context, used again when nobody can wait for them any more."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._free: list[Any] = []

    def take(self) -> Any:
        """An event."""
        try:
            return self._free.pop()
        except IndexError:
            return self._driver.event()

    def give_back(self, event: Any) -> None:
        """No ticket has it now; streams that wait for it keep what they wait for."""
        self._free.append(event)

    def close(self) -> None:
        """Give all back to the driver."""
        while self._free:
            self._driver.release(self._free.pop())


class Ticket:
    """A point in a lane (see ``channel.device.device.DeviceEvent``)."""

    def __init__(self, driver: Driver, pool: EventPool) -> None:
        self._driver = driver
        self._pool = pool
        self._event: Any = None
        self._queued = threading.Event()
        self._lock = threading.Lock()
        self._past = False
        self.failed: BaseException | None = None

    def arm(self, stream: Any) -> None:
        """Stand behind what ``stream`` was given."""
        self._event = self._pool.take()
        self._driver.record(self._event, stream)
        self._queued.set()

    def arm_call(self, stream: Any) -> PreparedCall:
        """The same as a call; whoever gets it makes it before anybody has the ticket."""
        self._event = self._pool.take()
        self._queued.set()
        return self._driver.record_call(self._event, stream)

    def fail(self, error: BaseException) -> None:
        """It could not be queued."""
        self.failed = error
        self._queued.set()

    def hold_up(self, driver: Driver, stream: Any) -> None:
        """Let ``stream`` wait for this point.

        Raises:
            SealiftError: what kept it from being queued.
        """
        if self._past:
            return
        self._queued.wait()
        if self.failed is not None:
            raise self.failed
        driver.wait(stream, self._event)

    def is_done(self) -> bool:
        """Whether it is past, without waiting; a failure counts as past."""
        if not self._queued.is_set():
            return False
        try:
            return self.failed is not None or self._driver.is_done(self._event)
        except CudaError:
            return True

    def wait(self) -> None:
        """Wait until it is past.

        Raises:
            UnavailableError: code ``device-lost``, if the device failed meanwhile.
        """
        self._queued.wait()
        with self._lock:
            if self.failed is None:
                self._settle()
            if self.failed is not None:
                raise self.failed

    def _settle(self) -> None:
        try:
            self._driver.synchronize(self._event)
            self._past = True
        except CudaError as fault:
            self.failed = fault.to_error()

    def __del__(self) -> None:
        if self._event is not None:
            self._pool.give_back(self._event)


class Joined:
    """Several tickets as one."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.tickets = [ticket for point in points for ticket in _tickets_of(point)]

    def hold_up(self, driver: Driver, stream: Any) -> None:
        """Let ``stream`` wait for all."""
        for ticket in self.tickets:
            ticket.hold_up(driver, stream)

    def is_done(self) -> bool:
        """Whether all are past."""
        return all(ticket.is_done() for ticket in self.tickets)

    def wait(self) -> None:
        """Wait for all, then raise what one of them raised."""
        errors = []
        for ticket in self.tickets:
            try:
                ticket.wait()
            except SealiftError as error:
                errors.append(error)
        if errors:
            raise errors[0]


class Passed:
    """A point that was reached, or failed: whoever overwrites only has to come later.

    Otherwise what one call could not do would forbid to scrub what another left.
    """

    def __init__(self, point: Point) -> None:
        self._tickets = _tickets_of(point)

    def hold_up(self, driver: Driver, stream: Any) -> None:
        """Let ``stream`` wait for it."""
        for ticket in self._tickets:
            with suppress(SealiftError):
                ticket.hold_up(driver, stream)


Point = Ticket | Joined
HoldsUp = Point | Passed
"""What a lane can be told to wait for."""


def on_device(after: Sequence[DeviceEvent]) -> list[Point]:
    """Wait here for what is no point in a lane, so that no lane has to.

    Verdicts are such: what follows a refusal needs the lanes itself.

    Raises:
        SealiftError: what one of them raised; nothing was queued.
    """
    points = []
    for each in after:
        if isinstance(each, Point):
            points.append(each)
        else:
            each.wait()
    return points


class DeviceStream:
    """One stream and who queues on it.

    Args:
        driver: The context of the stream.
        pool: Events of that context.
        name: Of its thread.
        threaded: Whether it has one.
    """

    def __init__(
        self, driver: Driver, pool: EventPool, name: str, *, threaded: bool
    ) -> None:
        self.driver = driver
        self.stream = driver.stream()
        self._pool = pool
        self._lock = threading.Lock()
        self._closed = False
        self._process = os.getpid()
        self._steps: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        if threaded:
            self._thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._thread.start()

    def submit(
        self,
        step: Step,
        *,
        after: Sequence[HoldsUp] = (),
    ) -> Ticket:
        """Queue ``step`` behind everything before and behind ``after``.

        Args:
            step: Queues work on the stream it is given.
            after: What it waits for.

        Raises:
            UnavailableError: if it cannot be queued; a lane with a thread says so to
                whoever waits for the ticket.
        """
        if self._closed:
            raise device_lost("the engine was closed")
        if os.getpid() != self._process:  # its thread would never take the step
            raise device_lost("a GPU cannot be used in a forked process")
        ticket = Ticket(self.driver, self._pool)
        if self._thread is None:
            self._queue(ticket, step, after)
            if (failed := ticket.failed) is not None:
                raise failed
        else:
            self._steps.put(lambda: self._queue(ticket, step, after))
        return ticket

    def close(self) -> None:
        """Let what is queued finish, end the thread, give the stream back."""
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            self._steps.put(_END)
            self._thread.join()
        self.driver.release(self.stream)

    def _queue(self, ticket: Ticket, step: Step, after: Sequence[HoldsUp]) -> None:
        try:
            with self._lock:  # what one step queues stays together
                for each in after:
                    each.hold_up(self.driver, self.stream)
                step(self.stream)
                ticket.arm(self.stream)
        except CudaError as fault:
            ticket.fail(fault.to_error())
        except BaseException as error:  # whoever waits for the ticket is told
            ticket.fail(error)

    def _work(self) -> None:
        while (step := self._steps.get()) is not _END:
            step()


def _tickets_of(point: Point) -> list[Ticket]:
    return point.tickets if isinstance(point, Joined) else [point]
