"""T8: a holder stalls, or dies, with the lease in its hand.

The lease ends by the accelerator's own clock: revoke, scrub, and the next holder is
visited; what comes late is not taken. The holder stops by its own clock as well. In
memory the clock is a fake one that flies while the holder is silent; one test does it
with a real accelerator process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sealift.errors import PeerError, SealiftError, StaleError
from sealift.events import Event
from sealift.travel.holder.visit import Provisioning
from sealift.travel.visit.messages import Present, Ready, receive_message, send_message
from sealift.travel.visit.state import Visit, VisitState
from tests.sim.hands import WAIT_S, Hand
from tests.sim.live import live_job
from tests.sim.outcome import Outcome
from tests.sim.visit_parts import FakeClock
from tests.sim.visit_world import VisitWorld
from tests.worlds.visits import SCHEMA

Step = Callable[[Hand], None]
RECIPE = b"""
import torch

class Net(torch.nn.Linear):
    def training_step(self, batch, step):
        return self(batch["x"].float()).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

def build():
    return Net(5, 1)
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[VisitWorld]:
    with VisitWorld(tmp_path) as made:
        yield made


def assert_revoked(world: VisitWorld, outcome: Outcome, *reasons: str) -> None:
    """Nothing was trained, nothing is left, and the next holder is visited."""
    assert outcome.reason in reasons
    assert outcome.receipt is None
    assert world.trained == []
    assert world.pools[-1].scrubbed
    assert world.visit("bern").verified
    assert world.trained[-1][1] == world.plain["bern-train"]


def say_nothing(hand: Hand) -> None:
    """Stall after the handshake."""


def keep_the_leaves(hand: Hand) -> None:
    """Stall before the leaves."""
    header, leaves = hand.held.source.header_bytes, hand.held.leaves
    send_message(hand.session, Present(hand.signed, header, len(leaves)))


def send_nothing(hand: Hand) -> None:
    """Stall before the first frame."""
    hand.introduce()


def send_half(hand: Hand) -> None:
    """Stall in the middle of the cargo."""
    hand.introduce()
    hand.send(hand.frames()[: hand.total // 2])


def do_not_finish(hand: Hand) -> None:
    """Stall after the last frame."""
    hand.introduce()
    hand.send(hand.frames())


POINTS = [say_nothing, keep_the_leaves, send_nothing, send_half, do_not_finish]


@pytest.mark.parametrize("point", POINTS)
def test_a_holder_that_stalls(world: VisitWorld, point: Step) -> None:
    late: list[SealiftError] = []

    def bring(hand: Hand) -> None:
        point(hand)
        hand.stall()
        try:  # until the accelerator has given up
            while True:
                hand.session.receive(WAIT_S)
        except SealiftError as error:
            late.append(error)
        with pytest.raises(PeerError):
            hand.session.send_raw(bytes(200))

    started = world.clock()
    outcome = world.visit("ada", bring)
    assert late
    assert world.clock() - started == pytest.approx(world.lease_s)
    assert_revoked(world, outcome, "peer-timeout")


@pytest.mark.parametrize("point", POINTS)
def test_a_holder_that_dies(world: VisitWorld, point: Step) -> None:
    def bring(hand: Hand) -> None:
        point(hand)
        hand.session._transport.close()

    outcome = world.visit("ada", bring)
    # A dead peer is noticed when something is sent to it, or read from it.
    assert_revoked(world, outcome, "session-truncated", "peer-closed")


def test_a_holder_that_leaves(world: VisitWorld) -> None:
    assert_revoked(
        world, world.visit("ada", send_half), "session-closed", "peer-closed"
    )


def too_late(hand: Hand) -> Any:
    """One frame in time, the others after the lease has ended."""
    hand.introduce()
    frames = hand.frames()
    hand.send(frames[:1])
    hand.clock.advance(hand.lease.lease_s)
    hand.send(frames[1:])
    return hand.finish()


def test_late_frames_are_not_taken(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_revoked(world, world.visit("ada", too_late), "lease-expired")
    monkeypatch.setattr(Visit, "remaining_s", lambda visit: 10.0)  # the mutant
    assert world.visit("ada", too_late).verified


def test_seconds_do_not_start_again_with_each_frame(world: VisitWorld) -> None:
    def trickle(hand: Hand) -> Any:
        hand.introduce()
        for frame in hand.frames():
            hand.clock.advance(hand.lease.lease_s / 5)
            hand.send([frame])
        return hand.finish()

    assert_revoked(world, world.visit("ada", trickle), "lease-expired")


def slow_holder(world: VisitWorld, sent: list[Event]) -> Callable[[Hand], Any]:
    """The real holder, whose own clock runs out after three frames."""
    own_clock = FakeClock()

    def note(event: Event) -> None:
        sent.append(event)
        if len(sent) == 3:
            own_clock.advance(world.lease_s)

    def bring(hand: Hand) -> Any:
        provisioning = Provisioning(
            hand.held,
            hand.signed,
            clock=own_clock,
            check_heads=lambda heads: None,
            require_allowed=lambda: None,
            sink=note,
        )
        return provisioning.provision(hand.session)

    return bring


def test_the_holder_stops_by_its_own_clock(
    world: VisitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Event] = []
    outcome = world.visit("ada", slow_holder(world, sent))
    assert isinstance(outcome.holder_error, StaleError)
    assert len(sent) == 3
    assert_revoked(world, outcome, "lease-expired")
    monkeypatch.setattr(Provisioning, "_remaining_s", lambda self: 10.0)  # the mutant
    assert world.visit("ada", slow_holder(world, [])).verified


def test_a_holder_that_never_comes(world: VisitWorld) -> None:
    def meet(*_: Any) -> Any:
        raise PeerError("did not come", code="holder-missing")

    offer = world.offer("ada")
    hosted = world.host(offer, meet)
    ended = hosted.run(world.grant(offer, hosted))
    assert (ended.outcome, ended.reason) == ("failed", "holder-missing")
    assert hosted.state is VisitState.FAILED
    assert world.pools[-1].scrubbed
    assert world.visit("bern").verified


def test_an_offer_is_withdrawn(world: VisitWorld) -> None:
    hosted = world.host(world.offer("ada"), lambda *_: pytest.fail("nobody is met"))
    assert hosted.withdraw().outcome == "failed"
    assert world.pools[-1].scrubbed
    with pytest.raises(StaleError):
        hosted.run(world.visit("bern").lease)


@pytest.mark.distributed
def test_with_a_real_process(tmp_path: Path) -> None:
    rows = {"ada-train": bytes(40 * 60)}
    with live_job(
        tmp_path,
        lambda name: rows.get(name, bytes(40 * 8)),
        row_bytes=40,
        schema=SCHEMA,
        recipe=RECIPE,
    ) as job:
        signed = job.grant("ada", lease_s=1.0)
        with job.meet(signed) as session:
            held = job.held["ada-train"]
            first = Present(signed, held.source.header_bytes, len(held.leaves))
            send_message(session, first)
            assert job.ended().reason == "peer-timeout"
            with pytest.raises(PeerError):  # it has been told, or finds nobody
                receive_message(session, Ready, timeout_s=WAIT_S)
        assert job.provision(job.grant("bern")).body.holder == "bern"
        assert job.ended().outcome == "verified"
        assert job.provision(job.grant("ada")).body.holder == "ada"  # it is back
        assert job.ended().outcome == "verified"
