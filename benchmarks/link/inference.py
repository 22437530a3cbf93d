"""Inference wall time: sealed beside plain beside a TLS server that re-encrypts.

One serving process for all arms, asked in turn by one client with one question at a
time; what differs is the session. A question is random numbers, made before. Times are
from the first byte of the question sent to the last of the answer taken.
"""

from __future__ import annotations

import itertools
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.harness import Peer
from benchmarks.link.server import (
    MAX_REQUEST_BYTES,
    NAMES,
    ModelServer,
    PlainSession,
    TlsFront,
    Weights,
    connect_tls,
    form_for,
    model_row,
    open_sealed,
    random_rows,
)
from benchmarks.report import Row, interleaved
from benchmarks.shipping import make_certificate
from sealift.channel.transport.tcp import TcpTransport
from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.errors import UnavailableError, require_value
from sealift.serve.protocol import (
    InferenceAnswer,
    InferenceRequest,
    receive_packet,
    send_packet,
)
from sealift.session.session import Session

BATCHES: Final = (1, 8, 32)
QUICK_BATCHES: Final = (1,)
QUICK_S: Final = 4.0  # for all arms of a row
FULL_S: Final = 20.0
MIN_PAIRS: Final = 31
MAX_PAIRS: Final = 400
BAR_BYTES: Final = 64 << 10  # of question and answer together
RATIO: Final = "infer_secure_vs_plain"
MISSING: Final = "not_measured"  # in a row: the arm that it lacks, and why


def rows(*, quick: bool = False, names: tuple[str, ...] = NAMES) -> list[Row]:
    """A row for each model and batch size; times in milliseconds, medians."""
    found: list[Row] = []
    for name in names:
        numbers = itertools.count(1)
        with _served(name) as (sessions, missing):
            for batch in QUICK_BATCHES if quick else BATCHES:
                budget_s = QUICK_S if quick else FULL_S
                row = _measure(name, batch, sessions, numbers, budget_s=budget_s)
                found.append(row | missing)
    return found


def left_out(found: list[Row]) -> list[str]:
    """A line for each reason why rows lack an arm."""
    reasons = {str(row[MISSING]): None for row in found if MISSING in row}
    return [f"inference: not measured: {reason}" for reason in reasons]


def ratios(found: list[Row]) -> dict[str, float]:
    """The worst of batch 1 with payloads of 64 KiB and more."""
    judged = [
        float(row["sealed_vs_plain"])
        for row in found
        if row.get("batch") == 1 and int(row.get("payload_bytes", 0)) >= BAR_BYTES
    ]
    return {RATIO: max(judged)} if judged else {}


def _measure(
    name: str,
    batch: int,
    sessions: Mapping[str, Session],
    numbers: Iterator[int],
    *,
    budget_s: float,
) -> Row:
    form = form_for(name)
    question = random_rows(form.inputs, batch)
    answer_bytes = batch * require_value(form.outputs).schema.row_bytes

    def ask(session: Session) -> float:
        header = InferenceRequest(id=next(numbers), work="predict", rows=batch)
        began = time.perf_counter()
        send_packet(session, header, question)
        packet = receive_packet(session, 120.0, max_payload=lambda _: MAX_REQUEST_BYTES)
        taken = time.perf_counter() - began
        answered = isinstance(packet.header, InferenceAnswer)
        if not answered or len(packet.payload) != answer_bytes:
            why = str(packet.header)
            raise UnavailableError("the server answered otherwise", why=why)
        return taken

    spent = interleaved(
        {arm: partial(ask, session) for arm, session in sessions.items()},
        MIN_PAIRS,
        budget_s=budget_s,
        most=MAX_PAIRS,
    )
    medians = {arm: each.median for arm, each in spent.items()}
    payload_bytes = len(question) + answer_bytes
    row = model_row("inference", name, batch, payload_bytes, medians)
    return {**row, "pairs": len(spent["plain"].seconds)}


@contextmanager
def _served(name: str) -> Iterator[tuple[dict[str, Session], Row]]:
    """Connections of each arm to one server of the model; which arm there is not."""
    seed = secrets.token_bytes(32)
    key = SigningKey(SecretKey(seed)).public_key
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        weights = folder / "weights.safetensors"
        with Peer.start(Weights) as maker:
            maker.ask("write", name=name, path=str(weights))
        server = Peer.start(ModelServer, name, weights, seed.hex())
        port = stack.enter_context(server).ask("start")["port"]
        sessions: dict[str, Session] = {}
        for arm in ("plain", "sealed"):
            transport = TcpTransport.dial("127.0.0.1", port)
            stack.callback(transport.close)
            transport.send(arm.encode())
            plain = arm == "plain"
            sessions[arm] = (
                PlainSession(transport) if plain else open_sealed(transport, key)
            )
        missing = _add_tls(sessions, stack, folder, port, key)
        for session in sessions.values():  # the greeting
            receive_packet(session, 60.0, max_payload=lambda _: 0)
        yield sessions, missing


def _add_tls(
    sessions: dict[str, Session],
    stack: ExitStack,
    folder: Path,
    port: int,
    key: PublicKey,
) -> Row:
    """Empty, or what rows say where there is no such arm."""
    try:
        certificate = make_certificate(folder)
    except UnavailableError as error:
        return {MISSING: f"tls: {error.what}: {error.why or 'nothing says why'}"}
    front = Peer.start(TlsFront, certificate, port, key.to_text())
    there = stack.enter_context(front).ask("start")["port"]
    session = sessions["tls"] = connect_tls(there, certificate)
    stack.callback(session.close)
    return {}
