"""One other rank: its pipe, and a thread that sends where sending must wait.

What a rank receives must not wait for what it sends. So what has no room in the pipe is
sent by a thread, one for each peer, in the order in which it was told; most has room, and
waking a thread costs as much as sealing a hundred KiB. Of every collective each peer's
announcement is read first, and compared (rule N4), whatever is to be received.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, cast

from sealift.channel.device.device import DeviceTensor, SummingEngine
from sealift.collective.announcement import ANNOUNCEMENT_BYTES, CollectiveAnnouncement
from sealift.errors import PeerError, SealiftError
from sealift.ids import Buffer
from sealift.session.lifetime import ENDED_HERE


class Wire(Protocol):
    """One peer's end of a two-way pipe; ``session.pipe.Pipe`` is one."""

    def send(self, source: Buffer) -> None:
        """Send a message; its memory may be reused when this returns."""

    def send_now(self, source: Buffer) -> bool:
        """Send it if nobody need be waited for; False if it was not sent."""

    def receive_into(self, target: bytearray | memoryview) -> None:
        """Receive the next message, which is as long as ``target``."""

    def close(self) -> None:
        """End it, and know that the peer has everything."""

    def abort(self) -> None:
        """End it without a word; wakes whoever waits in it."""


class DeviceWire(Wire, Protocol):
    """One whose messages may lie on a device; ``session.devicepipe.DevicePipe`` is one."""

    def use_device(self, engine: SummingEngine) -> None:
        """Seal and open such messages on this device."""

    def send(self, source: Buffer | DeviceTensor) -> None:
        """See ``Wire``."""

    def receive_into(self, target: bytearray | memoryview | DeviceTensor) -> None:
        """See ``Wire``."""


class Peer:
    """A peer's pipe, and the thread that sends to it what does not go at once."""

    def __init__(
        self, number: int, wire: Wire, fail: Callable[[SealiftError], SealiftError]
    ) -> None:
        self.number, self.wire, self._fail = number, wire, fail
        self._orders: queue.SimpleQueue[
            memoryview | DeviceTensor | Callable[[SealiftError | None], None] | None
        ] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._waiting = 0
        self._stopped = False
        self._expected: CollectiveAnnouncement | None = None
        self._thread = threading.Thread(
            target=self._work, name=f"sends to rank {number}", daemon=True
        )
        self._thread.start()

    def announce(self, announcement: CollectiveAnnouncement) -> None:
        """Say what begins; the peer must say the same."""
        self.send(announcement.encode())
        self._expected = announcement

    def expect(self, announcement: CollectiveAnnouncement) -> None:
        """The peer must say this next; nothing is said to it."""
        self._expected = announcement

    def hear(self) -> None:
        """What the peer says begins, if it was not heard yet.

        Raises:
            See ``CollectiveAnnouncement.demand_same``.
        """
        expected, self._expected = self._expected, None
        if expected is not None:
            heard = bytearray(ANNOUNCEMENT_BYTES)
            with self._naming():
                self.wire.receive_into(heard)
            expected.demand_same(heard, self.number)

    def send(self, message: Buffer | DeviceTensor) -> None:
        """Send in order; the memory is used until ``flush`` returns, or ``idle``.

        What lies on a device is sealed there first, which takes a while.
        """
        order: memoryview | DeviceTensor
        if isinstance(message, DeviceTensor):
            order = message
        else:
            order = memoryview(message).cast("B")
            if self.idle:
                with self._naming():
                    if self.wire.send_now(order):
                        return
        with self._changed:
            self._waiting += 1
        self._orders.put(order)

    def call_when_sent(self, call: Callable[[SealiftError | None], None]) -> None:
        """Call it once everything before was sent, or with the error that ended sending."""
        with self._changed:
            later = self._waiting and not self._stopped
            if later:
                self._waiting += 1
                self._orders.put(call)
        if not later:
            call(None)

    def receive(self, room: bytearray | memoryview | DeviceTensor) -> None:
        """Fill ``room`` with the next message of what was announced."""
        self.hear()
        with self._naming():
            if isinstance(room, DeviceTensor):
                self.on_device.receive_into(room)
            else:
                self.wire.receive_into(memoryview(room).cast("B"))

    @property
    def on_device(self) -> DeviceWire:
        """The wire, for whoever gave the group wires that take a device's messages."""
        return cast(DeviceWire, self.wire)

    @property
    def idle(self) -> bool:
        """Whether everything was sent; what is, stays, until somebody sends."""
        return not self._waiting

    def flush(self) -> None:
        """Wait until everything was sent, or nothing more can be."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or not self._waiting)

    def stop(self) -> None:
        """Send nothing that has not been begun."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._orders.put(None)

    def _work(self) -> None:
        broken: SealiftError | None = None
        while (order := self._orders.get()) is not None:
            try:
                if callable(order):
                    order(broken)
                    continue
                with self._naming():
                    self.on_device.send(order)
            except SealiftError as error:
                broken = broken or error
                # Else the pipe ended by what the receiving thread met, which says it.
                if error.code != ENDED_HERE:
                    self._fail(error)
            except BaseException as error:  # else the caller would wait for ever
                broken = PeerError(
                    f"sending to rank {self.number} is not possible",
                    why=error,
                    code=ENDED_HERE,
                )
                self._fail(broken)
            finally:
                with self._changed:
                    self._waiting -= 1
                    self._changed.notify_all()

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Say of which rank it is."""
        try:
            yield
        except PeerError as error:
            what, ranks = f"rank {self.number} cannot be reached", (self.number,)
            raise PeerError(what, why=error, code=error.code, ranks=ranks) from None
        except SealiftError as error:
            error.what = f"rank {self.number}: {error.what}"
            error.ranks = (self.number,)
            raise
