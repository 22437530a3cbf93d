"""An attested session: typed messages both ways over any transport.

Guarantees: what ``receive`` returns is exactly the next message that the verified peer
sent; an end without the peer's final record is reported as a truncation; the first
authentication or format error ends the session and wipes its keys; ``rekey`` replaces
all keys through a whole new handshake.
Not guaranteed: order between sealed messages and raw frames. Raw frames (visit frames)
authenticate themselves; the session only carries them.
One thread may send while another receives; ``rekey`` belongs to the receiving one.
Source: spec/handshake.md sections 5 to 7.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from sealift import codec
from sealift.channel.record.frames import FRAME_EXTRA_BYTES
from sealift.channel.transport.transport import Deadline, Transport
from sealift.crypto.keys import Label, SecretKey
from sealift.errors import MalformedError, PeerError, SealiftError, UsageError
from sealift.ids import Buffer
from sealift.session.endpoint import Endpoint, Established, PeerPolicy, VerifiedPeer
from sealift.session.frames import (
    MAX_MESSAGE_BYTES,
    FrameKind,
    MessageReceiver,
    MessageSender,
    MessageType,
    pack,
    pack_abort,
    raise_abort,
    unpack,
)
from sealift.session.handshake import Initiator, Responder
from sealift.session.lifetime import TIMEOUT, EndPolicy, Lifetime, Watchdog
from sealift.session.transcript import Side

T = TypeVar("T")
HANDSHAKE_TIMEOUT_S: Final = 10.0
REKEY_TIMEOUT_S: Final = 30.0
CLOSE_TIMEOUT_S: Final = 2.0
MAX_WAITING: Final = 256  # frames that may arrive between two steps of a rekey
MAX_WAITING_BYTES: Final = 16 << 20
_CLOSING: Final = Watchdog(CLOSE_TIMEOUT_S)
_LAST: Final = {MessageType.CLOSE, MessageType.REKEY_ANSWER, MessageType.REKEY_DONE}


@dataclass(frozen=True, slots=True)
class Incoming:
    """Something that arrived: a sealed message, opened, or a raw frame as it came."""

    raw: bool
    payload: bytes


class Session:
    """A live session; made by ``connect`` and ``accept``.

    Args:
        transport: Carries the frames; closed with the session.
        established: Outcome of the handshake.
        endpoint: Our side, kept for rekeying.
        policy: What the peer must show, kept for rekeying.
    """

    def __init__(
        self,
        transport: Transport,
        established: Established,
        *,
        endpoint: Endpoint,
        policy: PeerPolicy,
    ) -> None:
        self._transport = transport
        self._endpoint = endpoint
        self._policy = policy
        self._send_lock = threading.RLock()
        self._receive_lock = threading.RLock()
        self._waiting: deque[Incoming] = deque()
        self._postponed: tuple[MessageType, bytes] | None = None
        self._life = Lifetime(self._wipe_and_close)
        self._key_epoch = 0
        self._start(established)

    @property
    def established(self) -> Established:
        """Outcome of the latest handshake."""
        return self._established

    @property
    def peer(self) -> VerifiedPeer:
        """Who is at the other end."""
        return self._established.peer

    @property
    def th2(self) -> bytes:
        """Names this session until it is rekeyed."""
        return self._established.th2

    @property
    def key_epoch(self) -> int:
        """How often the session was rekeyed."""
        return self._key_epoch

    @property
    def descriptor(self) -> int | None:
        """What the system says of when ``receive_now`` may find something; None for nothing."""
        return self._transport.descriptor

    @property
    def has_ahead(self) -> bool:
        """Whether ``receive_now`` may find more, of which the system says nothing."""
        return bool(self._waiting) or self._transport.has_ahead

    @property
    def must_wait(self) -> bool:
        """Whether the peer wants new keys: ``receive`` has to be called, and will wait."""
        return self._postponed is not None

    def export(self, label: Label, context: bytes = b"") -> SecretKey:
        """The same key on both ends, for the purpose ``label``."""
        return self._established.export(label, context)

    def send(self, message: Buffer) -> None:
        """Seal and send one message of up to 1 MiB.

        Raises:
            UsageError: if it is longer.
            PeerError: if the peer is gone or the session ended.
        """
        _demand_short(message)
        with self._life.use(EndPolicy.NEVER), self._send_lock:
            self._sending.send(MessageType.APPLICATION, message)

    def send_now(self, message: Buffer) -> bool:
        """``send``, if nobody need be waited for; else False, and nothing was sent.

        Raises:
            See ``send``.
        """
        _demand_short(message)
        with self._life.use(EndPolicy.NEVER):
            if not self._send_lock.acquire(blocking=False):  # a rekey, say
                return False
            try:
                frame_bytes = len(message) + FRAME_EXTRA_BYTES
                if not self._transport.has_room(frame_bytes):
                    return False
                self._sending.send(MessageType.APPLICATION, message)
            finally:
                self._send_lock.release()
        return True

    def receive(self, timeout_s: float | None = None) -> bytes:
        """The next message.

        Raises:
            PeerError: ``peer-timeout`` (the session goes on), ``session-closed`` (the
                peer closed it), ``session-truncated`` (the connection ended before).
            AuthenticationError: a record was changed; the session is over.
            MalformedError: something else than a message came; the session is over.
        """
        with self._life.use(EndPolicy.UNLESS_TIMEOUT), self._receive_lock:
            return _demand_message(self._next(timeout_s))

    def receive_now(self) -> bytes | None:
        """The next message, if it is here; never waits.

        Returns:
            None if it is not, or if the session ``must_wait``.

        Raises:
            See ``receive``; no ``peer-timeout``.
        """
        with self._life.use(EndPolicy.UNLESS_TIMEOUT), self._receive_lock:
            if self._waiting:
                return _demand_message(self._waiting.popleft())
            try:
                kind, payload = self._read(Deadline(0.0))
            except PeerError as error:
                if error.code != TIMEOUT:
                    raise
                return None
            if kind not in (None, MessageType.APPLICATION):
                self._postponed = kind, payload
                return None
            return _demand_message(Incoming(kind is None, payload))

    def send_message(self, message: object) -> None:
        """Send a record of the codec."""
        self.send(codec.encode(message))

    def receive_message(self, cls: type[T], timeout_s: float | None = None) -> T:
        """The next message, decoded as ``cls``; raises like ``receive``."""
        return codec.decode(cls, self.receive(timeout_s))

    def send_raw(self, frame: Buffer) -> None:
        """Send a frame that authenticates itself, unsealed."""
        with self._life.use(EndPolicy.NEVER), self._send_lock:
            self._transport.send(pack(FrameKind.RAW, frame))

    def receive_any(self, timeout_s: float | None = None) -> Incoming:
        """The next message or raw frame, whichever comes; raises like ``receive``."""
        with self._life.use(EndPolicy.UNLESS_TIMEOUT), self._receive_lock:
            return self._next(timeout_s)

    def rekey(self, timeout_s: float = REKEY_TIMEOUT_S) -> None:
        """Replace all keys by a whole new handshake; the initiator's to call.

        The peer answers while it is in a receive call.

        Raises:
            RefusedError: the peer did not prove itself again; the session is over.
            PeerError: it did not answer in time; the session is over.
        """
        if self._established.side is not Side.INITIATOR:
            raise UsageError("only the side that opened a session can rekey it")
        with self._life.use(EndPolicy.ALWAYS), self._receive_lock:
            deadline = Deadline(timeout_s)
            renewal = Initiator(self._endpoint, self._policy, renews=self._established)
            with self._send_lock:
                self._sending.send(MessageType.REKEY_HELLO, renewal.hello())
            reply = self._await(MessageType.REKEY_REPLY, deadline)
            with self._send_lock:
                answer = renewal.answer(reply)
                self._sending.send(MessageType.REKEY_ANSWER, answer, final=True)
                done = self._await(MessageType.REKEY_DONE, deadline)
                self._renew(renewal.finish(done))

    def close(self) -> None:
        """Send the final record, wipe the keys, close the transport. Safe to repeat.

        Takes at most about ``CLOSE_TIMEOUT_S``: a peer that takes nothing any more gets
        no final record.
        """
        if self._life.over:
            return
        with _CLOSING.limit(self._transport.close), self._send_lock:
            if not self._life.over:
                with suppress(SealiftError):
                    self._sending.send(MessageType.CLOSE, b"", final=True)
        self._life.end(PeerError("the session is closed", code="session-closed"))

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _start(self, established: Established) -> None:
        self._established = established
        suite, key_epoch = established.suite, self._key_epoch
        self._receiving = MessageReceiver(
            established.receive_key(), suite=suite, key_epoch=key_epoch
        )
        self._sending = MessageSender(
            self._transport, established.send_key(), suite=suite, key_epoch=key_epoch
        )

    def _renew(self, renewed: Established) -> None:
        self._wipe()
        self._key_epoch += 1
        self._start(renewed)

    def _wipe(self) -> None:
        self._sending.close()
        self._receiving.close()
        self._established.wipe()

    def _wipe_and_close(self) -> None:
        self._wipe()
        self._transport.close()

    def _next(self, timeout_s: float | None) -> Incoming:
        if self._postponed is not None:
            postponed, self._postponed = self._postponed, None
            self._control(*postponed)
        if self._waiting:
            return self._waiting.popleft()
        deadline = Deadline(timeout_s)
        while True:
            kind, payload = self._read(deadline)
            if kind is None or kind is MessageType.APPLICATION:
                return Incoming(kind is None, payload)
            self._control(kind, payload)

    def _read(self, deadline: Deadline) -> tuple[MessageType | None, bytes]:
        """One frame, opened; None stands for a raw one."""
        while True:
            kind, payload = unpack(self._receive_frame(deadline))
            if kind is FrameKind.RAW:
                return None, payload
            if kind is FrameKind.RECORD:
                return self._open(payload)
            if kind is FrameKind.HEADER:
                self._receiving.start(payload)
            elif kind is FrameKind.ABORT:
                raise_abort(payload)
            else:
                raise MalformedError(
                    "a handshake message came in an open session", code="bad-frame"
                )

    def _receive_frame(self, deadline: Deadline) -> bytes:
        try:
            return self._transport.receive(deadline.remaining_s())
        except PeerError as error:
            if error.code == TIMEOUT:
                raise
            raise PeerError(
                "the connection ended before the session was closed",
                why=str(error),
                code="session-truncated",
            ) from None

    def _open(self, record: bytes) -> tuple[MessageType, bytes]:
        kind, payload = self._receiving.open(record)
        if self._receiving.finished is not (kind in _LAST):
            raise MalformedError("a stream ended at the wrong message")
        if kind is MessageType.CLOSE:
            raise PeerError("the peer closed the session", code="session-closed")
        return kind, payload

    def _control(self, kind: MessageType, payload: bytes) -> None:
        if kind is MessageType.REKEY_HELLO and self._established.side is Side.RESPONDER:
            with self._life.use(EndPolicy.ALWAYS):
                self._answer_rekey(payload)
            return
        raise MalformedError(
            "a rekey message came out of order", code="unexpected-frame"
        )

    def _answer_rekey(self, hello: bytes) -> None:
        deadline = Deadline(REKEY_TIMEOUT_S)
        renewal = Responder(self._endpoint, self._policy, renews=self._established)
        with self._send_lock:
            self._sending.send(MessageType.REKEY_REPLY, renewal.reply(hello))
        answer = self._await(MessageType.REKEY_ANSWER, deadline)
        done, renewed = renewal.finish(answer)
        with self._send_lock:
            self._sending.send(MessageType.REKEY_DONE, done, final=True)
            self._renew(renewed)

    def _await(self, wanted: MessageType, deadline: Deadline) -> bytes:
        """The wanted step of a rekey; what else comes meanwhile waits its turn."""
        while True:
            kind, payload = self._read(deadline)
            if kind is wanted:
                return payload
            if kind not in (None, MessageType.APPLICATION):
                raise MalformedError("a rekey message came out of order")
            self._waiting.append(Incoming(kind is None, payload))
            waiting_bytes = sum(len(frame.payload) for frame in self._waiting)
            if len(self._waiting) > MAX_WAITING or waiting_bytes > MAX_WAITING_BYTES:
                raise PeerError("the peer sent too much during a rekey", code="flooded")


def _demand_message(incoming: Incoming) -> bytes:
    if incoming.raw:
        raise MalformedError(
            "expected a message",
            why="a raw frame came in place of a message",
            code="unexpected-frame",
        )
    return incoming.payload


def _demand_short(message: Buffer) -> None:
    if len(message) > MAX_MESSAGE_BYTES:
        raise UsageError(
            f"a message has {len(message):,} bytes, more than {MAX_MESSAGE_BYTES:,}",
            code="message-too-long",
        )


def connect(
    transport: Transport,
    endpoint: Endpoint,
    policy: PeerPolicy,
    timeout_s: float = HANDSHAKE_TIMEOUT_S,
) -> Session:
    """Open a session as the initiator.

    Raises:
        RefusedError: the peer is not who or what ``policy`` demands.
        PeerError: it refused us (``peer-refused``), is gone, or did not answer in time.
        MalformedError: it does not speak this protocol.
    """
    deadline = Deadline(timeout_s)
    with _abort_on_error(transport):
        initiator = Initiator(endpoint, policy)
        _send(transport, initiator.hello())
        _send(transport, initiator.answer(_receive(transport, deadline)))
        established = initiator.finish(_receive(transport, deadline))
        return Session(transport, established, endpoint=endpoint, policy=policy)


def accept(
    transport: Transport,
    endpoint: Endpoint,
    policy: PeerPolicy,
    timeout_s: float = HANDSHAKE_TIMEOUT_S,
) -> Session:
    """Open a session as the responder; raises like ``connect``."""
    deadline = Deadline(timeout_s)
    with _abort_on_error(transport):
        responder = Responder(endpoint, policy)
        _send(transport, responder.reply(_receive(transport, deadline)))
        done, established = responder.finish(_receive(transport, deadline))
        _send(transport, done)
        return Session(transport, established, endpoint=endpoint, policy=policy)


def _send(transport: Transport, message: bytes) -> None:
    transport.send(pack(FrameKind.HANDSHAKE, message))


def _receive(transport: Transport, deadline: Deadline) -> bytes:
    kind, payload = unpack(transport.receive(deadline.remaining_s()))
    if kind is FrameKind.ABORT:
        raise_abort(payload)
    if kind is not FrameKind.HANDSHAKE:
        raise MalformedError("expected a handshake message", code="bad-frame")
    return payload


@contextmanager
def _abort_on_error(transport: Transport) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if isinstance(error, SealiftError) and not isinstance(error, PeerError):
            with suppress(SealiftError):
                transport.send(pack_abort(error))
        transport.close()
        raise
