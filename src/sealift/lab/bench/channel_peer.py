"""The receiving process of the channel benchmark.

It allocates its memory once: the plain arm copies into it, the sealed arm opens records
into it as quarantine and hands it over when the trailer verified.
"""

from __future__ import annotations

import socket
import sys

from sealift.channel.header import StreamHeader
from sealift.channel.transports.tcp import TcpTransport
from sealift.channel.transports.transport import SlotTransport
from sealift.crypto.keys import SecretKey
from sealift.lab.bench.pipeline import Quarantine, receive_stream

_TIMEOUT_S = 60.0


class Receiver:
    """Answers the arms of the benchmark until told to stop."""

    def __init__(self, transport: SlotTransport) -> None:
        self._transport = transport
        self._key = SecretKey(transport.receive(_TIMEOUT_S))
        self._memory = bytearray()
        self._quarantine: Quarantine | None = None

    def serve(self) -> None:
        """Receive arm after arm."""
        while (command := self._transport.receive(_TIMEOUT_S)) != b"stop":
            if command == b"sealed":
                self._receive_sealed()
            else:
                self._receive_plain(int.from_bytes(command[5:], "big"))
            self._transport.send(b"done")

    def _receive_plain(self, total_bytes: int) -> None:
        if len(self._memory) != total_bytes:
            self._memory = bytearray(total_bytes)
        target, filled = memoryview(self._memory), 0
        while filled < total_bytes:
            frame = self._transport.borrow(_TIMEOUT_S)
            target[filled : filled + len(frame)] = frame
            filled += len(frame)
            self._transport.give_back()

    def _receive_sealed(self) -> None:
        receive_stream(
            self._transport,
            self._key,
            lambda record: None,
            make_quarantine=self._whole,
            timeout_s=_TIMEOUT_S,
        )

    def _whole(self, header: StreamHeader) -> Quarantine:
        size = header.record_bytes * header.record_count
        if self._quarantine is None or len(self._quarantine.memory) != size:
            self._quarantine = Quarantine(header.record_bytes, header.record_count)
        return self._quarantine


def main() -> None:
    """Take the inherited socket named on the command line and serve."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    Receiver(TcpTransport(sock)).serve()


if __name__ == "__main__":
    main()
