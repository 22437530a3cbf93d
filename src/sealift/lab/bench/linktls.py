"""The TLS arm of the inference measurement: a CPU-side server that re-encrypts.

Clients speak TLS 1.3 to this process, which opens what they send and seals it again in
its own session with the accelerator: the shape of a TLS terminator before a GPU TEE.
Everything is in the clear here, which is why it is a baseline and no mode.
"""

from __future__ import annotations

import json
import socket
import ssl
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from sealift.channel.transports.tcp import TcpTransport
from sealift.crypto.sign import PublicKey
from sealift.errors import PeerError, SealiftError
from sealift.ids import Buffer
from sealift.lab.bench.linkserver import open_sealed
from sealift.session.session import Session

LENGTH_BYTES: Final = 4


class TlsMessages(Session):
    """Stands in for a session: messages over TLS, each behind its length."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self._file = sock.makefile("rb", buffering=1 << 16)

    def send(self, message: Buffer) -> None:
        """Send one message."""
        self._sock.sendall(len(message).to_bytes(LENGTH_BYTES, "big") + bytes(message))

    def receive(self, timeout_s: float | None = None) -> bytes:
        """The next message."""
        head = self._file.read(LENGTH_BYTES)
        body = self._file.read(int.from_bytes(head, "big"))
        if len(head) < LENGTH_BYTES or len(body) < int.from_bytes(head, "big"):
            raise PeerError("the TLS connection ended", code="peer-closed")
        return body

    def close(self) -> None:
        """End the connection."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._file.close()
        self._sock.close()


def connect_tls(port: int, certificate: Path) -> TlsMessages:
    """The client's end."""
    context = ssl.create_default_context(cafile=str(certificate))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return TlsMessages(context.wrap_socket(sock))


def main() -> None:
    """Forward connections until stdin ends; prints the port."""
    certificate, port, server = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    listener = socket.create_server(("127.0.0.1", 0))
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    key = PublicKey.from_text(server)
    words = (listener, context, port, key)
    threading.Thread(target=_accept, args=words, daemon=True).start()
    sys.stdin.read()


def _accept(
    listener: socket.socket, context: ssl.SSLContext, port: int, key: PublicKey
) -> None:
    while True:
        sock, _ = listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = TlsMessages(context.wrap_socket(sock, server_side=True))
        transport = TcpTransport.dial("127.0.0.1", port)
        transport.send(b"sealed")
        session = open_sealed(transport, key)
        for ways in ((client, session), (session, client)):
            threading.Thread(target=_forward, args=ways, daemon=True).start()


def _forward(source: Session, target: Session) -> None:
    with suppress(SealiftError, OSError, ValueError):
        while True:
            target.send(source.receive(None))


if __name__ == "__main__":
    main()
