"""What a session puts into a transport's frames: one kind byte, then the payload.

Each direction is one sealed stream of messages: it starts with the stream's header frame
and ends with its final record, so an end without one is a truncation.

The kind byte is not authenticated. Whoever changes it makes a frame that does not open,
does not parse as a handshake message, or is taken for a raw frame, which authenticates
itself (spec/handshake.md section 6).
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final

from sealift.channel.record.opener import StreamOpener
from sealift.channel.record.sealer import StreamSealer
from sealift.channel.transport.transport import Transport
from sealift.crypto.aead import Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import (
    AuthenticationError,
    MalformedError,
    PeerError,
    SealiftError,
    StaleError,
)
from sealift.ids import Buffer

MAX_MESSAGE_BYTES: Final = 1 << 20
RECORD_BYTES: Final = MAX_MESSAGE_BYTES + 32  # the type byte, rounded up to 32


class FrameKind(IntEnum):
    """First byte of every frame of a session."""

    HANDSHAKE = 1
    ABORT = 2
    HEADER = 3
    RECORD = 4
    RAW = 5


class MessageType(IntEnum):
    """First byte of every plaintext, under the seal."""

    APPLICATION = 0
    REKEY_HELLO = 1
    REKEY_REPLY = 2
    REKEY_ANSWER = 3
    REKEY_DONE = 4
    CLOSE = 5


def pack(kind: FrameKind, payload: Buffer) -> bytes:
    """One frame."""
    return b"".join((bytes([kind]), payload))


def unpack(frame: bytes) -> tuple[FrameKind, bytes]:
    """Kind and payload of a frame.

    Raises:
        MalformedError: if it is empty, or of an unknown kind.
    """
    try:
        return FrameKind(frame[0]), frame[1:]
    except (IndexError, ValueError):
        raise MalformedError("not a frame of a session", code="bad-frame") from None


def _parse_type(plaintext: bytes) -> tuple[MessageType, bytes]:
    """Type and payload of an opened record.

    Raises:
        MalformedError: if it is empty, or of an unknown type.
    """
    try:
        return MessageType(plaintext[0]), plaintext[1:]
    except (IndexError, ValueError):
        raise MalformedError("not a message of a session", code="bad-frame") from None


def pack_abort(error: SealiftError) -> bytes:
    """The stable name of a refusal, for the other end's error line. Nothing else."""
    return pack(FrameKind.ABORT, error.code.encode())


def raise_abort(payload: bytes) -> None:
    """Report a peer's refusal. It is not authenticated, so it is only a hint.

    Raises:
        PeerError: always.
    """
    text = payload[:64].decode("ascii", "replace")
    code = text if re.fullmatch(r"[a-z0-9-]+", text) else "no reason given"
    raise PeerError(
        "the peer refused the session",
        why=code,
        fix=f"sealift explain {code} says what it means; its log has the whole line",
        code="peer-refused",
    )


class MessageSender:
    """Seals and sends; the header goes out before the first message.

    Not earlier: a peer may say what it has to say and leave at once, and that must not
    fail here before it is read.

    Args:
        transport: Where frames go.
        key: Base key of this direction; wiped here.
        suite: As negotiated.
        key_epoch: How often the session was rekeyed.
    """

    def __init__(
        self, transport: Transport, key: SecretKey, *, suite: int, key_epoch: int
    ) -> None:
        self._transport = transport
        self._sealer = StreamSealer(
            key,
            total_bytes=None,
            record_bytes=RECORD_BYTES,
            suite=Suite(suite),
            key_epoch=key_epoch,
            trailer=False,
        )
        key.wipe()
        self._started = False
        self._broken: PeerError | None = None

    def send(self, kind: MessageType, payload: Buffer, *, final: bool = False) -> None:
        """Seal one message and send it.

        Raises:
            PeerError: if the transport fails; this direction is over then, because the
                peer would miss a record.
        """
        if self._broken is not None:
            raise PeerError(self._broken.what, code=self._broken.code)
        plaintext = b"".join((bytes([kind]), payload))
        frame = self._sealer.seal_frame(plaintext, final=final)
        try:
            self._start()
            self._transport.send(pack(FrameKind.RECORD, frame))
        except PeerError as error:
            self._broken = error
            raise

    def _start(self) -> None:
        if not self._started:
            self._transport.send(pack(FrameKind.HEADER, self._sealer.header_bytes))
            self._started = True

    def close(self) -> None:
        """Forget the keys."""
        self._sealer.close()


class MessageReceiver:
    """Opens what the peer's sender sealed."""

    def __init__(self, key: SecretKey, *, suite: int, key_epoch: int) -> None:
        self._key = key
        self._suite = suite
        self._key_epoch = key_epoch
        self._opener: StreamOpener | None = None

    def start(self, header: bytes) -> None:
        """Take the stream's header.

        Raises:
            AuthenticationError: if it belongs to another key.
            MalformedError: if it does not parse, there was one already, or it differs
                from what the handshake agreed on.
        """
        if self._opener is not None:
            raise MalformedError("a second stream in one direction", code="bad-frame")
        opener = StreamOpener(self._key, header, trailer=False)
        self._key.wipe()
        agreed = (self._suite, self._key_epoch, True)
        found = opener.header
        if (found.suite, found.key_epoch, found.carries_messages) != agreed:
            raise MalformedError(
                "the peer's stream differs from the one agreed in the handshake",
                code="stream-differs",
            )
        self._opener = opener

    def open(self, frame: bytes) -> tuple[MessageType, bytes]:
        """Open the next record.

        Raises:
            AuthenticationError: if it is not exactly the next one, unchanged.
            MalformedError: if it does not parse.
        """
        if self._opener is None:
            raise MalformedError(
                "a record came before the stream's header", code="bad-frame"
            )
        try:
            return _parse_type(self._opener.open_frame(frame))
        except StaleError:  # whoever carries it can say it again: nobody's refusal
            raise AuthenticationError from None

    @property
    def finished(self) -> bool:
        """Whether the final record was opened."""
        return self._opener is not None and self._opener.finished

    def close(self) -> None:
        """Forget the keys."""
        self._key.wipe()
        if self._opener is not None:
            self._opener.close()
