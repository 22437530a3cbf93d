"""Several visits at one time, in any order of everything that may happen (hypothesis).

Real leases, sessions, frames, pools and scrubs; loads run in their own threads. The
model knows which visits are where and what their memory must hold.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sealift.errors import MalformedError, SealiftError
from sealift.travel.accelerator.setup import LoadedCargo
from sealift.travel.accelerator.visits import HostedVisits
from sealift.travel.visit.messages import (
    BufferOffered,
    VisitEnded,
    VisitLoaded,
    WorkVisits,
)
from tests.sim.hands import Hand
from tests.sim.hosting_world import Guest, HostingWorld
from tests.sim.visit_world import OWNERS, VisitWorld


def leave(hand: Hand) -> None:
    """A holder that goes away in the middle of its cargo."""
    hand.introduce()
    hand.send(hand.frames()[:3])


class HostingMachine(RuleBasedStateMachine):
    """One accelerator."""

    @initialize(buffers=st.sampled_from([1, 2]), mixed=st.booleans())
    def start(self, buffers: int, mixed: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sealift-hosting-"))
        self.world = VisitWorld(self.folder, rows=6)
        self.world.checks = self.check
        self.buffers, self.mixed = buffers, mixed
        self.host = HostingWorld(self.world, buffers=buffers, mixed=mixed)
        self.bad: set[str] = set()
        self.loaded: dict[int, list[Guest]] = {}
        self.ended: list[Guest] = []
        self.worked: list[bytes] = []
        self.position = 0  # below this everything is over
        self.over = False

    def check(self, cargo: LoadedCargo) -> None:
        if cargo.stop.holder in self.bad:
            raise MalformedError("rows do not fit", code="bad-row")

    def may_come(self, owner: str, position: int) -> bool:
        """What the accelerator must say to an offer."""
        groups = {at for at, guests in self.loaded.items() if guests} | {position}
        beside = [g.outcome.offer.holder for g in self.loaded.get(position, [])]
        if self.over or len(groups) > self.buffers or position < self.position:
            return False
        return not beside or (self.mixed and owner not in beside)

    @rule(
        owner=st.sampled_from(OWNERS),
        ahead=st.integers(-1, 2),
        fate=st.sampled_from(["loads", "loads", "loads", "leaves", "bad", "withdrawn"]),
    )
    def come(self, owner: str, ahead: int, fate: str) -> None:
        position = self.position + ahead
        if not self.may_come(owner, position):
            pools = len(self.world.pools)
            answer = self.host.offer(owner, position)
            assert isinstance(answer, VisitEnded)
            assert len(self.world.pools) == pools, "refused, and no memory was given"
            return
        if fate == "withdrawn":
            offered = self.host.offer(owner, position)
            assert isinstance(offered, BufferOffered)
            self.host.hosting.withdraw(offered.visit)
            self.host.wait_for(VisitEnded, offered.visit)
            assert self.world.pools[-1].scrubbed
            return
        self.bad = {owner} if fate == "bad" else set()
        if fate == "loads":
            guest = self.host.load(owner, position)
            self.loaded.setdefault(position, []).append(guest)
            return
        guest = (
            self.host.begin(owner, position, leave)
            if fate == "leaves"
            else self.host.begin(owner, position)
        )
        told = self.host.wait_for(VisitEnded, guest.id)
        assert told.outcome == "failed"
        self.ended.append(guest)

    @precondition(lambda self: any(self.loaded.values()) and not self.over)
    @rule(chance=st.integers(0, 5))
    def work(self, chance: int) -> None:
        places = sorted(at for at, guests in self.loaded.items() if guests)
        position = places[chance % len(places)]
        if position < self.position:  # a later group came first: too late for this one
            with pytest.raises(SealiftError):
                self.host.work(position, *self.loaded[position])
            assert self.host.hosting.abandon("stopped").verified
            self.ended += [each for guests in self.loaded.values() for each in guests]
            self.loaded.clear()
            self.over = True
            return
        guests = self.loaded.pop(position)
        ended = self.host.work(position, *guests)
        assert {each.outcome for each in ended} == {"verified"}
        self.worked += [self.plain(guest) for guest in guests]
        self.ended += guests
        self.position = position + 1

    @precondition(lambda self: any(self.loaded.values()) and not self.over)
    @rule(wrong=st.sampled_from([-1, 1]))
    def work_on_no_group(self, wrong: int) -> None:
        position, guests = next((at, g) for at, g in self.loaded.items() if g)
        order = WorkVisits(position + 50 + wrong, tuple(each.id for each in guests))
        with pytest.raises(SealiftError):
            self.host.hosting.work(order)

    @precondition(lambda self: not self.over)
    @rule(chance=st.integers(0, 9))
    def give_up(self, chance: int) -> None:
        if chance == 0:
            self.host.hosting.abandon("test")
            self.ended += [each for guests in self.loaded.values() for each in guests]
            self.loaded.clear()
            self.over = True

    def plain(self, guest: Guest) -> bytes:
        return self.world.plain[guest.outcome.offer.resource]

    @invariant()
    def memory_is_as_it_must_be(self) -> None:
        if not hasattr(self, "host"):
            return
        for guests in self.loaded.values():
            for guest in guests:
                assert bytes(guest.pool.buffer) == self.plain(guest)
                assert not guest.pool.closed
        assert all(guest.pool.scrubbed for guest in self.ended)
        assert self.world.untouched()

    @invariant()
    def what_was_worked_on_was_loaded(self) -> None:
        if hasattr(self, "host"):
            assert [rows for _visit, rows in self.world.trained] == self.worked
            assert not self.host.stopped

    @invariant()
    def everybody_hears_one_end(self) -> None:
        if hasattr(self, "host"):
            ends = [e.visit for e in self.host.told if isinstance(e, VisitEnded)]
            loads = [e.visit for e in self.host.told if isinstance(e, VisitLoaded)]
            assert len(ends) == len(set(ends))
            assert len(loads) == len(set(loads))

    def teardown(self) -> None:
        if hasattr(self, "host"):
            self.host.close()
            self.world.close()
            assert all(pool.scrubbed for pool in self.world.pools)
            shutil.rmtree(self.folder)


QUICK = settings(
    max_examples=20,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_several_visits() -> None:
    run_state_machine_as_test(HostingMachine, settings=QUICK)  # type: ignore[no-untyped-call]


def no_room_rule(*_: Any) -> None:
    """The mutant: whoever asks gets a buffer."""


def test_without_the_rule_about_room_it_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HostedVisits, "_require_room", no_room_rule)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(HostingMachine, settings=QUICK)  # type: ignore[no-untyped-call]
