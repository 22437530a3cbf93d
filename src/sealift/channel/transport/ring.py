"""One direction of a shared memory file: slots in a ring, and who is where in it.

Writer and reader each keep their own count and show it to the other in a word of shared
memory. Whoever must wait looks at the other's word for a moment, since a wake-up through
the kernel takes as long as a tenth of a record, and sleeps on a socket only then: the
ring's bell. Counts of the other end are checked: it can stop the ring until the timeout,
not reach outside of it. (An eventfd would be faster, and hold this end for ever: whoever
else has it decides whether it waits. A socket is told call by call not to.)

The words order memory only on machines that keep stores in order (x86). Elsewhere each
frame goes with a byte through the bell, and the kernel orders.
"""

from __future__ import annotations

import contextlib
import os
import platform
import select
import socket
import time
from dataclasses import dataclass
from typing import Final

from sealift.channel.transport.transport import Deadline, peer_closed, peer_timeout
from sealift.errors import MalformedError

SLOT_HEAD_BYTES: Final = 32
CONTROL_BYTES: Final = 4096  # at the start of the file: the words of both rings
WORDS_PER_RING: Final = 64
DEFAULT_SPIN_S: Final = 100e-6
# Words lie two cache lines apart: processors fetch lines in pairs.
_WRITTEN, _READ, _READER_SLEEPS, _WRITER_SLEEPS = 0, 16, 32, 48
_LOOKS_PER_YIELD: Final = 32
_FIRST_SLEEP_MS: Final = 1
_AT_ONCE: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_HEARD_AT_ONCE: Final = 4096
STORES_IN_ORDER: Final = platform.machine() in ("x86_64", "AMD64")


@dataclass(slots=True)
class RingPlace:
    """Where a ring lies in the file, and this end of its bell."""

    first_word: int
    start: int
    slot_bytes: int
    num_slots: int
    bell: socket.socket  # sent to when there are frames, or room

    @property
    def stride(self) -> int:
        """Bytes from one slot to the next."""
        return SLOT_HEAD_BYTES + self.slot_bytes


class RingEnd:
    """The writer's or the reader's end of one ring.

    Args:
        place: Where it lies.
        words: The file's control area as 64-bit words.
        sock: Readable once the other end is gone.
        writes: Which end this is.
        spin_s: How long to look before sleeping.
    """

    def __init__(
        self,
        place: RingPlace,
        words: memoryview,
        sock: socket.socket,
        *,
        writes: bool,
        spin_s: float = DEFAULT_SPIN_S,
    ) -> None:
        self.place = place
        self.position = 0
        self.closed = False
        # All of the machine's: this end may be bound to one and the other to another.
        self.spin_s = spin_s if (os.cpu_count() or 1) > 1 else 0.0
        self._words = words
        self._sock = sock
        self._in_order = STORES_IN_ORDER
        first, num_slots = place.first_word, place.num_slots
        mine, theirs = (_WRITTEN, _READ) if writes else (_READ, _WRITTEN)
        sleeps = (_WRITER_SLEEPS, _READER_SLEEPS)
        self._my_word, self._their_word = first + mine, first + theirs
        self._i_sleep, self._they_sleep = (
            first + word for word in (sleeps if writes else sleeps[::-1])
        )
        self._bell = place.bell
        # The writer may begin with as many frames as there are slots.
        self._head_start = num_slots if writes else 0
        self._num_slots = num_slots
        self._granted = 0
        self._ended = False

    def slot_start(self, ahead: int = 0) -> int:
        """Where the slot begins whose turn it is, or one of those after it."""
        place = self.place
        return place.start + (self.position + ahead) % place.num_slots * place.stride

    def advance(self, count: int = 1) -> None:
        """Hand ``count`` slots over to the other end."""
        if self.closed:
            raise peer_closed()
        self.position += count
        if self._in_order:
            self._words[self._my_word] = self.position
            if self._words[self._they_sleep]:
                # One that is full wakes as it is.
                with contextlib.suppress(BlockingIOError):
                    self._ring(1)
        else:
            self._grant(count)

    def wait(self, count: int, timeout_s: float | None) -> None:
        """Wait until ``count`` slots are this end's.

        Raises:
            PeerError: if the other end is gone, or too slow.
            MalformedError: if the other end's count cannot be.
        """
        if self.closed:
            raise peer_closed()
        if self.available() < count and not self._seen(count):
            self._sleep(count, Deadline(timeout_s))
            if self.closed:
                raise peer_closed()

    def available(self) -> int:
        """Slots that are this end's by now."""
        if self._in_order:
            theirs = self._words[self._their_word]
        else:
            self._hear()
            theirs = self._granted
        found: int = theirs + self._head_start - self.position
        if not 0 <= found <= self._num_slots:
            raise MalformedError(
                "the peer wrote impossible frame counters into the memory file",
                code="bad-ring",
            )
        return found

    def release(self) -> None:
        """Let go of the memory, close this end of the bell."""
        self._words.release()
        self._bell.close()

    def _ring(self, count: int) -> None:
        try:
            self._bell.send(bytes(count), _AT_ONCE)
        except BlockingIOError:
            raise
        except OSError:  # gone: whoever waits for the other end is told
            self._ended = True

    def _grant(self, count: int) -> None:
        try:
            self._ring(count)
        except BlockingIOError:  # hundreds that it did not hear
            raise peer_timeout() from None

    def _hear(self) -> None:
        try:
            heard = self._bell.recv(_HEARD_AT_ONCE, _AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        self._granted += len(heard)
        self._ended = self._ended or not heard

    def _seen(self, count: int) -> bool:
        """Look again and again for a moment."""
        if self.spin_s <= 0 or not self._in_order:
            return False
        words, theirs = self._words, self._their_word
        wanted = self.position + count - self._head_start
        until = time.perf_counter() + self.spin_s
        while time.perf_counter() < until and not self.closed:
            for _ in range(_LOOKS_PER_YIELD):
                if words[theirs] >= wanted:
                    return self.available() >= count
            os.sched_yield()  # to other threads, and to the other end on the same core
        return False

    def _sleep(self, count: int, deadline: Deadline) -> None:
        # The other end may have looked just before the flag was set: look once more
        # after a whole millisecond, by when it must see it.
        longest_ms: int | None = _FIRST_SLEEP_MS
        if self._in_order:
            self._words[self._i_sleep] = 1
        try:
            while not self.closed and self.available() < count:
                if not self._poll(count, deadline, longest_ms):
                    longest_ms = None
        finally:
            if self._in_order and not self.closed:
                self._words[self._i_sleep] = 0

    def _poll(self, count: int, deadline: Deadline, longest_ms: int | None) -> bool:
        """Sleep once; whether something woke this end before the time was over."""
        left_ms = deadline.remaining_ms()
        waits = [ms for ms in (left_ms, longest_ms) if ms is not None]
        poller = select.poll()
        for sock in (self._bell, self._sock):
            poller.register(sock.fileno(), select.POLLIN)
        ready = [descriptor for descriptor, _ in poller.poll(min(waits, default=None))]
        if self._bell.fileno() in ready:
            self._hear()
        # Frames sent before the peer closed are read first.
        gone = self._ended or self._sock.fileno() in ready
        if gone and self.available() < count:
            raise peer_closed("the peer closed it")
        # Also after a wake-up: whoever only wakes does not hold this end up.
        if left_ms == 0 and self.available() < count:
            raise peer_timeout()
        return bool(ready)
