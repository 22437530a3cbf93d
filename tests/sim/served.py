"""A served model without processes: real agreement, sessions, scheduler; arithmetic for a model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import numpy as np

from sealift.attest.development import DevelopmentAttester
from sealift.attest.evidence import Attester
from sealift.attest.level import Level
from sealift.channel.transport.transport import Transport
from sealift.crypto.identity import Identity, create_identity
from sealift.crypto.sign import SigningKey
from sealift.data.schema.schema import Field, Schema
from sealift.errors import JobError, SealiftError
from sealift.ids import Buffer, Digest, Role
from sealift.release.agreement import (
    Agreement,
    Party,
    References,
    Resource,
)
from sealift.release.agreement.code import measure_bundle
from sealift.release.agreement.signed import (
    SignedAgreement,
    VerifiedAgreement,
    add_signature,
    verify,
)
from sealift.serve.admission import SocketWatcher
from sealift.serve.client import Client, meet
from sealift.serve.clientpolicy import ClientPolicy
from sealift.serve.clientsession import ClientSession
from sealift.serve.protocol import VERSION, ServerWelcome
from sealift.serve.scheduler import Scheduler, ServerMetrics
from sealift.session.endpoint import Endpoint, PeerPolicy
from sealift.session.session import accept
from sealift.train.job.settings import ServingTable
from sealift.train.output.modelform import Fields, ModelForm
from tests.worlds.tcppair import tcp_pair

CODE = {"recipe.py": b"def build():\n    return None\n"}
POISON = 666.0
FORM = ModelForm(
    inputs=Schema((Field("x", "float32", (2,)),)),
    outputs=Fields(Schema((Field("y", "float32", (2,)),)), {"y": 3}),
    tokens=Fields(Schema((Field("t", "float32", (2,)),)), {"t": 3}),
    max_rows=16,
    max_steps=20,
    mixed=True,
)


class Doubler:
    """Answers twice what it is asked; counts to generate. Fails on ``POISON``."""

    def __init__(self, token_width: int = 2) -> None:
        self.token_width = token_width
        self.batches: list[list[int]] = []
        self.streams: dict[int, int] = {}
        self.dropped: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.steps = threading.Event()  # a generation goes on
        self.steps.set()

    def predict(self, parts: Sequence[Buffer], rows: int) -> bytearray:
        self.entered.set()
        self.gate.wait(300)
        self.batches.append([len(part) // 8 for part in parts])
        x = np.frombuffer(b"".join(bytes(part) for part in parts), np.float32)
        if (x == POISON).any():
            raise JobError("the recipe failed at recipe.py:1", code="recipe-error")
        return bytearray((2 * x).tobytes())

    def begin(self, stream: int, payload: Buffer, rows: int) -> None:
        self.streams[stream] = 0

    def next(self, stream: int, rows: int) -> bytearray | None:
        self.steps.wait(300)
        self.streams[stream] += 1
        return bytearray(self._tokens(rows, self.streams[stream]).tobytes())

    def _tokens(self, rows: int, number: int) -> np.ndarray:
        return np.full(self.token_width * rows, number, np.float32)

    def drop(self, stream: int) -> None:
        self.dropped.append(stream)


@dataclass
class Served:
    """One model's owner, its agreement and its host."""

    form: ModelForm = FORM
    accept: tuple[Level, ...] = (Level.DEVELOPMENT,)
    settings: ServingTable = field(
        default_factory=lambda: ServingTable(max_delay_ms=0.0)
    )
    mixed: bool = True
    lab: Identity = field(default_factory=lambda: create_identity("lab"))
    attester: SigningKey = field(default_factory=SigningKey.generate)
    model: Doubler = field(default_factory=Doubler)
    welcome: Callable[[ServerWelcome], ServerWelcome] = lambda w: w

    def __post_init__(self) -> None:
        self.metrics = ServerMetrics()
        self.arrivals = SocketWatcher()
        self.scheduler = Scheduler(
            self.model,  # type: ignore[arg-type]
            self.settings.model_copy(update={"request_s": 5.0}),
            mixed=self.mixed,
            clock=time.monotonic,
            metrics=self.metrics,
        )
        self.verified = verify(
            add_signature(SignedAgreement(self.agreement()), self.lab)
        )

    def agreement(self) -> Agreement:
        return Agreement(
            about="serve",
            name="served",
            number=1,
            predecessor=None,
            parties=(
                Party(
                    "lab",
                    ("model_owner", "code_owner", "operator"),
                    self.lab.public_key,
                    self.lab.card.hpke,
                ),
            ),
            code=measure_bundle(CODE, "recipe.py"),
            accept=self.accept,
            references=References((self.attester.public_key,)),
            resources=(
                Resource(
                    name="doubler",
                    owner="lab",
                    part="model",
                    rows=1,
                    row_bytes=64,
                    cell_rows=1,
                    total_bytes=64,
                    record_bytes=1 << 20,
                    schema=self.form.to_plain(),
                    content=Digest.of(b"content"),
                    key=Digest.of(b"key"),
                ),
            ),
            operator="lab",
        )

    def policy(self, **changes: object) -> ClientPolicy:
        policy = ClientPolicy(agreement=self.verified, development=True)
        return replace(policy, **changes)  # type: ignore[arg-type]

    def genuine_attester(self) -> Attester:
        return DevelopmentAttester(
            self.attester,
            role=Role.ACCELERATOR,
            code_bundle=self.verified.agreement.code.digest,
        )

    def serve(
        self,
        transport: Transport,
        attester: Attester | None = None,
        identity: object = None,
    ) -> None:
        """The server's end of one connection, until it is over."""
        endpoint = Endpoint(
            role=Role.ACCELERATOR,
            name="accelerator-0",
            agreement=self.verified.digest,
            attester=attester or self.genuine_attester(),
        )
        policy = PeerPolicy(roles=frozenset({Role.CLIENT}), anonymous=True)
        with suppress(SealiftError):
            session = accept(transport, endpoint, policy)
            client_session = ClientSession(
                session,
                session,
                self.scheduler,
                self.form,
                settings=self.settings,
                clock=time.monotonic,
                metrics=self.metrics,
                arrivals=self.arrivals,
                identity=identity,
            )
            client_session.serve(self.welcome(greeting(self.verified)))

    @contextmanager
    def running(self) -> Iterator[Served]:
        """With the scheduler at work."""
        worker = threading.Thread(target=self.scheduler.run, daemon=True)
        worker.start()
        try:
            yield self
        finally:
            self.model.gate.set()
            self.scheduler.stop(JobError("the test is over", code="recipe-killed"))
            worker.join(300)
            assert not worker.is_alive()

    def dial(
        self,
        between: Callable[[Transport], Transport] = lambda t: t,
        attester: Attester | None = None,
    ) -> Transport:
        """A connection to a server in a thread of its own; ``between`` lies on the way."""
        here, there = tcp_pair()
        words = (there, attester)
        threading.Thread(target=self.serve, args=words, daemon=True).start()
        return between(here)

    def connect(self, **changes: object) -> Client:
        return meet(self.dial(), self.policy(**changes))


def greeting(verified: VerifiedAgreement) -> ServerWelcome:
    resource = verified.agreement.resources[0]
    return ServerWelcome(
        version=VERSION,
        model=resource.name,
        content=resource.content,
        sandbox="none",
        software="sealift",
        max_request_bytes=4 << 20,
        max_waiting=8,
        head=None,
    )


def rows(*values: float) -> np.ndarray:
    return np.array([[v, v + 0.5] for v in values], np.float32)
