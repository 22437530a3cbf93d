"""The server's own order: what it ends with, and what its clients hear of that."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from sealift.channel.transports.memory import memory_pair
from sealift.channel.transports.transport import Transport
from sealift.crypto.keys import SecretKey
from sealift.errors import (
    IntegrityError,
    JobError,
    PeerError,
    PolicyError,
    SealiftError,
)
from sealift.events import discard
from sealift.ids import Role
from sealift.release.agreement import ReleaseRule
from sealift.session.endpoint import Endpoint, PeerPolicy
from sealift.session.establish import accept
from sealift.train import leasekeeping
from sealift.train.serving import sealedmodel
from sealift.train.serving.client import Client, meet
from sealift.train.serving.sealedmodel import ModelSource, seal_model_file
from sealift.train.serving.server import Server
from sealift.train.settings import ServingTable
from sealift.travel.sharedbuffer import SharedBuffer
from tests.sim.served import FORM, Doubler, Served, rows

pytestmark = pytest.mark.timeout(30)


class Closing(Doubler):
    """A model that is closed."""

    def close(self) -> None:
        self.closed = True


class Started:
    """A server without a broker; its model is arithmetic."""

    def __init__(self) -> None:
        self.served = Served()
        self.model = Closing()
        subject = SimpleNamespace(
            resource=self.served.verified.agreement.resources[0], form=FORM
        )
        self.server = Server(
            *(None,) * 2, self.served.verified, subject,  # type: ignore[arg-type]
            settings=ServingTable(), workshop=SimpleNamespace(sandbox="none"),  # type: ignore[arg-type]
            clock=time.monotonic, sink=discard,
        )  # fmt: skip
        self.ready = threading.Event()
        self.error: BaseException | None = None
        parts: Any = self.server
        parts._collect = lambda stack: None
        parts._load = lambda keyring: self.model
        self.thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        try:
            self.server.serve(self.ready.set)
        except SealiftError as error:
            self.error = error

    def connect(self) -> Client:
        here, there = memory_pair()
        threading.Thread(target=self._meet, args=(there,), daemon=True).start()
        return meet(here, self.served.policy())

    def _meet(self, transport: Transport) -> None:
        endpoint = Endpoint(
            role=Role.ACCELERATOR,
            name="accelerator",
            agreement=self.served.verified.digest,
            attester=self.served.genuine_attester(),
        )
        policy = PeerPolicy(roles=frozenset({Role.CLIENT}), anonymous=True)
        with suppress(SealiftError):
            session = accept(transport, endpoint, policy)
            self.server.serve_session(session, session)


def test_when_it_has_ended_every_client_was_told() -> None:
    """Callers are threads of a process that exits: it waits for their last words."""
    for _ in range(5):
        started = Started()
        started.thread.start()
        assert started.ready.wait(5)
        clients = [started.connect() for _ in range(8)]
        for each in clients:
            each.predict(rows(1.0))
        started.server.end()
        started.thread.join(10)
        assert not started.server._callers
        for each in clients:
            with pytest.raises(PeerError) as caught:
                each.predict(rows(1.0))
            assert caught.value.code in ("server-stopping", "session-closed")
        assert started.model.closed


def test_a_lease_lost_while_it_loads_is_what_it_ends_with() -> None:
    """The sandbox is ended then, which would look like a fault of the recipe."""
    started = Started()

    def load(keyring: object) -> None:
        started.server._lose(PolicyError("the lease was lost", code="lease-lost"))
        raise JobError("the recipe was killed", code="recipe-killed")

    started.server._load = load  # type: ignore[method-assign, assignment]
    started._serve()
    assert isinstance(started.error, PolicyError)


def test_a_lost_lease_ends_it_and_its_clients_hear_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker falls silent in the midst of a generation (rules H5, V6, V7)."""
    started = Started()
    server: Any = started.server
    silent, interrupted = threading.Event(), threading.Event()
    rule = ReleaseRule(lease_s=2.0, heartbeat_s=0.3)
    terms = started.served.verified.agreement
    model = replace(terms.resources[0], rule=rule)
    server._agreement = SimpleNamespace(agreement=replace(terms, resources=(model,)))
    server._workshop = SimpleNamespace(sandbox="none", interrupt=interrupted.set)

    def prove(session: object, heartbeat_s: float) -> None:
        if silent.is_set():
            raise PeerError("nothing came", code="peer-timeout")

    monkeypatch.setattr(leasekeeping, "prove_lease", prove)

    def collect(stack: ExitStack) -> None:
        stack.enter_context(closing(server._keep_leases())).begin("lab")

    server._reach_broker, server._collect = nullcontext, collect
    started.thread.start()
    assert started.ready.wait(5)
    client = started.connect()
    stream = client.generate(rows(1.0))
    next(stream)
    time.sleep(0.5)  # longer than a heartbeat: kept so far
    assert started.thread.is_alive()
    silent.set()
    started.thread.join(5)
    assert isinstance(started.error, PolicyError)
    assert started.error.code == "lease-lost"
    assert interrupted.is_set()
    assert started.model.closed
    with pytest.raises(PeerError) as caught:
        client.predict(rows(1.0))
    assert caught.value.code in ("server-stopping", "session-closed")


def test_a_changed_model_leaves_nothing_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first record opens; it must not stay when the second one does not."""
    key, kept = SecretKey.generate(), list[SharedBuffer]()
    content = save({"w": np.ones(400_000, np.float32)})
    card = seal_model_file(
        content, FORM, name="m", owner="lab", key=key, out_dir=tmp_path
    )
    path = tmp_path / "m.sealed"
    source = ModelSource(card.resource, path, card.leaves, key)
    whole = source.open()
    assert bytes(whole.view) == content
    whole.close()

    def keep(length: int) -> SharedBuffer:
        kept.append(SharedBuffer(length))
        return kept[-1]

    monkeypatch.setattr(sealedmodel, "SharedBuffer", keep)
    raw = bytearray(path.read_bytes())
    raw[-100] ^= 1
    path.write_bytes(raw)
    with pytest.raises(IntegrityError):
        source.open()
    with pytest.raises(ValueError, match="released"):
        _ = kept[0].view[0]
