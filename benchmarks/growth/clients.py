"""How many answers a served model gives, to how many clients, beside a plain HTTP server.

The server is a process of the product's own code: port, sessions, scheduler and sandboxed
worker. Beside it uvicorn serves the same model over HTTP, without TLS, sandbox and batches.
The clients are one process with one thread, which keeps all connections open and asks one
row at a time on each. ``closed`` load asks again as soon as the answer is there; ``paced``
load asks at a steady rate over all connections, and a latency counts from the moment at
which a question was due. Server and clients share this machine's cores.
"""

from __future__ import annotations

import asyncio
import gc
import selectors
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import torch
import uvicorn
from safetensors.torch import save

from benchmarks.harness import Answer, End, Peer
from benchmarks.report import BenchReport, Row, distribution, start_report
from sealift.channel.transport.tcp import TcpTransport, connect_socket
from sealift.data.schedule.memory import SharedBuffer
from sealift.data.schema.schema import Field, Schema
from sealift.errors import UnavailableError
from sealift.ids import Role
from sealift.release.agreement.signed import (
    SignedAgreement,
    add_signature,
    load_verified,
    save_signed,
)
from sealift.serve.modelworker import ModelWorker
from sealift.serve.protocol import (
    InferenceAnswer,
    InferenceRequest,
    receive_packet,
    send_packet,
)
from sealift.session.endpoint import Endpoint
from sealift.session.session import connect
from sealift.train.job.settings import ServingTable
from sealift.train.output.modelform import Fields, ModelForm
from sealift.train.worker.executor import RecipeExecutor
from sealift.travel.peers import accelerator_names, expect_accelerator
from tests.sim.served import Served
from tests.sim.startedserver import Started

LOOPBACK: Final = "127.0.0.1"
WIDTH: Final = 64
MOST: Final = 500
CLOSED: Final = (1, 10, 100, MOST)
QUICK_CLOSED: Final = (1, 100)
PACED_PER_S: Final = 2000
FULL_S, QUICK_S, WARM_S = 10.0, 4.0, 1.0
WAIT_S: Final = 60.0
ARMS: Final = ("sealed", "http")
SETTINGS: Final = ServingTable(max_sessions=MOST + 12, max_sessions_each=MOST + 12)
FORM: Final = ModelForm(
    inputs=Schema((Field("x", "float32", (WIDTH,)),)),
    outputs=Fields(Schema((Field("y", "float32", (10,)),)), {"y": 4}),
    max_rows=16,
    mixed=True,
)
RECIPE: Final = f"""\
from torch import nn


def build():
    return nn.Sequential(nn.Linear({WIDTH}, 32), nn.ReLU(), nn.Linear(32, 10))


def predict(model, batch):
    return {{"y": model(batch["x"])}}
"""


class SealedServer(End):
    """The product's server of the small model.

    Args:
        folder: Gets the agreement, which clients read.
    """

    def __init__(self, folder: str) -> None:
        served = Served(form=FORM)
        signed = add_signature(SignedAgreement(served.agreement()), served.lab)
        save_signed(signed, Path(folder) / "agreement.json")
        space: dict[str, Any] = {}
        exec(RECIPE, space)  # noqa: S102 - our own text, as a worker runs it
        weights = save(space["build"]().state_dict())
        self._model = ModelWorker(
            RecipeExecutor({"recipe.py": RECIPE.encode()}, "recipe.py"),
            FORM,
            lambda: SharedBuffer.of(weights),
            settings=SETTINGS,
        )
        self._model.start()
        started = Started(served, settings=SETTINGS, model=self._model)
        self._listening = started.listening()

    def start(self) -> Answer:
        """Begin to serve, as `sealift serve` does; where."""
        gc.collect()
        gc.freeze()
        _, port = self._listening.__enter__()
        return {"port": port}


class HttpServer(End):
    """The same model behind uvicorn, each question computed when it comes."""

    def __init__(self) -> None:
        space: dict[str, Any] = {}
        exec(RECIPE, space)  # noqa: S102 - our own text
        self._space, self._model = space, space["build"]()
        torch.set_num_threads(1)

    def start(self) -> Answer:
        """Begin to serve; where."""
        listening = socket.create_server((LOOPBACK, 0), backlog=MOST)
        listening.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )  # of all it takes
        config = uvicorn.Config(
            self._answer, interface="asgi3", log_level="error", access_log=False
        )
        server = uvicorn.Server(config)
        work = server.serve(sockets=[listening])
        threading.Thread(target=asyncio.run, args=(work,), daemon=True).start()
        return {"port": listening.getsockname()[1]}

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = (await receive())["body"]
        x = torch.frombuffer(bytearray(body), dtype=torch.float32).view(-1, WIDTH)
        with torch.inference_mode():
            y = self._space["predict"](self._model, {"x": x})["y"]
        content = np.round(y.numpy(), 4).tobytes()
        length = str(len(content)).encode()
        headers = [(b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})


class Connection(Protocol):
    """One client's connection, with one question under way at most."""

    sock: socket.socket

    def ask(self, question: bytes) -> None:
        """Send one row."""
        ...

    def take(self) -> None:
        """Read the answer."""
        ...


class SealedConnection:
    """A session with the server, appraised as every client does it."""

    def __init__(self, port: int, folder: Path) -> None:
        agreement = load_verified(folder / "agreement.json")
        self.sock = connect_socket(LOOPBACK, port, timeout_s=WAIT_S)
        self._session = connect(
            TcpTransport(self.sock),
            Endpoint(role=Role.CLIENT, name="client", agreement=agreement.digest),
            expect_accelerator(agreement, accelerator_names()[0]),
            WAIT_S,
        )
        receive_packet(self._session, WAIT_S, max_payload=lambda _: 0)
        self._id = 0

    def ask(self, question: bytes) -> None:
        """Send one row."""
        self._id += 1
        header = InferenceRequest(id=self._id, work="predict", rows=1)
        send_packet(self._session, header, question)

    def take(self) -> None:
        """Read the answer."""
        packet = receive_packet(self._session, WAIT_S, max_payload=lambda _: 1024)
        header = packet.header
        if not isinstance(header, InferenceAnswer) or header.id != self._id:
            why = str(header)
            raise UnavailableError("the server answered otherwise", why=why)


class HttpConnection:
    """A connection that stays open, with requests as short as they can be."""

    def __init__(self, port: int) -> None:
        self.sock = connect_socket(LOOPBACK, port, timeout_s=WAIT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, question: bytes) -> None:
        """Send one row."""
        head = (
            f"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: {len(question)}\r\n\r\n"
        )
        self.sock.sendall(head.encode() + question)

    def take(self) -> None:
        """Read the answer."""
        came, end = b"", -1
        while end < 0 or len(came) < end + 4 + 40:
            piece = self.sock.recv(4096)
            if not piece:
                raise UnavailableError("the HTTP server ended a connection")
            came += piece
            end = came.find(b"\r\n\r\n")
        if not came.startswith(b"HTTP/1.1 200"):
            raise UnavailableError("the HTTP server answered otherwise")


class Clients(End):
    """All clients of a measurement."""

    def meet(self, arm: str, port: int, folder: str, connections: int) -> None:
        """Open so many connections.

        Args:
            arm: Of ``ARMS``.
            port: Of its server.
            folder: With the agreement.
            connections: How many.
        """
        self._made: list[Connection] = [
            SealedConnection(port, Path(folder))
            if arm == "sealed"
            else HttpConnection(port)
            for _ in range(connections)
        ]

    def load(self, seconds: float, per_s: float) -> Answer:
        """Ask on all connections, then close them; each answer's latency in milliseconds.

        Args:
            seconds: How long, beside the time to warm up.
            per_s: Questions in a second over all connections; 0 for as many as can be.
        """
        question = np.linspace(-1, 1, WIDTH, dtype=np.float32).tobytes()
        cpu_s = time.process_time()
        spent = list(_load(self._made, question, seconds, per_s))
        cpu_s = time.process_time() - cpu_s
        for each in self._made:
            each.sock.close()
        return {"latencies": [round(each * 1e3, 3) for each in spent], "cpu_s": cpu_s}


def _load(
    made: list[Connection], question: bytes, seconds: float, per_s: float
) -> Iterator[float]:
    """Seconds of each question that was answered after the time to warm up."""
    chosen = selectors.DefaultSelector()
    for each in made:
        chosen.register(each.sock, selectors.EVENT_READ, each)
    due: dict[Connection, float] = {}  # of what is under way
    began_s = time.monotonic()
    gap_s = len(made) / per_s if per_s else 0.0
    waiting = deque(
        (began_s + place * gap_s / len(made), each) for place, each in enumerate(made)
    )
    while (now_s := time.monotonic()) < began_s + WARM_S + seconds:
        while waiting and waiting[0][0] <= now_s:
            due_s, each = waiting.popleft()
            if each in due:  # late: it is due once the former one is answered
                waiting.append((due_s, each))
                break
            due[each] = due_s
            each.ask(question)
        left_s = max(0.0, waiting[0][0] - now_s) if waiting else WAIT_S
        for key, _ in chosen.select(left_s):
            each = key.data
            each.take()
            now_s = time.monotonic()
            asked_s = due.pop(each)
            if now_s > began_s + WARM_S:
                yield now_s - asked_s
            if per_s:
                waiting.append((asked_s + gap_s, each))
            else:
                due[each] = now_s
                each.ask(question)


def run(*, quick: bool = False) -> BenchReport:
    """Measure 1 to 500 connections; with ``quick`` fewer sizes and seconds."""
    report = start_report("growth")
    report.real = ["server, plain HTTP server and clients as processes on this machine"]
    loads = [(many, 0) for many in (QUICK_CLOSED if quick else CLOSED)]
    seconds = QUICK_S if quick else FULL_S
    with (
        tempfile.TemporaryDirectory(prefix="sealift-growth-") as folder,
        Peer.start(SealedServer, folder) as sealed,
        Peer.start(HttpServer) as http,
        Peer.start(Clients) as clients,
    ):
        servers = dict(zip(ARMS, (sealed, http), strict=True))
        ports = {arm: each.ask("start")["port"] for arm, each in servers.items()}
        for many, per_s in [*loads, (MOST, PACED_PER_S)]:
            for arm, server in servers.items():
                where = {"arm": arm, "port": ports[arm], "folder": folder}
                clients.ask("meet", connections=many, **where)
                before = server.ask("spent")["cpu_s"]
                found = clients.ask("load", seconds=seconds, per_s=per_s)
                cpu_s = server.ask("spent")["cpu_s"] - before
                _note(report, arm, many, per_s, seconds, found, cpu_s)
    return report


def _note(
    report: BenchReport,
    arm: str,
    connections: int,
    per_s: float,
    seconds: float,
    found: Answer,
    cpu_s: float,
) -> None:
    answers_per_s = len(found["latencies"]) / seconds
    all_answers = answers_per_s * (seconds + WARM_S)  # about as many while it warmed up
    row: Row = {
        "arm": arm,
        "connections": connections,
        "load": f"paced, {per_s:g}/s" if per_s else "closed",
        "answers_per_s": round(answers_per_s),
        **distribution(found["latencies"]),
        "server_cpu_us": round(cpu_s * 1e6 / all_answers),
        "clients_cpu_us": round(found["cpu_s"] * 1e6 / all_answers),
    }
    report.rows.append(row)
    prefix = "" if arm == "sealed" else f"{arm}_"
    if per_s:
        report.ratios[f"{prefix}serve_p99_ms"] = float(row["p99_ms"])
    elif connections == 100:
        report.ratios[f"{prefix}serve_per_s"] = round(answers_per_s)
