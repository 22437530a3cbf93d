"""One connection of the relay: frames in, frames out, and never a wait.

Frames as ``channel/transports/tcp.py`` writes them: a big-endian u32 length, then the frame. What
the socket does not take at once stays in the outbox.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator
from typing import Final

from sealift.channel.transports.tcp import LENGTH_BYTES
from sealift.channel.transports.transport import (
    DEFAULT_MAX_FRAME_BYTES,
    check_announced_bytes,
    peer_closed,
)
from sealift.ids import Buffer
from sealift.session.envelope import MAX_ENVELOPE_BYTES

READ_BYTES: Final = 64 << 10  # at once; longer frames are read into their own memory
_PIECES: Final = 64  # of the outbox in one call; the system takes 1024


class RelayLine:
    """A socket whose frames are forwarded.

    Args:
        number: Its number at the relay.
        sock: Owned from here on.
        begun: What somebody else read of it already.
    """

    def __init__(self, number: int, sock: socket.socket, begun: bytes) -> None:
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.number = number
        self.outbox_bytes = 0
        self.outbox: deque[Buffer] = deque()
        self.blocked = False  # the socket did not take all of it
        self._max_frame_bytes = MAX_ENVELOPE_BYTES
        self._sock = sock
        self._rest = begun
        self._long: memoryview | None = None
        self._filled = 0

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._sock.fileno()

    def registered(self) -> None:
        """From here on its frames may be as long as any."""
        self._max_frame_bytes = DEFAULT_MAX_FRAME_BYTES

    def begin(self) -> Iterator[Buffer]:
        """The frames that were read already; raises like ``receive``."""
        return self._split()

    def receive(self, scratch: memoryview) -> Iterator[Buffer]:
        """What one read of the socket completes.

        Args:
            scratch: ``READ_BYTES`` of memory, free again when the iterator ends.

        Raises:
            PeerError: if the connection ended.
            MalformedError: if a frame above the limit is announced.
        """
        if self._long is None:
            self._rest += scratch[: self._read(scratch)]
            return self._split()
        self._filled += self._read(self._long[self._filled :])
        if self._filled < len(self._long):
            return iter(())
        frame, self._long = self._long, None
        return iter((frame,))

    def put(self, frame: Buffer) -> None:
        """Queue a frame."""
        self.outbox.append(len(frame).to_bytes(LENGTH_BYTES, "big"))
        self.outbox.append(frame)
        self.outbox_bytes += LENGTH_BYTES + len(frame)

    def flush(self) -> None:
        """Send of the outbox what the socket takes now.

        Raises:
            PeerError: if the connection ended.
        """
        while self.outbox:
            pieces = [self.outbox[i] for i in range(min(_PIECES, len(self.outbox)))]
            try:
                sent = self._sock.sendmsg(pieces)
            except BlockingIOError:
                return
            except OSError as error:
                raise peer_closed(error.strerror or "") from None
            self._forget(sent)

    def close(self) -> None:
        """Close the socket; what was not sent is lost."""
        self.outbox.clear()
        self._sock.close()

    def _read(self, room: memoryview) -> int:
        try:
            count = self._sock.recv_into(room)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise peer_closed(error.strerror or "") from None
        if count == 0:
            raise peer_closed("the peer ended it")
        return count

    def _split(self) -> Iterator[Buffer]:
        raw, at = self._rest, 0
        while len(raw) - at >= LENGTH_BYTES:
            start = at + LENGTH_BYTES
            length = int.from_bytes(raw[at:start], "big")
            check_announced_bytes(length, self._max_frame_bytes)
            if len(raw) - start < length:
                if length > READ_BYTES:
                    self._begin_long(length, raw[start:])
                    at = len(raw)
                break
            at = start + length
            yield raw[start:at]
        self._rest = raw[at:]

    def _begin_long(self, length: int, begun: bytes) -> None:
        self._long = memoryview(bytearray(length))
        self._long[: len(begun)] = begun
        self._filled = len(begun)

    def _forget(self, sent: int) -> None:
        """Take what was sent out of the outbox."""
        self.outbox_bytes -= sent
        while sent:
            first = self.outbox.popleft()
            if sent < len(first):
                self.outbox.appendleft(memoryview(first)[sent:])
                return
            sent -= len(first)
