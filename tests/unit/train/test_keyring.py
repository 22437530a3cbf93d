"""Keys of one connection: gone when it ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sealift.crypto.keys import TOKEN, SecretKey
from sealift.errors import PeerError, UsageError
from sealift.session.session import Session
from sealift.train import accelerator as module
from sealift.train.accelerator import Accelerator
from sealift.train.keyring import Keyring
from sealift.travel.hostsetup import ReleasedResource
from sealift.travel.messages import StartJob
from tests.unit.train.joints import resource


class Control:
    """A session with the orchestrator."""

    def __enter__(self) -> Session:
        return cast("Session", self)

    def __exit__(self, *exc: object) -> None:
        pass


def lost_after_collecting(monkeypatch: pytest.MonkeyPatch) -> SecretKey:
    """The key that an accelerator had when its connection was cut."""
    key = SecretKey.generate()
    keyring = Keyring(*[cast("Any", None)] * 3, clock=lambda: 0.0, sink=print)
    served = Accelerator.__new__(Accelerator)
    link = SimpleNamespace(open=lambda *_parts, **_named: None)
    for name, value in {"_link": link, "_keyring": keyring}.items():
        setattr(served, name, value)
    served._endpoint = served._agreement = cast("Any", None)

    def cut(_control: Session, _start: StartJob) -> None:
        keyring.released["north"] = ReleasedResource(resource("north", 8), key)
        raise PeerError("cut")

    monkeypatch.setattr(served, "_serve", cut)
    monkeypatch.setattr(module, "connect", lambda *_parts: Control())
    monkeypatch.setattr(module, "expect_orchestrator", lambda _agreement: None)
    start = StartJob.__new__(StartJob)
    monkeypatch.setattr(module, "receive_message", lambda *_p, **_n: start)
    with pytest.raises(PeerError, match="cut"):
        served.serve()
    return key


def test_a_cut_takes_the_keys_along(monkeypatch: pytest.MonkeyPatch) -> None:
    key = lost_after_collecting(monkeypatch)
    with pytest.raises(UsageError, match="wiped"):
        key.reveal(TOKEN)
    monkeypatch.setattr(Keyring, "forget", lambda _self: None)  # mutant
    assert lost_after_collecting(monkeypatch).reveal(TOKEN)
