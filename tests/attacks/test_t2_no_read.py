"""T2: a holder reads nothing: neither the model, nor other rows, nor anybody's keys.

There is no message that asks for memory. An evil holder with a valid lease says, at
every point of a visit, every kind of message that exists, well formed and spoilt, and
every kind of broken frame. Whatever the accelerator answers is searched for the model,
for other owners' rows, for what lies around the buffer and for keys; nothing that the
holder may not write changes. Against mutants that do answer with memory, the same search
finds it.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sealift.codec import encode
from sealift.crypto.keys import TOKEN
from sealift.errors import SealiftError
from sealift.travel.accelerator import visit as host
from sealift.travel.visit.messages import Failed, Leaves, send_message
from tests.sim.hands import WAIT_S, Hand
from tests.sim.live import live_job
from tests.sim.outcome import Outcome
from tests.sim.utterances import ANY, Draw, raw_frames, utterances
from tests.sim.visit_world import VisitWorld
from tests.worlds.visits import SCHEMA

Say = Callable[[Hand], None]
WINDOW_BYTES = 12
FROM_HOLDERS = {"Failed", "Present", "Leaves", "PathTaken", "Cargo"}
TO_HOLDERS = {"Failed", "Ready", "Credit", "VisitPhase", "Receipted"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[VisitWorld]:
    with VisitWorld(tmp_path) as world:
        world.rules.max_visits = 10**6
        yield world


class Ear:
    """A session whose holder remembers every message that it was sent."""

    def __init__(self, session: Any, heard: list[bytes]) -> None:
        self._session, self._heard = session, heard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def receive(self, timeout_s: float | None = None) -> bytes:
        message: bytes = self._session.receive(timeout_s)
        self._heard.append(message)
        return message

    def receive_any(self, timeout_s: float | None = None) -> Any:
        incoming = self._session.receive_any(timeout_s)
        self._heard.append(incoming.payload)
        return incoming


def at_first(hand: Hand) -> None:
    """Before the first word."""


def at_leaves(hand: Hand) -> None:
    """After the lease was presented, before any leaf."""
    leaves, header = hand.held.leaves, hand.held.source.header_bytes
    send_message(hand.session, host.Present(hand.signed, header, len(leaves)))


def at_ready(hand: Hand) -> None:
    """Before the first frame."""
    hand.introduce()


def at_frames(hand: Hand) -> None:
    """Between two frames."""
    hand.introduce()
    hand.send(hand.frames()[: hand.total // 2])


def at_cargo(hand: Hand) -> None:
    """After the last frame."""
    hand.introduce()
    hand.send(hand.frames())


POINTS = [at_first, at_leaves, at_ready, at_frames, at_cargo]


def needles(secret: bytes) -> Iterable[bytes]:
    """Pieces of a secret, in every form in which they could be said."""
    for start in range(0, len(secret) - WINDOW_BYTES + 1, WINDOW_BYTES):
        piece = secret[start : start + WINDOW_BYTES]
        yield piece
        yield piece.hex().encode()
        yield repr(piece)[2:-1].encode()
        for shift in range(3):
            whole = piece[shift : shift + 9]
            yield base64.urlsafe_b64encode(whole)
            yield base64.b64encode(whole)


def texts(message: bytes) -> Iterator[bytes]:
    """Every text in a message, without the escapes of JSON."""
    waiting = [json.loads(message)]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each.encode(errors="replace")
        elif isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def secrets_of(world: VisitWorld, holder: str) -> dict[str, bytes]:
    """What this holder must never learn."""
    keys = world.consortium.keys
    found = {
        "model": bytes(world.model),
        "guards": b"".join(pool._guards for pool in world.pools),
    }
    for name in world.plain:
        if not name.startswith(holder):
            found |= {f"rows of {name}": world.plain[name]}
            found |= {f"key of {name}": keys[name].reveal(TOKEN)}
    return found


def learned(world: VisitWorld, holder: str, said: list[bytes]) -> set[str]:
    """Which secrets were said, whole or in part."""
    everything = b"\n".join([*said, *(text for each in said for text in texts(each))])
    return {
        name
        for name, secret in secrets_of(world, holder).items()
        if any(needle in everything for needle in needles(secret))
    }


def overheard(world: VisitWorld, say: Say) -> tuple[Outcome, list[bytes]]:
    """A visit in which ada says something, and everything that she and others heard."""
    heard: list[bytes] = []

    def bring(hand: Hand) -> None:
        hand.session = Ear(hand.session, heard)  # type: ignore[assignment]
        with suppress(SealiftError):
            say(hand)
        hand.stall()
        with suppress(SealiftError):  # until the accelerator has had enough
            while True:
                hand.session.receive(WAIT_S)

    outcome = world.visit("ada", bring)
    assert outcome.ended is not None, outcome.error
    return outcome, [*heard, encode(outcome.ended)]


def assert_nothing_learned(world: VisitWorld, name: str, say: Say) -> None:
    trained = len(world.trained)
    outcome, said = overheard(world, say)
    assert not outcome.verified, name
    assert outcome.receipt is None
    assert len(world.trained) == trained, name
    assert learned(world, "ada", said) == set(), name
    assert world.untouched(), name
    assert all(pool.scrubbed for pool in world.pools), name
    world.pools.clear()


@pytest.mark.parametrize("point", POINTS)
def test_no_message_is_answered_with_memory(world: VisitWorld, point: Say) -> None:
    assert world.visit("bern").verified  # other rows have been here
    for name, message in utterances(Draw(point.__name__)):

        def say(hand: Hand, message: bytes = message) -> None:
            point(hand)
            hand.session.send(message)

        assert_nothing_learned(world, name, say)
    assert world.visit("cleo").verified


@pytest.mark.parametrize("point", POINTS)
def test_no_frame_is_answered_with_memory(world: VisitWorld, point: Say) -> None:
    assert world.visit("bern").verified
    draw = Draw(point.__name__)
    for number in range(15):
        names: list[str] = []

        def say(hand: Hand, number: int = number, names: list[str] = names) -> None:
            point(hand)
            whole = hand.frame(min(hand.sent, hand.total - 1))
            name, frame = list(raw_frames(whole, draw))[number]
            names.append(name)
            hand.session.send_raw(frame)

        assert_nothing_learned(world, f"frame {number} {names}", say)
    assert world.visit("cleo").verified


@pytest.mark.parametrize(
    "changes",
    [
        {"num_leaves": 10**9},
        {"num_leaves": -1},
        {"num_leaves": 0},
        {"header": b""},
        {"header": bytes(120)},
        {"header": bytes(4096)},
    ],
)
def test_no_first_word_is_answered_with_memory(
    world: VisitWorld, changes: dict[str, Any]
) -> None:
    assert world.visit("bern").verified
    say = partial(Hand.present, **changes)
    assert_nothing_learned(world, f"{changes}", say)


def test_what_comes_after_the_cargo_changes_nothing(world: VisitWorld) -> None:
    for _name, message in utterances(Draw("after")):

        def bring(hand: Hand, message: bytes = message) -> Any:
            heard: list[bytes] = []
            hand.session = Ear(hand.session, heard)  # type: ignore[assignment]
            hand.introduce()
            hand.send(hand.frames())
            with suppress(SealiftError):
                hand.session.send(message)  # before or after the cargo is counted
            return hand.finish()

        outcome = world.visit("ada", bring)
        assert not outcome.verified  # it stands where the count belongs
        assert world.untouched()


def test_an_honest_visit_tells_the_holder_nothing_else(world: VisitWorld) -> None:
    assert world.visit("bern").verified
    heard: list[bytes] = []

    def bring(hand: Hand) -> Any:
        hand.session = Ear(hand.session, heard)  # type: ignore[assignment]
        hand.introduce()
        hand.send(hand.frames())
        return hand.finish()

    assert world.visit("ada", bring).verified
    assert heard
    assert learned(world, "ada", heard) == set()


def test_only_these_kinds_cross_a_visit() -> None:
    """A new kind of message must be looked at here before a holder can use it."""
    control = {
        "StartJob", "JobReady", "OfferVisit", "BufferOffered", "Granted", "Withdrawn",
        "VisitLoaded", "WorkVisits", "VisitEnded", "FinishJob", "Output", "JobFinished",
        "OutputKept", "Finished", "Departed", "RoundEnded",
        "Alive",  # of a rank, to the orchestrator
        "Said",  # in a session of its own; the answer is the same statement
    }  # fmt: skip
    kinds = {kind.__name__ for kind in ANY}
    assert kinds - control <= FROM_HOLDERS | TO_HOLDERS
    words = ("read", "fetch", "peek", "dump", "get", "map", "address", "pointer")
    for kind in ANY:
        fields = [name.lower() for name in kind.__dataclass_fields__]
        said = [kind.__name__.lower().replace("ready", ""), *fields]
        assert not [each for each in said for word in words if each.startswith(word)]


# the mutants: accelerators that do answer with memory


def read_opcode(world: VisitWorld, patch: pytest.MonkeyPatch) -> None:
    """Leaves where none belong are answered with the model."""
    genuine = host.CargoLoader._receive_leaves

    def receive(loader: Any, session: Any, *rest: Any) -> Any:
        send_message(session, Leaves(bytes(world.model[40:72])))
        return genuine(loader, session, *rest)

    patch.setattr(host.CargoLoader, "_receive_leaves", receive)


def telling_error(world: VisitWorld, patch: pytest.MonkeyPatch) -> None:
    """An error's line shows what lay next to the buffer."""

    def forget(error: SealiftError) -> Failed:
        return Failed(error.code, f"near {world.pools[-1]._guards[64:90].hex()}")

    patch.setattr(host, "_forget", forget)


def row_in_error(world: VisitWorld, patch: pytest.MonkeyPatch) -> None:
    """An error's line shows a row of the visit before."""

    def forget(error: SealiftError) -> Failed:
        return Failed(error.code, repr(world.plain["bern-train"][96:140]))

    patch.setattr(host, "_forget", forget)


@pytest.mark.parametrize(
    ("mutant", "found"),
    [
        (read_opcode, "model"),
        (telling_error, "guards"),
        (row_in_error, "rows of bern-train"),
    ],
)
def test_the_search_finds_what_is_said(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch, mutant: Any, found: str
) -> None:
    assert world.visit("bern").verified
    mutant(world, monkeypatch)

    def say(hand: Hand) -> None:
        at_leaves(hand)
        hand.session.send(b"[]")

    _, said = overheard(world, say)
    assert found in learned(world, "ada", said)


def test_a_frame_that_writes_elsewhere_is_noticed(world: VisitWorld) -> None:
    """The control of ``untouched``: one changed byte is one too many."""
    assert world.visit("ada").verified
    assert world.untouched()
    world.pools[-1]._memory[0] ^= 1
    assert not world.untouched()
    world.pools[-1]._memory[0] ^= 1
    world.model[9] ^= 1
    assert not world.untouched()


MODEL = 0.0078125123  # of every weight; it does not learn
LIVE_RECIPE = b"""
import torch

class Net(torch.nn.Linear):
    def training_step(self, batch, step):
        return self(batch["x"].float()).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)

def build():
    net = Net(5, 1, dtype=torch.float32)
    torch.nn.init.constant_(net.weight, 0.0078125123)
    return net
"""


@pytest.mark.distributed
def test_a_real_process_says_nothing_either(tmp_path: Path) -> None:
    rows = np.random.default_rng(11).normal(size=(60, 5)).tobytes()
    with live_job(
        tmp_path,
        lambda name: rows if name == "bern-train" else bytes(len(rows)),
        row_bytes=40,
        schema=SCHEMA,
        recipe=LIVE_RECIPE,
    ) as job:
        assert job.provision(job.grant("bern")).body.holder == "bern"
        assert job.ended().outcome == "verified"
        heard: list[bytes] = []
        for _name, message in utterances(Draw("live")):
            with job.meet(job.grant("ada", lease_s=2.0)) as session:
                session.send(message)
                with suppress(SealiftError):
                    while True:
                        heard.append(session.receive(WAIT_S))
            ended = job.ended()
            assert ended.outcome == "failed"
            heard.append(encode(ended))
        assert job.provision(job.grant("ada")).body.holder == "ada"
    said = b"\n".join([*heard, *(text for each in heard for text in texts(each))])
    weights = struct.pack("<f", MODEL) * 5
    for secret in (rows, weights):
        assert not any(needle in said for needle in needles(secret))
    assert any(needle in weights for needle in needles(weights))
