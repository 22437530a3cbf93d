"""The serving processes of the inference measurement: the real server loop, three doors.

What differs between the arms is the session alone: none (``plain``), the attested
session's own sealing (``sealed``), or TLS to a process in between that opens and seals
again (``tls``). Scheduler, worker, packets and checks are the same. The models are those of
``models.py``; what they are asked is said here.
"""

from __future__ import annotations

import os
import secrets
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Final

from safetensors.torch import save_file

from benchmarks.harness import Answer, End
from benchmarks.link.models import (
    CLASSES,
    IMAGE,
    MLP_IN,
    TOKENS,
    VOCABULARY,
    WIDTH,
    make,
)
from benchmarks.report import Row
from sealift.channel.transport.tcp import TcpTransport
from sealift.channel.transport.transport import Transport
from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.data.schedule.memory import SharedBuffer
from sealift.data.schema.schema import Field, Schema
from sealift.errors import PeerError, SealiftError
from sealift.ids import Buffer, Digest, Role
from sealift.serve.admission import SocketWatcher
from sealift.serve.clientsession import ClientSession
from sealift.serve.modelworker import ModelWorker
from sealift.serve.protocol import VERSION, ServerWelcome
from sealift.serve.scheduler import Scheduler, ServerMetrics
from sealift.session.endpoint import Endpoint, PeerPolicy
from sealift.session.session import Session, accept, connect
from sealift.train.job.settings import ServingTable
from sealift.train.output.modelform import Fields, ModelForm
from sealift.train.worker.executor import RecipeExecutor

AGREEMENT: Final = Digest.of(b"no agreement: a measurement")
MAX_REQUEST_BYTES: Final = 64 << 20
LENGTH_BYTES: Final = 4
LOOPBACK: Final = "127.0.0.1"
MAX_ROWS: Final = 32
SETTINGS: Final = ServingTable(
    max_batch_rows=MAX_ROWS, max_request_bytes=MAX_REQUEST_BYTES
)
_INPUT: Final = {
    "mlp": Field("x", "float32", (MLP_IN,)),
    "resnet18": Field("x", "float32", (3, IMAGE, IMAGE)),
    "gpt": Field("tokens", "int32", (TOKENS,), classes=VOCABULARY),
    "bert": Field("features", "float32", (TOKENS, WIDTH)),
}
_OUTPUT: Final = {
    "mlp": Field("y", "float32", (CLASSES,)),
    "resnet18": Field("y", "float32", (CLASSES,)),
    "gpt": Field("scores", "float32", (TOKENS, VOCABULARY)),
    "bert": Field("labels", "float32", (TOKENS, CLASSES)),
}
NAMES: Final = tuple(_INPUT)


def form_for(name: str) -> ModelForm:
    """The form of a model."""
    out = _OUTPUT[name]
    return ModelForm(
        inputs=Schema((_INPUT[name],)),
        outputs=Fields(Schema((out,)), {out.name: 4}),
        max_rows=MAX_ROWS,
    )


def model_row(
    what: str, model: str, batch: int, payload_bytes: int, spent: Mapping[str, float]
) -> Row:
    """Milliseconds of each arm, and beside those of the plain one; from seconds."""
    row: Row = {"what": what, "model": model, "batch": batch}
    row["payload_bytes"] = payload_bytes
    row |= {f"{arm}_ms": round(each * 1e3, 3) for arm, each in spent.items()}
    plain_s = spent["plain"]
    others = [arm for arm in spent if arm != "plain"]
    return row | {f"{arm}_vs_plain": round(spent[arm] / plain_s, 3) for arm in others}


def random_rows(schema: Schema, rows: int) -> bytes:
    """Small numbers that every field takes."""
    field = schema.fields[0]
    if field.element.kind == "int":
        return b"".join(
            secrets.randbelow(256).to_bytes(4, "little")
            for _ in range(rows * field.elements)
        )
    raw = bytearray(os.urandom(rows * schema.row_bytes))
    raw[3::4] = b"\x3e" * (len(raw) // 4)  # float32 from 1/8 to 1/2
    return bytes(raw)


def _bundle_for(name: str) -> dict[str, bytes]:
    """A code bundle that builds the model: this package's own file, and three lines."""
    models = resources.files(__package__).joinpath("models.py").read_bytes()
    recipe = (
        "import benchmodels\n\n\ndef build():\n"
        f"    return benchmodels.make({name!r})\n\n\n"
        "def predict(model, batch):\n    return model(next(iter(batch.values())))\n"
    )
    return {"benchmodels.py": models, "recipe.py": recipe.encode()}


class PlainSession(Session):
    """Stands in for a session: its messages as they are, over the same transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._waiting = deque()
        self._postponed = None

    def send(self, message: Buffer) -> None:
        """Send one message."""
        self._transport.send(message)

    def send_now(self, message: Buffer) -> bool:
        """Send one message, if nobody need be waited for."""
        if not self._transport.has_room(len(message)):
            return False
        self._transport.send(message)
        return True

    def receive_now(self) -> bytes | None:
        """The next message, if it is here."""
        try:
            return self._transport.receive(0.0)
        except PeerError as error:
            if error.code != "peer-timeout":
                raise
            return None

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


class Weights(End):
    """Makes weights; torch's threads and memory are in no other process's way."""

    def write(self, name: str, path: str) -> None:
        """Those of a model, the same each time."""
        save_file(dict(make(name).state_dict()), path)


class Listening(End):
    """A process that serves connections, each in a thread of its own."""

    def __init__(self) -> None:
        self._listener = socket.create_server((LOOPBACK, 0))

    def start(self) -> Answer:
        """Begin to serve; where."""
        threading.Thread(target=self._accept, daemon=True).start()
        return {"port": self._listener.getsockname()[1]}

    def close(self) -> None:
        """Take nobody any more."""
        self._listener.close()

    def serve(self, sock: socket.socket) -> None:
        """One connection."""
        raise NotImplementedError

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                sock, _ = self._listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self.serve, args=(sock,), daemon=True).start()


class ModelServer(Listening):
    """Serves one model to connections that say which arm they are.

    Args:
        name: Of the model.
        weights: A file of them.
        seed: Of the key that proves the server.
    """

    def __init__(self, name: str, weights: str, seed: str) -> None:
        super().__init__()
        self._form = form_for(name)
        self._key = SigningKey(SecretKey(bytes.fromhex(seed)))
        self._metrics = ServerMetrics()
        self._arrivals = SocketWatcher()
        self._model = ModelWorker(
            RecipeExecutor(_bundle_for(name), "recipe.py"),
            self._form,
            lambda: SharedBuffer.of(Path(weights).read_bytes()),
            settings=SETTINGS,
        )
        self._scheduler = Scheduler(
            self._model,
            SETTINGS,
            clock=time.monotonic,
            metrics=self._metrics,
        )

    def start(self) -> Answer:
        """Load the model and begin to serve; where."""
        self._model.start()
        threading.Thread(target=self._scheduler.run, daemon=True).start()
        return super().start()

    def serve(self, sock: socket.socket) -> None:
        """One client."""
        transport = TcpTransport(sock)
        sealed = transport.receive(60.0) == b"sealed"
        session: Session = (
            self._sealed(transport) if sealed else PlainSession(transport)
        )
        client_session = ClientSession(
            session,
            session,
            self._scheduler,
            self._form,
            settings=SETTINGS,
            clock=time.monotonic,
            metrics=self._metrics,
            arrivals=self._arrivals,
        )
        client_session.serve(
            ServerWelcome(
                version=VERSION,
                model="bench",
                content=AGREEMENT,
                sandbox="",
                software="",
                max_request_bytes=MAX_REQUEST_BYTES,
                max_waiting=8,
                head=None,
            )
        )

    def _sealed(self, transport: Transport) -> Session:
        endpoint = Endpoint(
            role=Role.ACCELERATOR,
            name="server",
            agreement=AGREEMENT,
            instance=self._key,
        )
        policy = PeerPolicy(roles=frozenset({Role.CLIENT}), anonymous=True)
        return accept(transport, endpoint, policy, 60.0)


class TlsFront(Listening):
    """A CPU-side server that re-encrypts: the shape of a TLS terminator before a GPU TEE.

    Clients speak TLS 1.3 to this process, which opens what they send and seals it again
    in its own session with the accelerator. Everything is in the clear here, which is why
    it is a baseline and no mode.

    Args:
        certificate: A file of it and its key.
        port: Of the server behind.
        server: Its key.
    """

    def __init__(self, certificate: str, port: str, server: str) -> None:
        super().__init__()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._port, self._key = int(port), PublicKey.from_text(server)

    def serve(self, sock: socket.socket) -> None:
        """One client: forwarded both ways."""
        client = TlsMessages(self._context.wrap_socket(sock, server_side=True))
        transport = TcpTransport.dial(LOOPBACK, self._port)
        transport.send(b"sealed")
        session = open_sealed(transport, self._key)
        back = threading.Thread(
            target=_forward, args=(session.receive, client.send), daemon=True
        )
        back.start()
        _forward(client.receive, session.send)


def _forward(
    receive: Callable[[float | None], Buffer], send: Callable[[Buffer], None]
) -> None:
    with suppress(SealiftError, OSError, ValueError):
        while True:
            send(receive(None))


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
    sock = socket.create_connection((LOOPBACK, port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return TlsMessages(context.wrap_socket(sock))
