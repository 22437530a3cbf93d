"""Leases by the clock: proven lately or revoked for good."""

from __future__ import annotations

import threading

import pytest

from sealift.crypto.sign import SigningKey
from sealift.errors import PolicyError, StaleError
from sealift.release.standing import GRACE_S, HEARTBEAT_MISSING, Standings
from tests.sim.memory_ledger import MemoryLedger

ONE, TWO = (SigningKey.generate().public_key for _ in range(2))
BEAT_S = 5.0
HOST = "tpm:one"


@pytest.fixture
def standings() -> Standings:
    return Standings(MemoryLedger())


def test_without_lease_an_instance_is_good_and_never_due(standings: Standings) -> None:
    found = standings.standing(ONE, 100.0)
    assert (found.good, found.due_s) == (True, 0.0)
    assert standings.next_due_s(100.0) is None


def test_proofs_move_the_time_that_is_due(standings: Standings) -> None:
    standings.grant(ONE, BEAT_S, 0.0, HOST)
    assert standings.standing(ONE, 1.0).due_s == BEAT_S + GRACE_S - 1
    standings.prove(ONE, BEAT_S, 4.0, HOST)
    standings.prove(ONE, BEAT_S, 3.0, HOST)  # an earlier proof does not shorten it
    assert standings.standing(ONE, 4.0).due_s == BEAT_S + GRACE_S
    assert standings.overdue(4.0 + BEAT_S) == ()
    assert standings.overdue(4.0 + BEAT_S + GRACE_S) == (ONE,)


def test_silence_shows_before_anybody_looked(standings: Standings) -> None:
    standings.grant(ONE, BEAT_S, 0.0, HOST)
    found = standings.standing(ONE, BEAT_S + GRACE_S)
    assert (found.good, found.rule) == (False, HEARTBEAT_MISSING)


def test_the_shortest_heartbeat_counts(standings: Standings) -> None:
    standings.grant(ONE, BEAT_S, 0.0, HOST)
    standings.grant(ONE, 2 * BEAT_S, 0.0, HOST)
    assert standings.next_due_s(0.0) == BEAT_S + GRACE_S


def test_revoked_is_for_good(standings: Standings) -> None:
    standings.grant(ONE, BEAT_S, 0.0, HOST)
    standings.grant(TWO, BEAT_S, 0.0, HOST)
    epochs: list[int] = []
    standings.revoke(ONE, "ima-not-allowed", epochs.append)
    assert epochs == [1]
    for attempt in (
        lambda: standings.prove(ONE, BEAT_S, 1.0, HOST),
        lambda: standings.grant(ONE, BEAT_S, 1.0, HOST),
        lambda: standings.require_good(ONE),
    ):
        with pytest.raises(StaleError) as refusal:
            attempt()
        assert refusal.value.code == "lease-revoked"
        assert "ima-not-allowed" in str(refusal.value)
    assert standings.standing(TWO, 1.0).good
    assert standings.overdue(99.0) == (TWO,)


def test_given_back_is_not_missed(standings: Standings) -> None:
    standings.grant(ONE, BEAT_S, 0.0, HOST)
    standings.give_back(ONE)
    assert standings.overdue(99.0) == ()
    assert standings.standing(ONE, 99.0).good
    assert standings.standing(ONE, 1.0).due_s == 0  # which no holder takes for a lease


def test_a_broker_started_again_opens_a_lease_that_is_proven(
    standings: Standings,
) -> None:
    standings.prove(ONE, BEAT_S, 10.0, HOST)
    assert standings.standing(ONE, 10.0).due_s == BEAT_S + GRACE_S
    assert standings.overdue(10.0 + BEAT_S + GRACE_S) == (ONE,)


def test_evidence_of_another_host_does_not_keep_a_lease(standings: Standings) -> None:
    standings.grant(ONE, BEAT_S, 0.0, HOST)
    for borrowed in (
        lambda: standings.prove(ONE, BEAT_S, 1.0, "tpm:two"),
        lambda: standings.grant(ONE, BEAT_S, 1.0, "tpm:two"),
    ):
        with pytest.raises(PolicyError) as refusal:
            borrowed()
        assert refusal.value.code == "attester-differs"
    assert standings.overdue(BEAT_S + GRACE_S) == (ONE,)
    standings.prove(ONE, BEAT_S, 1.0, HOST)  # control
    assert standings.overdue(BEAT_S + GRACE_S) == ()


def test_nobody_is_told_before_it_is_logged(standings: Standings) -> None:
    standings.grant(ONE, BEAT_S, 0.0, HOST)
    told: list[bool] = []

    def log(epoch: int) -> None:
        asking = threading.Thread(
            target=lambda: told.append(standings.standing(ONE, 1.0).good)
        )
        asking.start()
        asking.join(0.2)
        assert told == []  # it waits for us
        waiting.append(asking)

    waiting: list[threading.Thread] = []
    standings.revoke(ONE, "ima-not-allowed", log)
    waiting[0].join(5)
    assert told == [False]
