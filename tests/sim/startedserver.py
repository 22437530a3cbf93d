"""A server without a broker: its own order, door and sessions; arithmetic for a model."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from types import SimpleNamespace
from typing import Any

from sealift.attest.evidence import Attester
from sealift.channel.transport.tcp import TcpListener
from sealift.channel.transport.transport import Transport
from sealift.errors import SealiftError
from sealift.events import discard
from sealift.ids import Role
from sealift.serve.admission import Admission
from sealift.serve.client import Client, meet
from sealift.serve.server import Server
from sealift.session.endpoint import Endpoint, PeerPolicy
from sealift.session.relay.server import Relay
from sealift.session.session import accept
from sealift.train.job.settings import ServingTable
from tests.sim.served import Doubler, Served
from tests.worlds.memorytransport import memory_pair


class Closing(Doubler):
    """A model that is closed."""

    def close(self) -> None:
        self.closed = True


class Started:
    """A server whose model is arithmetic."""

    def __init__(
        self,
        served: Served | None = None,
        attester: Attester | None = None,
        *,
        settings: ServingTable | None = None,
        model: Any = None,
    ) -> None:
        self.served = served or Served()
        self.settings = settings or ServingTable()
        self.model = model or Closing()
        self.endpoint = Endpoint(
            role=Role.ACCELERATOR,
            name="accelerator-0",
            agreement=self.served.verified.digest,
            attester=attester or self.served.genuine_attester(),
        )
        subject = SimpleNamespace(
            resource=self.served.verified.agreement.resources[0],
            form=self.served.form,
        )
        self.server = Server(
            None, self.endpoint, self.served.verified, subject,  # type: ignore[arg-type]
            settings=self.settings, executor=SimpleNamespace(sandbox="none"),  # type: ignore[arg-type]
            clock=time.monotonic, sink=discard,
        )  # fmt: skip
        self.ready = threading.Event()
        self.error: BaseException | None = None
        parts: Any = self.server
        parts._collect = lambda stack: None
        parts._load = lambda keys: self.model
        self.thread = threading.Thread(target=self.serve, daemon=True)

    def serve(self) -> None:
        try:
            self.server.serve(self.ready.set)
        except SealiftError as error:
            self.error = error

    def connect(self) -> Client:
        here, there = memory_pair()
        threading.Thread(target=self._meet, args=(there,), daemon=True).start()
        return meet(here, self.served.policy())

    def _meet(self, transport: Transport) -> None:
        policy = PeerPolicy(roles=frozenset({Role.CLIENT}), anonymous=True)
        with suppress(SealiftError):
            session = accept(transport, self.endpoint, policy)
            self.server.serve_session(session, session)

    @contextmanager
    def listening(self) -> Iterator[tuple[str, int]]:
        """Behind its real door, until the block ends; where clients dial."""
        with Relay(None) as relay, closing(TcpListener()) as listener:
            admission = Admission(
                listener,
                relay,
                self.server.meet,
                settings=self.settings,
                metrics=self.server.metrics,
            )
            self.thread.start()
            assert self.ready.wait(300)
            admission.open()
            try:
                yield listener.address
            finally:
                self.server.end()
                self.thread.join(300)
                admission.close()
