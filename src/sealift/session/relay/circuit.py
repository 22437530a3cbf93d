"""One end of a circuit through the relay: a transport like any other.

Credit keeps it bounded: an end may have ``WINDOW_BYTES`` under way, then waits until the
other end takes frames out of its queue. A peer that sends beyond that loses the circuit.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from sealift.channel.transport.transport import (
    DEFAULT_SEND_TIMEOUT_S,
    CopyingSlots,
    Deadline,
    check_frame_bytes,
    peer_timeout,
)
from sealift.errors import PeerError
from sealift.ids import Buffer
from sealift.session.relay.envelope import (
    FRAME_COST_BYTES,
    WINDOW_BYTES,
    EnvelopeKind,
    RelayEnvelope,
    close,
    credit,
    relay_error,
)

_CREDIT_STEP_BYTES: Final = (
    WINDOW_BYTES // 4
)  # credit goes back in steps, not per frame


class Circuit(CopyingSlots):
    """A transport to one peer; made by ``RelayClient.open`` and ``RelayClient.accept``.

    Args:
        circuit: Its id.
        peer_name: The name that the relay knows the peer by; proven by nothing yet.
        write: Sends an envelope over the connection.
        max_frame_bytes: Longest frame sent.
    """

    def __init__(
        self,
        circuit: bytes,
        peer_name: str,
        *,
        write: Callable[[bytes], None],
        max_frame_bytes: int,
        send_timeout_s: float = DEFAULT_SEND_TIMEOUT_S,
    ) -> None:
        self.id = circuit
        self.peer_name = peer_name
        self.max_frame_bytes = max_frame_bytes
        self._head = RelayEnvelope(EnvelopeKind.FRAME, circuit).encode()
        self._write = write
        self._send_timeout_s = send_timeout_s
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0  # received, and no credit given back for them yet
        self._taken_bytes = 0  # of these, taken out of the queue
        self._under_way_bytes = 0
        self._end: str | None = None

    def send(self, frame: Buffer) -> None:
        """Send one frame; waits while the window is full."""
        check_frame_bytes(len(frame), self.max_frame_bytes)
        self._spend(len(frame) + FRAME_COST_BYTES)
        self._write(b"".join((self._head, frame)))

    def has_room(self, frame_bytes: int) -> bool:
        """Whether there is credit; nobody at the relay waits for who reads."""
        return self._under_way_bytes < WINDOW_BYTES

    def receive(self, timeout_s: float | None = None) -> bytes:
        """The next frame."""
        deadline = Deadline(timeout_s)
        with self._changed:
            while not self._queue:
                self._wait(deadline)
            frame = self._queue.popleft()
            self._taken_bytes += len(frame) + FRAME_COST_BYTES
            back = self._credit_due()
        if back:
            with suppress(PeerError):  # the connection's end is told by the next call
                self._write(credit(self.id, back))
        return frame

    def close(self) -> None:
        """End the circuit; the peer still gets the frames sent before."""
        if self._finish("peer-closed", forget=True):
            self._tell_closed("peer-closed")

    def deliver(self, frame: bytes) -> None:
        """Take a frame from the reader; never waits."""
        with self._changed:
            if self._end is not None:
                return
            if self._queued_bytes < WINDOW_BYTES:
                self._queue.append(frame)
                self._queued_bytes += len(frame) + FRAME_COST_BYTES
                self._changed.notify_all()
                return
        self._finish("flooded", forget=True)
        self._tell_closed("flooded")

    def give_credit(self, credit_bytes: int) -> None:
        """The peer took frames out of its queue."""
        with self._changed:
            self._under_way_bytes = max(0, self._under_way_bytes - credit_bytes)
            self._changed.notify_all()

    def end(self, reason: str) -> None:
        """The circuit, or the connection, ended at the other side; queued frames stay."""
        self._finish(reason, forget=False)

    def _spend(self, cost_bytes: int) -> None:
        deadline = Deadline(self._send_timeout_s)
        with self._changed:
            while self._end is None and self._under_way_bytes >= WINDOW_BYTES:
                self._wait(deadline)
            if self._end is not None:
                raise self._ended()
            self._under_way_bytes += cost_bytes

    def _credit_due(self) -> int:
        due = self._taken_bytes
        if due < _CREDIT_STEP_BYTES or self._end is not None:
            return 0
        self._taken_bytes = 0
        self._queued_bytes -= due
        return due

    def _wait(self, deadline: Deadline) -> None:
        if self._end is not None:
            raise self._ended()
        left_s = deadline.remaining_s()
        if left_s is not None and left_s <= 0:
            raise peer_timeout()
        self._changed.wait(left_s)

    def _finish(self, reason: str, *, forget: bool) -> bool:
        """Record the end; returns whether it was the first."""
        with self._changed:
            first = self._end is None
            if first:
                self._end = reason
            if forget:
                self._queue.clear()
            self._changed.notify_all()
            return first

    def _tell_closed(self, reason: str) -> None:
        with suppress(PeerError):  # it is gone: nobody left to tell
            self._write(close(self.id, reason))

    def _ended(self) -> PeerError:
        return relay_error(self._end or "", self.peer_name)
