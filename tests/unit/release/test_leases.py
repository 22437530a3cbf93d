"""Leases by the clock: proven lately or revoked for good."""

from __future__ import annotations

import threading

import pytest

from sealift.crypto.sign import SigningKey
from sealift.errors import PolicyError, StaleError, UnavailableError
from sealift.release.agreement import KeyLease
from sealift.release.broker.leases import KeyLeases
from sealift.release.broker.messages import HEARTBEAT_MISSING
from sealift.release.decision import GRACE_S
from tests.sim.memory_ledger import MemoryLedger

ONE, TWO = (SigningKey.generate().public_key for _ in range(2))
BEAT_S, LASTS_S = 5.0, 20.0
TERMS = KeyLease(lease_s=LASTS_S, heartbeat_s=BEAT_S)
HOST = "tpm:one"
OWNER = SigningKey.generate().public_key


@pytest.fixture
def leases() -> KeyLeases:
    return KeyLeases(
        MemoryLedger(),
        OWNER,
        terms=TERMS,
        record=lambda *_: None,
        monotonic=lambda: 0.0,
    )


def test_without_lease_an_instance_is_good_and_never_due(leases: KeyLeases) -> None:
    found = leases.status(ONE, 100.0)
    assert (found.good, found.due_s) == (True, 0.0)
    assert leases.next_end_s(100.0) is None


def test_proofs_move_the_time_that_is_due(leases: KeyLeases) -> None:
    leases.grant(ONE, TERMS, 0.0, HOST)
    assert leases.status(ONE, 1.0).due_s == BEAT_S + GRACE_S - 1
    leases.prove(ONE, TERMS, 4.0, HOST)
    leases.prove(ONE, TERMS, 3.0, HOST)  # an earlier proof does not shorten it
    assert leases.status(ONE, 4.0).due_s == BEAT_S + GRACE_S
    assert leases.overdue(4.0 + LASTS_S) == ()
    assert leases.overdue(4.0 + LASTS_S + GRACE_S) == (ONE,)


def test_silence_pauses_and_then_ends(leases: KeyLeases) -> None:
    """It shows before anybody looked; a proof in between goes on where it stood."""
    leases.grant(ONE, TERMS, 0.0, HOST)
    found = leases.status(ONE, BEAT_S + GRACE_S)
    assert (found.good, found.rule) == (False, HEARTBEAT_MISSING)
    assert found.ends_s == LASTS_S - BEAT_S
    assert leases.overdue(BEAT_S + GRACE_S) == ()
    leases.prove(ONE, TERMS, 10.0, HOST)
    assert leases.status(ONE, 10.0).good
    over = leases.status(ONE, 10.0 + LASTS_S + GRACE_S)
    assert (over.good, over.ends_s) == (False, 0.0)


def test_the_shortest_heartbeat_counts(leases: KeyLeases) -> None:
    leases.grant(ONE, TERMS, 0.0, HOST)
    leases.grant(ONE, KeyLease(2 * LASTS_S, 2 * BEAT_S), 0.0, HOST)
    assert leases.next_end_s(0.0) == LASTS_S + GRACE_S
    assert leases.status(ONE, 0.0).due_s == BEAT_S + GRACE_S


def test_revoked_is_for_good(leases: KeyLeases) -> None:
    leases.grant(ONE, TERMS, 0.0, HOST)
    leases.grant(TWO, TERMS, 0.0, HOST)
    epochs: list[int] = []
    leases._record = lambda _who, _rule, epoch: epochs.append(epoch)
    leases.revoke(ONE, "ima-not-allowed")
    assert epochs == [1]
    for attempt in (
        lambda: leases.prove(ONE, TERMS, 1.0, HOST),
        lambda: leases.grant(ONE, TERMS, 1.0, HOST),
        lambda: leases.require_good(ONE),
    ):
        with pytest.raises(StaleError) as refusal:
            attempt()
        assert refusal.value.code == "lease-revoked"
        assert "ima-not-allowed" in str(refusal.value)
    assert leases.status(TWO, 1.0).good
    assert leases.overdue(99.0) == (TWO,)


def test_given_back_is_not_missed(leases: KeyLeases) -> None:
    leases.grant(ONE, TERMS, 0.0, HOST)
    leases.give_back(ONE)
    assert leases.overdue(99.0) == ()
    assert leases.status(ONE, 99.0).good
    assert leases.status(ONE, 1.0).due_s == 0  # which no holder takes for a lease


def test_a_broker_started_again_opens_a_lease_that_is_proven(
    leases: KeyLeases,
) -> None:
    leases.prove(ONE, TERMS, 10.0, HOST)
    assert leases.status(ONE, 10.0).due_s == BEAT_S + GRACE_S
    assert leases.overdue(10.0 + LASTS_S + GRACE_S) == (ONE,)


def test_evidence_of_another_host_does_not_keep_a_lease(leases: KeyLeases) -> None:
    leases.grant(ONE, TERMS, 0.0, HOST)
    for borrowed in (
        lambda: leases.prove(ONE, TERMS, 1.0, "tpm:two"),
        lambda: leases.grant(ONE, TERMS, 1.0, "tpm:two"),
    ):
        with pytest.raises(PolicyError) as refusal:
            borrowed()
        assert refusal.value.code == "attester-differs"
    assert leases.overdue(LASTS_S + GRACE_S) == (ONE,)
    leases.prove(ONE, TERMS, 1.0, HOST)  # control
    assert leases.overdue(LASTS_S + GRACE_S) == ()


def test_giving_back_does_not_change_the_host(leases: KeyLeases) -> None:
    leases.grant(ONE, TERMS, 0.0, HOST)
    leases.give_back(ONE)
    assert leases.host(ONE) == HOST
    for borrowed in (leases.prove, leases.grant):
        with pytest.raises(PolicyError) as refusal:
            borrowed(ONE, TERMS, 1.0, "tpm:two")
        assert refusal.value.code == "attester-differs"
    leases.prove(ONE, TERMS, 1.0, HOST)  # control
    assert leases.status(ONE, 1.0).due_s


def test_what_could_not_be_logged_is_logged_later(leases: KeyLeases) -> None:
    """A full disk: the instance is revoked at once, and whoever looks next tries again."""
    leases.grant(ONE, TERMS, 0.0, HOST)

    def full(*_: object) -> None:
        raise UnavailableError("the disk is full")

    leases._record = full
    with pytest.raises(UnavailableError):
        leases.revoke(ONE, "ima-not-allowed")
    assert leases.status(ONE, 1.0).rule == "ima-not-allowed"
    assert leases.open() == leases.overdue(LASTS_S + GRACE_S) == (ONE,)
    epochs: list[int] = []
    leases._record = lambda _who, _rule, epoch: epochs.append(epoch)
    leases.revoke(ONE, HEARTBEAT_MISSING)
    assert (epochs, leases.open()) == ([1], ())


def test_nobody_is_told_before_it_is_logged(leases: KeyLeases) -> None:
    leases.grant(ONE, TERMS, 0.0, HOST)
    told: list[bool] = []

    def log(*_: object) -> None:
        asking = threading.Thread(
            target=lambda: told.append(leases.status(ONE, 1.0).good)
        )
        asking.start()
        asking.join(0.2)
        assert told == []  # it waits for us
        waiting.append(asking)

    waiting: list[threading.Thread] = []
    leases._record = log
    leases.revoke(ONE, "ima-not-allowed")
    waiting[0].join(300)
    assert told == [False]
