"""How the process that serves a model is set up for many clients."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sealift.cli.roles import serve
from sealift.events import discard


@pytest.fixture
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("thawed")
def test_no_collection_of_what_stays_keeps_clients_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admission = SimpleNamespace(open=None, close=lambda: None)
    monkeypatch.setattr(serve, "Admission", lambda *words, **more: admission)
    found = []

    def served(opened: object) -> None:
        found.append(gc.get_freeze_count() > 0)

    server = SimpleNamespace(meet=None, metrics=None, serve=served, health=dict)
    job = SimpleNamespace(serving=None)
    setup: Any = SimpleNamespace(job=job, sink=discard)
    listener: Any = SimpleNamespace(address=("127.0.0.1", 7420))
    relay: Any = None
    serve._serve(setup, server, listener, relay)  # type: ignore[arg-type]
    assert found == [True]
