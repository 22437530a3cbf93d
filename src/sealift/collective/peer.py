"""One other rank: its pipe, and the thread that sends to it.

What a rank sends waits for its peer; what it receives must not wait for that. So a thread
sends, one for each peer, in the order in which it was told.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from sealift.errors import PeerError, SealiftError
from sealift.ids import Buffer

# So little of a collective is sent without waking another thread: it fits into any pipe
# while nobody receives, also into a ring of three slots.
_AT_ONCE_BYTES: Final = 32 << 10
_AT_ONCE_MESSAGES: Final = 3


class Wire(Protocol):
    """One peer's end of a two-way pipe; ``session.pipe.Pipe`` is one."""

    def send(self, source: Buffer) -> None:
        """Send a message; its memory may be reused when this returns."""

    def receive_into(self, target: bytearray | memoryview) -> None:
        """Receive the next message, which is as long as ``target``."""

    def close(self) -> None:
        """End it, and know that the peer has everything."""

    def abort(self) -> None:
        """End it without a word; wakes whoever waits in it."""


class Peer:
    """A peer's pipe, and the thread that sends to it what does not go at once."""

    def __init__(
        self, number: int, wire: Wire, fail: Callable[[SealiftError], SealiftError]
    ) -> None:
        self.number, self.wire, self._fail = number, wire, fail
        self._orders: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._waiting = self._at_once = self._messages = 0
        self._stopped = False
        self._thread = threading.Thread(
            target=self._work, name=f"sends to rank {number}", daemon=True
        )
        self._thread.start()

    def send(self, message: Buffer) -> None:
        """Send in order; the memory is used until ``flush`` returns."""
        view = memoryview(message).cast("B")
        with self._changed:
            self._at_once += len(view)
            self._messages += 1
            little = self._at_once <= _AT_ONCE_BYTES
            at_once = little and self._messages <= _AT_ONCE_MESSAGES
            at_once = at_once and not self._waiting
            self._waiting += not at_once
        if at_once:
            with self._naming():
                self.wire.send(view)
        else:
            self._orders.put(view)

    def receive(self, room: bytearray | memoryview) -> None:
        """Fill ``room`` with the next message."""
        with self._naming():
            self.wire.receive_into(memoryview(room).cast("B"))

    def flush(self) -> None:
        """Wait until everything was sent, or nothing more can be."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or not self._waiting)
            self._at_once = self._messages = 0

    def stop(self) -> None:
        """Send nothing that has not been begun."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._orders.put(None)

    def _work(self) -> None:
        while (message := self._orders.get()) is not None:
            try:
                with self._naming():
                    self.wire.send(message)
            except SealiftError as error:
                self._fail(error)
            except BaseException as error:  # else the caller would wait for ever
                self._fail(
                    PeerError(
                        f"nothing can be sent to rank {self.number}",
                        why=error,
                        code="session-ended",
                    )
                )
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
            raise PeerError(
                f"rank {self.number} cannot be reached", why=error, code=error.code
            ) from None
        except SealiftError as error:
            error.what = f"rank {self.number}: {error.what}"
            raise
