"""The server's own order: what it ends with, and what its clients hear of that."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from sealift.crypto.identity import create_identity
from sealift.crypto.keys import SecretKey
from sealift.data.schedule.memory import SharedBuffer
from sealift.errors import (
    IntegrityError,
    JobError,
    PeerError,
    PolicyError,
)
from sealift.release.agreement import ReleaseRule
from sealift.serve import sealedmodel
from sealift.serve.client import connect
from sealift.serve.sealedmodel import ModelSource, seal_model_file
from sealift.train.job import leasekeeping
from tests.sim.served import FORM, Served, rows
from tests.sim.startedserver import Started


def test_when_it_has_ended_every_client_was_told() -> None:
    """Callers are threads of a process that exits: it waits for their last words."""
    for _ in range(5):
        started = Started()
        started.thread.start()
        assert started.ready.wait(300)
        clients = [started.connect() for _ in range(8)]
        for each in clients:
            each.predict(rows(1.0))
        started.server.end()
        started.thread.join(300)
        assert not started.server._sessions
        for each in clients:
            with pytest.raises(PeerError) as caught:
                each.predict(rows(1.0))
            assert caught.value.code in ("server-stopping", "session-closed")
        assert started.model.closed


def test_places_are_an_address_s_or_a_named_client_s() -> None:
    """However many sessions it opens (rule V16)."""
    ada = create_identity("ada")
    for clients, identity in (({}, "127.0.0.1"), ({"ada": ada.public_key}, "ada")):
        form = replace(FORM, clients=clients, max_steps=1 << 16)
        served = Served(form=form)
        policy = served.policy(identity=ada if clients else None)
        started = Started(served)
        with (
            started.listening() as address,
            connect(address, policy) as one,
            connect(address, policy) as other,
        ):
            streams = [each.generate(rows(1.0)) for each in (one, other)]
            for each in streams:
                next(each)
            scheduler: Any = started.server._scheduler
            with scheduler._changed:
                assert scheduler._places() == {identity: 2}


def test_a_lease_lost_while_it_loads_is_what_it_ends_with() -> None:
    """The sandbox is ended then, which would look like a fault of the recipe."""
    started = Started()

    def load(keys: object) -> None:
        started.server._lose(PolicyError("the lease was lost", code="lease-lost"))
        raise JobError("the recipe was killed", code="recipe-killed")

    started.server._load = load  # type: ignore[method-assign, assignment]
    started.serve()
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
    server._executor = SimpleNamespace(sandbox="none", interrupt=interrupted.set)

    def prove(session: object, heartbeat_s: float) -> SimpleNamespace:
        if silent.is_set():
            raise PeerError("nothing came", code="peer-timeout")
        return SimpleNamespace(good=True)

    monkeypatch.setattr(leasekeeping, "prove_lease", prove)
    monkeypatch.setattr(leasekeeping, "give_back_lease", lambda *words: None)

    def collect(stack: ExitStack) -> None:
        stack.enter_context(closing(server._keep_leases())).begin("lab")

    server._reach_broker, server._collect = nullcontext, collect
    started.thread.start()
    assert started.ready.wait(300)
    client = started.connect()
    stream = client.generate(rows(1.0))
    next(stream)
    time.sleep(0.5)  # longer than a heartbeat: kept so far
    assert started.thread.is_alive()
    silent.set()
    started.thread.join(300)
    assert isinstance(started.error, PolicyError)
    assert started.error.code == "lease-silent"
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
