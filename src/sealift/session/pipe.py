"""A two-way bulk pipe between the two ends of an attested session.

Messages of any length, both ways at once, sealed record by record into the carrier's own
memory and opened from it into the receiver's: a private memory file, TCP, or a circuit of
the relay. Both ends know how long the next message is. Each direction has a key of its own,
which the session exports, under a header with fresh randomness (rule C8); the associated
data names the pipe, the message, and where in it a record stands, so that what opens is
exactly the next record of exactly this pipe (rule H4).
Guarantees: ``receive_into`` returns once all of a message verified, and leaves zeroes
otherwise; the first error ends both directions for ever and wipes the keys; ``close``
returns once each end knows that the other verified everything.
Not here: making the carrier; protection of ``source`` and ``target`` from others who can
write or read them meanwhile (rule N10: lend private memory, copy what passed).
Source: spec/pipe.md.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, Self

from sealift.channel.record.frames import (
    FRAME_EXTRA_BYTES,
    FrameOpener,
    FrameSealer,
    wrong_length,
)
from sealift.channel.record.layout import FINAL_BIT, PREFIX
from sealift.channel.record.opener import scrub
from sealift.channel.record.record import forked_stream
from sealift.channel.transport.transport import SlotTransport
from sealift.crypto.aead import Suite
from sealift.crypto.hash import labelled
from sealift.crypto.keys import Label
from sealift.errors import MalformedError, PeerError, SealiftError, UsageError
from sealift.ids import Buffer
from sealift.session.lifetime import EndPolicy, Lifetime
from sealift.session.session import Session
from sealift.session.transcript import Side

RECORD_BYTES: Final = 1 << 20
DEFAULT_TIMEOUT_S: Final = 60.0
LEAST_RATE: Final = 4096  # bytes a second: who cuts a message into many records is slow
_HELLO: Final = b"SEALPIP\x01"
_BOUND: Final = struct.Struct(">32sQQQ")
_COUNT: Final = struct.Struct(">Q")


class Pipe:
    """One end; the other is made at the same time from the same session.

    One thread may send while another receives. It outlives its session, and needs a
    second thread where both ends send more than the carrier holds.

    Args:
        session: Its keys are exported as they are now; both ends must be at the same
            rekey.
        carrier: Connects the same two processes; owned from now on.
        context: What the pipe is for, which both ends know.
        timeout_s: How long the peer may take for one record.
        hello_s: How long for its first one, which says that there is a pipe.

    Raises:
        PeerError: if the other end is gone, or makes no pipe.
        AuthenticationError: if it belongs to another session, or another context.
        MalformedError: if it speaks something else.
    """

    def __init__(
        self,
        session: Session,
        carrier: SlotTransport,
        context: bytes,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        hello_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._carrier = carrier
        self._hello_s = min(timeout_s, hello_s)
        self._timeout_s = timeout_s
        most_bytes = carrier.max_frame_bytes - FRAME_EXTRA_BYTES
        self._record_bytes = min(RECORD_BYTES, most_bytes)
        self._send_lock, self._receive_lock = threading.Lock(), threading.Lock()
        self._sent = self._received = 0
        self._process = os.getpid()
        with ExitStack() as undone:
            undone.callback(carrier.close)
            self._meet(session, context, undone)
            self._life = Lifetime(undone.pop_all().close, "the pipe ended")

    def _meet(self, session: Session, context: bytes, undone: ExitStack) -> None:
        """Exchange headers; together they name the pipe."""
        side, suite = session.established.side, Suite(session.established.suite)
        with ExitStack() as wiping:
            out, back = (
                session.export(Label.PIPE, each.value.encode() + b"\0" + context)
                for each in (side, side.other)
            )
            wiping.callback(out.wipe)
            wiping.callback(back.wipe)
            self._sealer = FrameSealer(out, suite=suite, context=context)
            undone.callback(self._sealer.close)
            mine = self._sealer.header_bytes
            self._carrier.send(_HELLO + mine)
            hello = self._carrier.receive(self._hello_s)
            if not hello.startswith(_HELLO):
                raise MalformedError(
                    "the peer does not use a pipe, or uses another version"
                )
            theirs = hello[len(_HELLO) :]
            self._opener = FrameOpener(back, theirs, context=context)
            undone.callback(self._opener.close)
        if self._opener.header.suite is not suite:
            raise MalformedError(
                "the peer's pipe differs from the one agreed in the handshake",
                code="stream-differs",
            )
        headers = (mine, theirs) if side is Side.INITIATOR else (theirs, mine)
        self.id = labelled(Label.PIPE.value, *headers)

    def send(self, source: Buffer) -> None:
        """Send one message; ``source`` may be reused at once.

        Raises:
            PeerError: if the peer is gone, or takes nothing for too long.
            UsageError: code ``pipe-in-use``, if another thread is sending.
        """
        view = memoryview(source).cast("B")
        with self._turn(self._send_lock):
            for offset in range(0, len(view) or 1, self._record_bytes):
                part = view[offset : offset + self._record_bytes]
                self._seal(part, offset, len(view))
            self._sent += 1

    def send_now(self, source: Buffer) -> bool:
        """``send``, if the peer need not be waited for; else False, and nothing was done.

        Raises:
            See ``send``.
        """
        view = memoryview(source).cast("B")
        with self._turn(self._send_lock):
            frame_bytes = len(view) + FRAME_EXTRA_BYTES
            one_record = len(view) <= self._record_bytes
            if not one_record or not self._carrier.has_room(frame_bytes):
                return False
            self._seal(view, 0, len(view))
            self._sent += 1
        return True

    def receive_into(self, target: bytearray | memoryview) -> None:
        """Receive the next message, which is as long as ``target``.

        Nobody may look at ``target`` meanwhile; if this raises, zeroes are left in it.

        Raises:
            AuthenticationError, StaleError, MalformedError: if what came is not the
                next message of that length.
            PeerError: if the peer is gone, closed the pipe, or sends nothing for too long.
            UsageError: code ``pipe-in-use``, if another thread is receiving.
        """
        view = memoryview(target).cast("B")
        if view.readonly:
            raise UsageError("a message must be received into writable memory")
        with self._turn(self._receive_lock):
            deadline_s = time.monotonic() + self._timeout_s + len(view) / LEAST_RATE
            try:
                offset = self._open(view, 0, len(view))
                while offset < len(view):
                    if time.monotonic() > deadline_s:  # each record came in time
                        slow = "the peer sends a message in parts that are too small"
                        raise PeerError(slow, code="peer-timeout")
                    offset += self._open(view[offset:], offset, len(view))
            except BaseException:
                scrub(view)
                raise
            self._received += 1

    def close(self) -> None:
        """Tell the peer how much was verified here, and hear it of the peer. Idempotent.

        Both ends call it, once neither has anything more to send.

        Raises:
            PeerError: ``session-truncated``, if either end did not receive everything;
                or if the peer does not close.
            UsageError: code ``pipe-in-use``, if a thread is sending or receiving.
        """
        if self._life.over or self._process != os.getpid():
            return
        _claim(self._receive_lock)
        try:
            with self._turn(self._send_lock):
                self._tell_and_hear_counts()
        finally:
            self._receive_lock.release()
        self.abort()

    def _tell_and_hear_counts(self) -> None:
        told = _COUNT.pack(self._received)
        self._seal(told, 0, len(told), final=True)
        frame = self._carrier.borrow(self._timeout_s)
        if not is_last(frame):
            raise PeerError(
                "the pipe was closed before everything was received",
                code="session-truncated",
            )
        verified = self._open_last(frame)
        if verified != self._sent:
            raise PeerError(
                f"the peer closed the pipe after {verified} of {self._sent} messages",
                code="session-truncated",
            )

    def abort(self) -> None:
        """End it without a word; wakes whoever waits in it. Idempotent."""
        if self._process == os.getpid():
            self._life.end(PeerError("the pipe is closed", code="session-closed"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    @contextmanager
    def _turn(self, lock: threading.Lock) -> Iterator[None]:
        """One thread a direction, in the process that made the pipe, until an error."""
        if self._process != os.getpid():
            raise forked_stream()
        _claim(lock)
        try:
            with self._life.use(EndPolicy.ALWAYS):
                yield
        except SealiftError:
            raise
        except BaseException:  # half a message may have crossed
            self.abort()
            raise
        finally:
            lock.release()

    def _bound(self, number: int, offset: int, length: int) -> bytes:
        """What a record is bound to: the pipe, its message, where in it, how long."""
        return _BOUND.pack(self.id, number, offset, length)

    def _seal(
        self, part: Buffer, offset: int, length: int, *, final: bool = False
    ) -> None:
        frame = self._carrier.reserve(len(part) + FRAME_EXTRA_BYTES, self._timeout_s)
        bound = self._bound(self._sent, offset, length)
        self._sealer.seal(part, frame, bound, final=final)
        self._carrier.commit()

    def _open(self, room: memoryview, offset: int, length: int) -> int:
        """Open the next record of a message; how many bytes it has."""
        frame = self._carrier.borrow(self._timeout_s)
        plaintext_bytes = len(frame) - FRAME_EXTRA_BYTES
        if is_last(frame):
            self._open_last(frame)
            raise PeerError("the peer closed the pipe", code="session-closed")
        if plaintext_bytes > len(room) or plaintext_bytes <= 0 < len(room):
            raise wrong_length(len(frame), len(room) + FRAME_EXTRA_BYTES)
        bound = self._bound(self._received, offset, length)
        self._opener.open_into(frame, room[:plaintext_bytes], bound)
        self._carrier.give_back()
        return plaintext_bytes

    def _open_last(self, frame: memoryview) -> int:
        """Open the peer's final record: how many messages it verified."""
        told = bytearray(_COUNT.size)
        if len(frame) != len(told) + FRAME_EXTRA_BYTES:
            raise wrong_length(len(frame), len(told) + FRAME_EXTRA_BYTES)
        bound = self._bound(self._received, 0, len(told))
        self._opener.open_into(frame, told, bound, final=True)
        self._carrier.give_back()
        verified: int = _COUNT.unpack(told)[0]
        return verified


def _claim(lock: threading.Lock) -> None:
    if not lock.acquire(blocking=False):
        raise UsageError(
            "another thread is using this direction of the pipe", code="pipe-in-use"
        )


def is_last(frame: memoryview) -> bool:
    """Whether it is a pipe's final record."""
    return len(frame) >= PREFIX.size and bool(PREFIX.unpack_from(frame)[1] & FINAL_BIT)
