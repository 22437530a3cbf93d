"""The serving process of the inference measurement: the real server loop, three doors.

What differs between the arms is the session alone: none (``plain``), or the attested
session's own sealing (``sealed``). Desk, worker, packets and checks are the same.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

from sealift.channel.transports.tcp import TcpListener, TcpTransport
from sealift.channel.transports.transport import Transport
from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.data.schedule.sharedbuffer import SharedBuffer
from sealift.errors import SealiftError
from sealift.ids import Buffer, Digest, Role
from sealift.lab.bench.linkmodels import MAX_ROWS, bundle_for, form_for
from sealift.session.endpoint import Endpoint, PeerPolicy
from sealift.session.establish import accept, connect
from sealift.session.session import Session
from sealift.train.serving.backlog import Limits
from sealift.train.serving.caller import Caller, CallerLimits
from sealift.train.serving.desk import Desk
from sealift.train.serving.hosted import HostedModel, HostLimits
from sealift.train.serving.packets import VERSION, Welcome
from sealift.train.serving.tally import Tally
from sealift.train.worker.workshop import Workshop

AGREEMENT = Digest.of(b"no agreement: a measurement")
MAX_REQUEST_BYTES = 64 << 20


class PlainSession(Session):
    """Stands in for a session: its messages as they are, over the same transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def send(self, message: Buffer) -> None:
        """Send one message."""
        self._transport.send(message)

    def receive(self, timeout_s: float | None = None) -> bytes:
        """The next message."""
        return self._transport.receive(timeout_s)

    def close(self) -> None:
        """End the connection."""
        self._transport.close()


def open_sealed(transport: Transport, server: PublicKey) -> Session:
    """The client's end of a session with the server of that key."""
    policy = PeerPolicy(roles=frozenset({Role.ACCELERATOR}), instance=server)
    endpoint = Endpoint(role=Role.CLIENT, name="client", agreement=AGREEMENT)
    return connect(transport, endpoint, policy, 60.0)


def accept_sealed(transport: Transport, own: SigningKey) -> Session:
    """The server's end."""
    endpoint = Endpoint(
        role=Role.ACCELERATOR, name="server", agreement=AGREEMENT, instance=own
    )
    policy = PeerPolicy(roles=frozenset({Role.CLIENT}), anonymous=True)
    return accept(transport, endpoint, policy, 60.0)


class BenchServer:
    """Serves one model to connections that say which arm they are."""

    def __init__(self, name: str, weights: Path, key: SigningKey) -> None:
        self._form = form_for(name)
        self._key = key
        self._weights = weights
        self._tally = Tally()
        self._workshop = Workshop(bundle_for(name), "recipe.py")
        self._model = HostedModel(
            self._workshop,
            self._form,
            self._open,
            limits=HostLimits(max_batch_rows=MAX_ROWS),
        )
        self._desk = Desk(
            self._model,
            Limits(max_batch_rows=MAX_ROWS),
            clock=time.monotonic,
            tally=self._tally,
        )

    def start(self) -> None:
        """Load the model and begin to work."""
        self._model.start()
        threading.Thread(target=self._desk.run, daemon=True).start()

    def serve(self, sock: socket.socket) -> None:
        """One connection, in its own thread."""
        transport = TcpTransport(sock)
        sealed = transport.receive(60.0) == b"sealed"
        session: Session = (
            accept_sealed(transport, self._key) if sealed else PlainSession(transport)
        )
        caller = Caller(
            session,
            session,
            self._desk,
            self._form,
            limits=CallerLimits(max_request_bytes=MAX_REQUEST_BYTES),
            clock=time.monotonic,
            tally=self._tally,
        )
        caller.serve(_welcome())

    def _open(self) -> SharedBuffer:
        return SharedBuffer.of(self._weights.read_bytes())


def _welcome() -> Welcome:
    return Welcome(
        version=VERSION,
        model="bench",
        content=AGREEMENT,
        sandbox="",
        software="",
        max_request_bytes=MAX_REQUEST_BYTES,
        max_waiting=8,
        head=None,
    )


def main() -> None:
    """Serve until stdin ends; prints the port."""
    name, weights, seed = sys.argv[1], Path(sys.argv[2]), bytes.fromhex(sys.argv[3])
    server = BenchServer(name, weights, SigningKey(SecretKey(seed)))
    server.start()
    with closing(TcpListener()) as listener:
        print(json.dumps({"port": listener.address[1]}), flush=True)
        threading.Thread(target=_accept, args=(listener, server), daemon=True).start()
        sys.stdin.read()


def _accept(listener: TcpListener, server: BenchServer) -> None:
    while True:
        try:
            sock = listener.accept_socket(None)
        except SealiftError:
            return
        threading.Thread(target=server.serve, args=(sock,), daemon=True).start()


if __name__ == "__main__":
    main()
