"""One connection of the relay: frames in, frames out, and never a wait.

Frames as ``channel/transport/tcp.py`` writes them: a big-endian u32 length, then the frame. What
the socket does not take at once stays in the outbox, and counts against whoever sent it.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator
from typing import Final

from sealift.channel.transport.tcp import LENGTH_BYTES, settle_socket
from sealift.channel.transport.transport import (
    DEFAULT_MAX_FRAME_BYTES,
    check_announced_bytes,
    peer_closed,
)
from sealift.ids import Buffer
from sealift.session.relay.envelope import FRAME_COST_BYTES, MAX_REGISTRATION_BYTES

READ_BYTES: Final = 64 << 10  # at once; longer frames are read into their own memory
_PIECES: Final = 64  # of the outbox in one call; the system takes 1024


class Account:
    """Bytes of somebody that wait in outboxes, whosever they are.

    Args:
        most_bytes: From here on nothing more is read of it.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether it has to wait until others took some of it."""
        return self.bytes >= self._most_bytes


Accounts = tuple[Account, ...]
_Piece = tuple[Buffer, Accounts]  # and what it counts against


class RelayConnection:
    """A socket whose frames are forwarded.

    Args:
        number: Its number at the relay.
        sock: Owned from here on.
        begun: What somebody else read of it already.
        address: Where it comes from; None for this process.
        accounts: That its frames count against.
    """

    def __init__(
        self,
        number: int,
        sock: socket.socket,
        begun: bytes,
        *,
        address: str | None,
        accounts: Accounts,
    ) -> None:
        settle_socket(sock)
        self.number = number
        self.address = address
        self.accounts = accounts
        self.outbox_bytes = 0
        self.outbox: deque[_Piece] = deque()
        self.blocked = False  # the socket did not take all of it
        self.held = False  # nothing is read of it
        self._max_frame_bytes = MAX_REGISTRATION_BYTES
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

    @property
    def is_over(self) -> bool:
        """Whether too much of what it sent waits for others."""
        return any(account.is_full for account in self.accounts)

    def put(self, frame: Buffer, sender: Accounts = ()) -> None:
        """Queue a frame that counts against its sender until it is sent."""
        self.outbox.append((len(frame).to_bytes(LENGTH_BYTES, "big"), ()))
        self.outbox.append((frame, sender))
        self.outbox_bytes += LENGTH_BYTES + len(frame)
        _charge(sender, len(frame) + FRAME_COST_BYTES)

    def flush(self) -> None:
        """Send of the outbox what the socket takes now.

        Raises:
            PeerError: if the connection ended.
        """
        while self.outbox:
            pieces = [self.outbox[i][0] for i in range(min(_PIECES, len(self.outbox)))]
            try:
                sent = self._sock.sendmsg(pieces)
            except BlockingIOError:
                return
            except OSError as error:
                raise peer_closed(error) from None
            self._forget(sent)

    def close(self) -> None:
        """Close the socket; what was not sent is lost."""
        for piece, sender in self.outbox:
            _charge(sender, -len(piece) - FRAME_COST_BYTES)
        self.outbox.clear()
        self._sock.close()

    def _read(self, room: memoryview) -> int:
        try:
            count = self._sock.recv_into(room)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise peer_closed(error) from None
        if count == 0:
            raise peer_closed("the peer closed it")
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
            first, sender = self.outbox.popleft()
            if sent < len(first):
                self.outbox.appendleft((memoryview(first)[sent:], sender))
                _charge(sender, -sent)
                return
            sent -= len(first)
            _charge(sender, -len(first) - FRAME_COST_BYTES)


def _charge(accounts: Accounts, count: int) -> None:
    for account in accounts:
        account.bytes += count
