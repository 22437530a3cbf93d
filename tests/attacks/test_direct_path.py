"""Direct paths: nobody but the session's own holder gets in, and nothing is lost.

Strangers find the socket, know the token, replay what a holder said, listen where the
accelerator said that it listens, or stall. The frames and their checks are those of the
relay; so are the attacks on them. Each attack wins against a mutant without its rule.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sealift.channel.transport.transport import SlotTransport
from sealift.channel.transport.unixsocket import dial_local
from sealift.crypto.keys import Label, SecretKey
from sealift.errors import (
    AuthenticationError,
    PeerError,
    SealiftError,
)
from sealift.session import direct
from sealift.session.direct import (
    DirectOffer,
    Kind,
    prove_to_dialler,
    prove_to_host,
)
from sealift.travel.accelerator.visit import HostedVisit
from sealift.travel.visit.lease import frame_bytes
from sealift.travel.visit.messages import (
    PathTaken,
    Ready,
    receive_message,
    send_message,
)
from tests.sim.directpaths import directly, finder_of, listening, paths_of
from tests.sim.hands import WAIT_S, Hand
from tests.sim.visit_world import VisitWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[VisitWorld]:
    with listening(tmp_path) as world:
        yield world


def refusals(world: VisitWorld) -> list[Any]:
    return [e.fields["reason"] for e in world.events if e.kind == "direct.refused"]


@pytest.mark.parametrize("kind", ["memfd", "tcp"])
def test_cargo_crosses_past_the_relay(world: VisitWorld, kind: Kind) -> None:
    outcome = world.visit("ada", directly([kind]))
    assert outcome.verified, outcome.ended
    assert outcome.receipt is not None
    assert world.trained[-1][1] == world.plain["ada-train"]
    assert world.raw_frames(outcome) == []
    assert paths_of(world) == [(kind, "offered and proved")]
    relayed = world.visit("ada", directly([]))
    assert world.raw_frames(relayed)  # control: there they would have been seen
    assert paths_of(world)[-1] == (
        "relay",
        "this machine allows none of the offered direct paths",
    )
    assert relayed.receipt is not None
    told = [each.body for each in (outcome.receipt, relayed.receipt)]
    assert told[0].sealed_bytes == told[1].sealed_bytes
    assert set(told[0].phases_s) == set(told[1].phases_s)
    assert world.untouched()


def test_rows_that_cross_the_edges_of_records(world: VisitWorld) -> None:
    offer = world.offer("ada", first_row=3, rows=9)
    outcome = world.visit("ada", directly(), offer=offer)
    assert outcome.verified
    assert world.trained[-1][1] == world.plain["ada-train"][3 * 40 : 12 * 40]


class Placed:
    """A place at the world's listening end, and a stranger's ways to it."""

    def __init__(self, world: VisitWorld, kind: Kind = "memfd") -> None:
        assert world.direct_host is not None
        self.world, self.kind = world, kind
        self.secret = secrets.token_bytes(32)
        self.place = world.direct_host.offer(SecretKey(self.secret), 200)
        self.offer = next(o for o in self.place.offers if o.kind == kind)

    def knock(self, key: SecretKey, token: bytes | None = None) -> bool:
        """Whether somebody with this key and token gets in."""
        offer = replace(self.offer, token=token or self.offer.token)
        with self._dial() as sock:
            try:
                prove_to_host(sock, key, offer)
            except SealiftError:
                return False
            return self.place.transport(2.0) is not None

    def _dial(self) -> socket.socket:
        if self.kind == "memfd":
            return dial_local(self.offer.address, 1.0)
        host, _, port = self.offer.address.rpartition(":")
        return socket.create_connection((host, int(port)), 1.0)


@pytest.mark.parametrize("kind", ["memfd", "tcp"])
def test_a_stranger_does_not_get_in(world: VisitWorld, kind: Kind) -> None:
    placed = Placed(world, kind)
    right, wrong = SecretKey(placed.secret), SecretKey.generate()
    assert not placed.knock(wrong)
    assert not placed.knock(right, token=bytes(16))
    assert placed.knock(right)  # nobody took the place meanwhile
    assert not placed.knock(right)  # and there is one only


def test_a_stranger_wins_where_no_proof_is_asked_for(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "verify_equal", lambda *_: None)
    assert Placed(world).knock(SecretKey.generate())


def test_a_key_of_another_visit_is_a_stranger(world: VisitWorld) -> None:
    keys: list[SecretKey] = []
    holders_own = directly(["tcp"])

    def bring(hand: Hand) -> Any:
        keys.append(hand.session.export(Label.DIRECT_PATH, hand.lease.digest.raw))
        if len(keys) == 1:
            return holders_own(hand)
        hand.introduce()  # says: by the relay
        offer = hand.ready.direct[0]
        with dial_local(offer.address, 1.0) as sock, pytest.raises(SealiftError):
            prove_to_host(sock, keys[0], offer)
        hand.send(hand.frames())
        return hand.finish()

    assert world.visit("ada", bring).verified
    assert world.visit("ada", bring).verified
    assert refusals(world)


def exchange(
    token: bytes, key: SecretKey, answer: Callable[[socket.socket], None]
) -> None:
    """The accelerator's end of one connection; somebody answers at the other."""
    here, there = socket.socketpair()
    thread = threading.Thread(target=answer, args=(there,))
    thread.start()
    try:
        prove_to_dialler(here, "tcp", lambda told: key, lambda told: True)
    finally:
        here.close()
        thread.join(WAIT_S)
        there.close()


class Tap:
    """Passes a holder's bytes on and keeps them."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self.sent = sock, b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def sendall(self, message: bytes) -> None:
        self.sent += message
        self._sock.sendall(message)


@pytest.mark.parametrize("mutant", [False, True])
def test_a_replayed_proof(monkeypatch: pytest.MonkeyPatch, mutant: bool) -> None:
    if mutant:  # the accelerator's challenge is always the same
        monkeypatch.setattr(direct.secrets, "token_bytes", bytes)
    key, offer = SecretKey.generate(), DirectOffer("tcp", "x:1", bytes(16))
    taps: list[Tap] = []

    def holder(sock: socket.socket) -> None:
        taps.append(Tap(sock))
        prove_to_host(taps[0], key, offer)  # type: ignore[arg-type]

    def replay(sock: socket.socket) -> None:
        sock.sendall(taps[0].sent)

    exchange(offer.token, key, holder)
    if mutant:
        exchange(offer.token, key, replay)
        return
    with pytest.raises(AuthenticationError):
        exchange(offer.token, key, replay)


def test_a_path_that_was_not_offered(world: VisitWorld) -> None:
    world.direct_host = None

    def bring(hand: Hand) -> Any:
        hand.present()
        receive_message(hand.session, Ready, timeout_s=WAIT_S)
        send_message(hand.session, PathTaken("memfd"))
        return hand.finish(hand.total)

    assert world.visit("ada", bring).reason == "bad-message"


def test_a_holder_that_says_it_came_and_did_not(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.lease_s = 0.3

    def bring(hand: Hand) -> Any:
        hand.present()
        receive_message(hand.session, Ready, timeout_s=WAIT_S)
        send_message(hand.session, PathTaken("memfd"))
        hand._read(type(None))

    assert world.visit("ada", bring).reason == "peer"
    assert world.pools[-1].scrubbed


class Way:
    """A misbehaving holder's direct path."""

    def __init__(self, hand: Hand, kind: Kind) -> None:
        hand.present()
        ready = receive_message(hand.session, Ready, timeout_s=WAIT_S)
        key = hand.session.export(Label.DIRECT_PATH, hand.lease.digest.raw)
        taken = finder_of((kind,)).take(
            ready.direct, key, frame_bytes(hand.record_bytes)
        )
        assert taken.transport is not None, taken.why
        self._transport = taken.transport
        send_message(hand.session, PathTaken(taken.name))

    def __enter__(self) -> SlotTransport:
        return self._transport

    def __exit__(self, *exc: object) -> None:
        self._transport.close()


@pytest.mark.parametrize("kind", ["memfd", "tcp"])
def test_a_stall_ends_with_the_lease(world: VisitWorld, kind: Kind) -> None:
    world.lease_s = 0.4

    def bring(hand: Hand) -> Any:
        with Way(hand, kind) as transport:
            transport.send(hand.frame(0))
            return hand._read(type(None))  # nothing more, until it is told to go

    outcome = world.visit("ada", bring)
    assert outcome.reason == "peer-timeout"
    assert world.pools[-1].scrubbed
    world.lease_s = 30.0
    assert world.visit("bern", directly()).verified


@pytest.mark.parametrize("kind", ["memfd", "tcp"])
def test_a_stop_need_not_wait_for_a_holder_that_stalls(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    """The lease would not end before the test: whoever stops hangs up on both paths."""
    world.lease_s = 3600.0
    hosted: list[HostedVisit] = []
    host = world.host
    monkeypatch.setattr(world, "host", lambda *a: hosted.append(host(*a)) or hosted[0])

    def bring(hand: Hand) -> Any:
        with Way(hand, kind) as transport:
            transport.send(hand.frame(0))
            hosted[0].revoke("stopped")
            hosted[0].close_session()
            return hand._read(type(None))

    assert not world.visit("ada", bring).verified
    assert world.pools[-1].scrubbed


def swapped(frames: list[bytes]) -> list[bytes]:
    return [frames[1], frames[0], *frames[2:]]


def repeated(frames: list[bytes]) -> list[bytes]:
    return [frames[0], frames[0], *frames[2:]]


def flipped(frames: list[bytes]) -> list[bytes]:
    return [frames[0], frames[1][:-1] + bytes([frames[1][-1] ^ 1]), *frames[2:]]


def too_few(frames: list[bytes]) -> list[bytes]:
    return frames[:-1]


SPOILT = {
    swapped: "frame-order", repeated: "frame-order", flipped: "authentication",
    too_few: "unexpected-frame",
}  # fmt: skip


@pytest.mark.parametrize("kind", ["memfd", "tcp"])
@pytest.mark.parametrize("spoil", [*SPOILT, list])
def test_frames_are_checked_as_ever(world: VisitWorld, kind: Kind, spoil: Any) -> None:
    def bring(hand: Hand) -> Any:
        with Way(hand, kind) as transport, suppress(PeerError):
            for frame in spoil(hand.frames()):
                transport.send(frame)
            if spoil is list:
                return hand.finish(hand.total)
        return hand.finish(hand.total)  # or what the accelerator says instead

    outcome = world.visit("ada", bring)
    if spoil is list:  # control: unspoilt they pass
        assert outcome.verified
        return
    assert outcome.reason == SPOILT[spoil]
    assert (outcome.receipt, world.trained) == (None, [])
    assert world.pools[-1].scrubbed
    assert world.untouched()
