"""Checkpoints under any history of crashes: the last that counts opens, no other does.

An accelerator works, records checkpoints and finishes; it, a broker, a request or an
answer is lost at any step in between. Whoever comes after it must go on from the last
checkpoint that counts anywhere, with its key; the shares of earlier ones are gone where
it counts. An accelerator that was taken over writes nothing any more.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from sealift.errors import PeerError, PolicyError, SealiftError
from sealift.release.broker import checkpoints as checkpointdesk
from sealift.release.checkpoint import CheckpointMark
from sealift.release.checkpointclient import CheckpointLedger
from sealift.release.log.heads import ShownHeads
from tests.sim.checkpoint_world import (
    CheckpointWorld,
    Died,
    Faults,
    Victim,
    deadly_writes,
)
from tests.sim.examples import examples
from tests.worlds.consortium import make_consortium

CONSORTIUM = make_consortium(("ada", "bern"))
VICTIMS = st.sampled_from(["request", "broker", "answer", "accelerator"])
STEPS = st.integers(-1, 16)


class CheckpointMachine(RuleBasedStateMachine):
    """Two brokers, one live accelerator, and the ones that it took over from."""

    @initialize()
    def begin(self) -> None:
        self.stack = ExitStack()
        self.world = CheckpointWorld(CONSORTIUM, ("ada", "bern"))
        self.stack.callback(self.world.close)
        self.stack.enter_context(deadly_writes(self.world))
        self.former: list[CheckpointLedger] = []
        self.live: CheckpointLedger | None = None
        self.told = 0  # the largest number that `record` returned
        self.finished = 0  # the last number when `finish` returned

    @rule(at=STEPS, victim=VICTIMS)
    def start(self, at: int, victim: Victim) -> None:
        """An accelerator starts, and takes over from the one before."""
        if self.live is not None:
            self.former.append(self.live)
        heads = ShownHeads()
        self.live = ledger = self.world.ledger(heads=heads)
        self.world.faults = Faults(at, victim)
        try:
            mark = ledger.claim()
            if mark is not None:
                assert self.world.opens(ledger, mark)
        except (Died, PeerError):
            self.live = None
            return
        finally:
            self.world.faults = Faults()
        self.check_resumed(mark, heads)

    @precondition(lambda self: self.live is not None)
    @rule(at=STEPS, victim=VICTIMS)
    def record(self, at: int, victim: Victim) -> None:
        assert self.live is not None
        sealed, key = self.world.seal()
        self.world.faults = Faults(at, victim)
        try:
            mark = self.live.record(sealed, key)
        except Died:
            self.live = None
        except PeerError:
            pass  # missed; training goes on
        else:
            assert mark.number > self.told
            self.told = mark.number
        finally:
            self.world.faults = Faults()

    @precondition(lambda self: self.live is not None)
    @rule(at=STEPS, victim=VICTIMS)
    def finish(self, at: int, victim: Victim) -> None:
        assert self.live is not None
        self.world.faults = Faults(at, victim)
        try:
            self.live.finish()
        except (Died, PeerError):
            pass
        else:
            self.finished = self.last_logged()
        finally:
            self.world.faults = Faults()
        self.live = None

    @precondition(lambda self: self.former and self.live is not None)
    @rule(which=st.integers(0, 100), ends=st.booleans())
    def wake(self, which: int, ends: bool) -> None:
        """One that was taken over goes on where it was stopped."""
        ledger = self.former[which % len(self.former)]
        before = {owner: self.world.held(owner) for owner in self.world.owners}
        act = ledger.finish if ends else lambda: ledger.record(*self.world.seal())
        with pytest.raises(PolicyError) as caught:
            act()
        assert caught.value.code == "instance-superseded"
        for owner, held in before.items():
            assert self.world.held(owner) in (held, self.caught_up(owner, held))

    @invariant()
    def nothing_older_than_what_counts_is_held(self) -> None:
        if not hasattr(self, "world"):
            return
        for owner in self.world.owners:
            committed = self.world.held(owner).get("committed", 0)
            numbers = [
                entry.number
                for entry in self.world.entries(owner)
                if entry.kind == "checkpoint"
            ]
            assert numbers == sorted(numbers)
            # One step behind its own log at most, until it is asked again.
            assert committed in (0, *numbers[-1:], *sorted(set(numbers))[-2:-1])

    def check_resumed(self, mark: CheckpointMark | None, heads: ShownHeads) -> None:
        last = self.last_logged()
        if mark is None:
            # Nothing counts, or the last thing that anybody knows is the end.
            ends = [
                entry.number
                for owner in self.world.owners
                for entry in self.world.entries(owner)
                if entry.kind == "checkpoint-finish"
            ]
            assert last == 0 or last in ends
            assert self.told <= last
        else:
            assert mark.number == last >= self.told
            assert mark.number > self.finished
            held = {owner: self.world.held(owner) for owner in self.world.owners}
            assert all(each["committed"] == last for each in held.values())
            logs = [box.log.head() for box in self.world.boxes.values()]
            assert set(heads()) == set(logs)

    def caught_up(self, owner: str, held: dict[str, int]) -> dict[str, int]:
        """What a broker holds once it was asked, if its log was ahead of its vault."""
        logged = {each.number for each in self.world.entries(owner)}
        pending = held.get("pending")
        return {"committed": pending} if pending in logged else held

    def last_logged(self) -> int:
        return max(
            (
                entry.number
                for owner in self.world.owners
                for entry in self.world.entries(owner)
                if entry.kind == "checkpoint"
            ),
            default=0,
        )

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.stack.close()


def test_whoever_asks_lets_a_broker_catch_up_with_its_log() -> None:
    """It died between log and vault; one that was taken over is refused all the same."""
    state = CheckpointMachine()
    state.begin()
    state.start(at=-1, victim="request")
    state.start(at=-1, victim="request")
    state.record(at=5, victim="broker")
    state.wake(which=0, ends=False)
    state.teardown()


CheckpointMachine.TestCase.settings = examples(
    30,
    stateful_step_count=14,
    suppress_health_check=[HealthCheck.too_slow],
)
TestCheckpointMachine = CheckpointMachine.TestCase


@pytest.mark.parametrize("victim", ["request", "broker", "answer", "accelerator"])
def test_a_crash_at_every_step_of_one_checkpoint(victim: Victim) -> None:
    """The steps one by one: record a second checkpoint, die at step N, start again."""
    at, reached = 0, True
    while reached:
        machine = CheckpointMachine()
        machine.begin()
        try:
            machine.start(-1, victim)
            machine.record(-1, victim)
            assert machine.told == 1
            assert machine.live is not None
            machine.world.faults = faults = Faults(at, victim)
            with suppress(Died, SealiftError):
                machine.live.record(*machine.world.seal())
            reached, machine.world.faults = faults.at == -1, Faults()
            machine.start(-1, victim)
            assert machine.live is not None
            machine.record(-1, victim)
            machine.start(-1, victim)
        finally:
            machine.teardown()
        at += 1
    assert at >= 5


def test_mutant_that_logs_last_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: a broker that changes its vault first loses a checkpoint that counts."""
    honest = checkpointdesk.CheckpointKeeper._commit

    def vault_first(desk, key, mark, status, asker):  # type: ignore[no-untyped-def]
        if status.committed != mark:
            desk._store.commit(key)
        return desk._append("checkpoint", key, mark, asker)

    monkeypatch.setattr(checkpointdesk.CheckpointKeeper, "_commit", vault_first)
    with pytest.raises(SealiftError, match="does not know checkpoint"):
        test_a_crash_at_every_step_of_one_checkpoint("broker")
    monkeypatch.setattr(checkpointdesk.CheckpointKeeper, "_commit", honest)


def test_mutant_that_asks_to_count_too_early_cannot_go_on() -> None:
    """Control: commit after each deposit, and a crash between two owners."""
    world = CheckpointWorld(CONSORTIUM, ("ada", "bern"))
    try:
        ledger = world.ledger()
        ledger.claim()
        mark = CheckpointMark(1, world.seal()[0], ("ada", "bern"))
        with ledger._reach("ada") as broker:
            broker.deposit(mark, world.seal()[1])
            broker.commit(mark)
        with pytest.raises(SealiftError, match="the broker of bern does not know"):
            world.ledger().claim()
    finally:
        world.close()
