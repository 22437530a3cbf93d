"""The two directions of a session: each is one sealed stream of messages.

A direction starts with the stream's header frame and ends with its final record, so an
end without one is a truncation. Keys are wiped when a half is closed.
"""

from __future__ import annotations

from typing import Final

from sealift.channel.record.stream import StreamOpener, StreamSealer
from sealift.channel.transport.transport import Transport
from sealift.crypto.aead import Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError, MalformedError, PeerError, StaleError
from sealift.ids import Buffer
from sealift.session.frames import FrameKind, MessageType, pack, parse_type

MAX_MESSAGE_BYTES: Final = 1 << 20
RECORD_BYTES: Final = MAX_MESSAGE_BYTES + 32  # the type byte, rounded up to 32


class SendingHalf:
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


class ReceivingHalf:
    """Opens what the peer's sending half sealed."""

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
                "the peer's stream differs from what the handshake agreed on",
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
                "a record before the stream's header", code="bad-frame"
            )
        try:
            return parse_type(self._opener.open_frame(frame))
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
