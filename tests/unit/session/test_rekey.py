from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from sealift.crypto.keys import TOKEN, Label
from sealift.crypto.sign import SigningKey
from sealift.errors import (
    MalformedError,
    PeerError,
    PolicyError,
    SealiftError,
    UsageError,
)
from sealift.session import session as session_module
from sealift.session.frames import MessageType
from sealift.session.handshake import Initiator
from sealift.session.session import MAX_WAITING, Incoming, Session
from tests.sim.attested import Cast, both

Pair = tuple[Session, Session]


@pytest.fixture
def cast() -> Cast:
    return Cast()


@pytest.fixture
def pair(cast: Cast) -> Iterator[Pair]:
    here, there = cast.sessions()
    yield here, there
    here.close()
    there.close()


def rekey_then_send(session: Session, message: bytes) -> None:
    session.rekey(60)
    session.send(message)


def test_rekey_replaces_everything(pair: Pair) -> None:
    here, there = pair
    th2, hpke, old = here.th2, here.peer.hpke, here.established
    exported = here.export(Label.VISIT_FRAME).reveal(TOKEN)
    there.send(b"on its way meanwhile")
    there.send_raw(b"and raw")
    _, received = both(
        lambda: rekey_then_send(here, b"after"), lambda: there.receive(60)
    )
    assert received == b"after"
    assert here.th2 == there.th2 != th2
    assert here.key_epoch == there.key_epoch == 1
    assert here.export(Label.VISIT_FRAME).reveal(TOKEN) != exported
    assert here.peer.hpke != hpke
    with pytest.raises(UsageError):  # the old keys are wiped
        old.export(Label.VISIT_FRAME)
    assert here.receive(1) == b"on its way meanwhile"
    assert here.receive_any(1) == Incoming(raw=True, payload=b"and raw")


def test_rekey_again_and_again(pair: Pair) -> None:
    here, there = pair
    for number in range(1, 4):
        both(lambda: rekey_then_send(here, b"x"), lambda: there.receive(60))
        there.send(b"%d" % number)
        assert here.receive(1) == b"%d" % number
    assert here.key_epoch == 3


def test_only_the_initiator_rekeys(pair: Pair) -> None:
    _, there = pair
    with pytest.raises(UsageError):
        there.rekey()


def test_rekey_without_an_answer_ends_the_session(pair: Pair) -> None:
    here, _ = pair
    with pytest.raises(PeerError) as refusal:
        here.rekey(0.05)
    assert refusal.value.code == "peer-timeout"
    with pytest.raises(PeerError):
        here.send(b"")


def test_rekey_wants_evidence_again(cast: Cast) -> None:
    """Whoever holds the traffic keys but cannot prove itself is not renewed (C7)."""
    here, there = cast.sessions()
    there._endpoint = replace(cast.accelerator, attester=None)
    with pytest.raises(SealiftError):
        both(lambda: here.rekey(60), lambda: there.receive(60))
    with pytest.raises(PeerError):
        here.send(b"")


@pytest.mark.parametrize("change", ["instance", "name"])
def test_rekey_keeps_the_peer(cast: Cast, change: str) -> None:
    """Another genuine process cannot take a live session over."""
    here, there = cast.sessions()
    swap = (
        {"instance": SigningKey.generate()}
        if change == "instance"
        else {"name": "accelerator-2"}
    )
    there._endpoint = replace(cast.accelerator, **swap)  # type: ignore[arg-type]
    refusal = renewal_error(here, there)
    assert isinstance(refusal, PolicyError)
    assert refusal.code == "rekey-peer-differs"


def renewal_error(here: Session, there: Session) -> SealiftError:
    thread = threading.Thread(target=receive_quietly, args=(there,))
    thread.start()
    with pytest.raises(SealiftError) as refusal:
        here.rekey(60)
    thread.join(300)
    return refusal.value


def test_rekey_steps_out_of_turn_are_refused(pair: Pair) -> None:
    here, there = pair
    here._sending.send(MessageType.REKEY_DONE, b"", final=True)
    with pytest.raises(MalformedError):
        there.receive(1)


def receive_quietly(session: Session) -> None:
    with suppress(SealiftError):
        session.receive(60)


def test_a_rekey_cannot_be_flooded(pair: Pair) -> None:
    here, there = pair
    for _ in range(MAX_WAITING + 1):
        there.send_raw(b"")
    with pytest.raises(PeerError) as refusal:
        here.rekey(2)
    assert refusal.value.code == "flooded"


def test_a_rekey_cannot_be_flooded_with_long_frames(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raw frames are not authenticated: the relay can make up as many as it likes."""
    monkeypatch.setattr(session_module, "MAX_WAITING_BYTES", 1000)
    here, there = pair
    for _ in range(2):
        there.send_raw(bytes(501))
    with pytest.raises(PeerError) as refusal:
        here.rekey(2)
    assert refusal.value.code == "flooded"


def test_a_silent_rekey_is_not_waited_for_for_ever(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An initiator that stops in the middle ends the session at the responder."""
    monkeypatch.setattr(session_module, "REKEY_TIMEOUT_S", 0.05)
    here, there = pair
    renewal = Initiator(here._endpoint, here._policy, renews=here.established)
    here._sending.send(MessageType.REKEY_HELLO, renewal.hello())
    with pytest.raises(PeerError) as refusal:
        there.receive(20)
    assert refusal.value.code == "peer-timeout"
    with pytest.raises(PeerError):
        there.send(b"")
