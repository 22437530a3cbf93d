"""Leases by the clock: proven lately or revoked for good."""

from __future__ import annotations

import threading

import pytest

from sealift.crypto.sign import SigningKey
from sealift.errors import PolicyError, StaleError, UnavailableError
from sealift.release.agreement import KeyLease
from sealift.release.broker.standing import GRACE_S, HEARTBEAT_MISSING, Standings
from tests.sim.memory_ledger import MemoryLedger

ONE, TWO = (SigningKey.generate().public_key for _ in range(2))
BEAT_S, LASTS_S = 5.0, 20.0
TERMS = KeyLease(lease_s=LASTS_S, heartbeat_s=BEAT_S)
HOST = "tpm:one"


@pytest.fixture
def standings() -> Standings:
    return Standings(MemoryLedger())


def test_without_lease_an_instance_is_good_and_never_due(standings: Standings) -> None:
    found = standings.standing(ONE, 100.0)
    assert (found.good, found.due_s) == (True, 0.0)
    assert standings.next_end_s(100.0) is None


def test_proofs_move_the_time_that_is_due(standings: Standings) -> None:
    standings.grant(ONE, TERMS, 0.0, HOST)
    assert standings.standing(ONE, 1.0).due_s == BEAT_S + GRACE_S - 1
    standings.prove(ONE, TERMS, 4.0, HOST)
    standings.prove(ONE, TERMS, 3.0, HOST)  # an earlier proof does not shorten it
    assert standings.standing(ONE, 4.0).due_s == BEAT_S + GRACE_S
    assert standings.overdue(4.0 + LASTS_S) == ()
    assert standings.overdue(4.0 + LASTS_S + GRACE_S) == (ONE,)


def test_silence_pauses_and_then_ends(standings: Standings) -> None:
    """It shows before anybody looked; a proof in between goes on where it stood."""
    standings.grant(ONE, TERMS, 0.0, HOST)
    found = standings.standing(ONE, BEAT_S + GRACE_S)
    assert (found.good, found.rule) == (False, HEARTBEAT_MISSING)
    assert found.ends_s == LASTS_S - BEAT_S
    assert standings.overdue(BEAT_S + GRACE_S) == ()
    standings.prove(ONE, TERMS, 10.0, HOST)
    assert standings.standing(ONE, 10.0).good
    over = standings.standing(ONE, 10.0 + LASTS_S + GRACE_S)
    assert (over.good, over.ends_s) == (False, 0.0)


def test_the_shortest_heartbeat_counts(standings: Standings) -> None:
    standings.grant(ONE, TERMS, 0.0, HOST)
    standings.grant(ONE, KeyLease(2 * LASTS_S, 2 * BEAT_S), 0.0, HOST)
    assert standings.next_end_s(0.0) == LASTS_S + GRACE_S
    assert standings.standing(ONE, 0.0).due_s == BEAT_S + GRACE_S


def test_revoked_is_for_good(standings: Standings) -> None:
    standings.grant(ONE, TERMS, 0.0, HOST)
    standings.grant(TWO, TERMS, 0.0, HOST)
    epochs: list[int] = []
    standings.revoke(ONE, "ima-not-allowed", epochs.append)
    assert epochs == [1]
    for attempt in (
        lambda: standings.prove(ONE, TERMS, 1.0, HOST),
        lambda: standings.grant(ONE, TERMS, 1.0, HOST),
        lambda: standings.require_good(ONE),
    ):
        with pytest.raises(StaleError) as refusal:
            attempt()
        assert refusal.value.code == "lease-revoked"
        assert "ima-not-allowed" in str(refusal.value)
    assert standings.standing(TWO, 1.0).good
    assert standings.overdue(99.0) == (TWO,)


def test_given_back_is_not_missed(standings: Standings) -> None:
    standings.grant(ONE, TERMS, 0.0, HOST)
    standings.give_back(ONE)
    assert standings.overdue(99.0) == ()
    assert standings.standing(ONE, 99.0).good
    assert standings.standing(ONE, 1.0).due_s == 0  # which no holder takes for a lease


def test_a_broker_started_again_opens_a_lease_that_is_proven(
    standings: Standings,
) -> None:
    standings.prove(ONE, TERMS, 10.0, HOST)
    assert standings.standing(ONE, 10.0).due_s == BEAT_S + GRACE_S
    assert standings.overdue(10.0 + LASTS_S + GRACE_S) == (ONE,)


def test_evidence_of_another_host_does_not_keep_a_lease(standings: Standings) -> None:
    standings.grant(ONE, TERMS, 0.0, HOST)
    for borrowed in (
        lambda: standings.prove(ONE, TERMS, 1.0, "tpm:two"),
        lambda: standings.grant(ONE, TERMS, 1.0, "tpm:two"),
    ):
        with pytest.raises(PolicyError) as refusal:
            borrowed()
        assert refusal.value.code == "attester-differs"
    assert standings.overdue(LASTS_S + GRACE_S) == (ONE,)
    standings.prove(ONE, TERMS, 1.0, HOST)  # control
    assert standings.overdue(LASTS_S + GRACE_S) == ()


def test_giving_back_does_not_change_the_host(standings: Standings) -> None:
    standings.grant(ONE, TERMS, 0.0, HOST)
    standings.give_back(ONE)
    assert standings.host(ONE) == HOST
    for borrowed in (standings.prove, standings.grant):
        with pytest.raises(PolicyError) as refusal:
            borrowed(ONE, TERMS, 1.0, "tpm:two")
        assert refusal.value.code == "attester-differs"
    standings.prove(ONE, TERMS, 1.0, HOST)  # control
    assert standings.standing(ONE, 1.0).due_s


def test_what_could_not_be_logged_is_logged_later(standings: Standings) -> None:
    """A full disk: the instance is revoked at once, and whoever looks next tries again."""
    standings.grant(ONE, TERMS, 0.0, HOST)

    def full(epoch: int) -> None:
        raise UnavailableError("the disk is full")

    with pytest.raises(UnavailableError):
        standings.revoke(ONE, "ima-not-allowed", full)
    assert standings.standing(ONE, 1.0).rule == "ima-not-allowed"
    assert standings.open() == standings.overdue(LASTS_S + GRACE_S) == (ONE,)
    epochs: list[int] = []
    standings.revoke(ONE, HEARTBEAT_MISSING, epochs.append)
    assert (epochs, standings.open()) == ([1], ())


def test_nobody_is_told_before_it_is_logged(standings: Standings) -> None:
    standings.grant(ONE, TERMS, 0.0, HOST)
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
    waiting[0].join(300)
    assert told == [False]
