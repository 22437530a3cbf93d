"""A holder waits while its broker has no good word, and stops once there is none left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sealift.crypto.sign import SigningKey
from sealift.errors import AuthenticationError, PeerError, SealiftError, StaleError
from sealift.release.agreement import KeyLease
from sealift.release.broker.messages import HEARTBEAT_MISSING, LeaseStatus
from sealift.travel.holder.watches import MARGIN_S, LeaseWatch

WHO = SigningKey.generate().public_key
GOOD = LeaseStatus(instance=WHO, good=True, due_s=9.0, ends_s=9.0)
UNLEASED = LeaseStatus(instance=WHO, good=True)
SILENT = LeaseStatus(instance=WHO, good=False, rule=HEARTBEAT_MISSING, ends_s=5.0)
BAD = LeaseStatus(instance=WHO, good=False, rule="ima-not-allowed")
BEAT_S = 0.2
LEASE = KeyLease(lease_s=2 * BEAT_S, heartbeat_s=BEAT_S)
LONG = KeyLease(lease_s=60.0, heartbeat_s=BEAT_S)


class OwnBroker:
    """Answers as it is told."""

    def __init__(self, say: LeaseStatus | SealiftError) -> None:
        self.say = say
        self.changed = threading.Event()

    def __call__(self, wait_s: float) -> LeaseStatus:
        self.changed.wait(wait_s)
        if isinstance(self.say, SealiftError):
            raise self.say
        return self.say

    def change(self, say: LeaseStatus | SealiftError) -> None:
        self.say = say
        self.changed.set()


@contextmanager
def watching(
    broker: Callable[[float], LeaseStatus], lease: KeyLease = LEASE
) -> Iterator[LeaseWatch]:
    made = LeaseWatch(broker, lease, time.monotonic)
    made.start()
    try:
        yield made
    finally:
        made.close()


def test_good_words_keep_the_rows_flowing() -> None:
    stopped = threading.Event()
    broker = OwnBroker(GOOD)
    with watching(broker, LONG) as lease, lease.visit(stopped.set) as require:
        time.sleep(3 * BEAT_S)
        require()
    assert not stopped.is_set()


def test_a_revoked_instance_is_not_begun_with() -> None:
    with (
        watching(OwnBroker(BAD)) as lease,
        pytest.raises(StaleError) as refusal,
        lease.visit(lambda: None),
    ):
        pytest.fail("rows would flow")
    assert refusal.value.code == "lease-revoked"
    assert "ima-not-allowed" in str(refusal.value)


@pytest.mark.parametrize(
    "word", [BAD, UNLEASED, SILENT, PeerError("gone"), AuthenticationError()]
)
def test_bad_news_and_silence_end_the_flow(word: LeaseStatus | SealiftError) -> None:
    broker, stopped = OwnBroker(GOOD), threading.Event()
    with watching(broker) as lease, lease.visit(stopped.set) as require:
        broker.change(word)
        assert stopped.wait(LEASE.lease_s + MARGIN_S + 5)
        with pytest.raises(StaleError):
            require()


@pytest.mark.parametrize("word", [UNLEASED, SILENT, PeerError("gone")])
def test_the_next_frame_waits_for_a_good_word(word: LeaseStatus | SealiftError) -> None:
    """Silence pauses: within its lease the instance goes on where it stood."""
    broker, stopped = OwnBroker(GOOD), threading.Event()
    sent = threading.Event()
    with watching(broker, LONG) as lease, lease.visit(stopped.set) as require:
        broker.change(word)
        time.sleep(BEAT_S + MARGIN_S + 0.1)
        frame = threading.Thread(target=lambda: (require(), sent.set()))
        frame.start()
        assert not sent.wait(BEAT_S)
        broker.change(GOOD)
        assert sent.wait(300)
        frame.join(300)
    assert not stopped.is_set()


def test_without_a_lease_no_visit_begins() -> None:
    with (
        watching(OwnBroker(UNLEASED), LONG) as lease,
        pytest.raises(StaleError),
        lease.visit(lambda: None),
    ):
        pytest.fail("rows would flow")


def test_a_lease_that_comes_in_time_is_waited_for() -> None:
    """The broker was started again, and the instance proves itself anew."""
    words = [UNLEASED, UNLEASED, GOOD]

    def ask(wait_s: float) -> LeaseStatus:
        time.sleep(wait_s)
        return words.pop(0) if len(words) > 1 else GOOD

    with watching(ask) as lease, lease.visit(lambda: None) as require:
        require()


def test_a_good_word_that_was_held_back_is_an_old_one() -> None:
    """The relay keeps an answer for longer than a heartbeat, and then lets it through."""

    def ask(wait_s: float) -> LeaseStatus:
        time.sleep(LEASE.lease_s + MARGIN_S + 0.1)
        return GOOD

    with (
        watching(ask) as lease,
        pytest.raises(StaleError),
        lease.visit(lambda: None),
    ):
        pytest.fail("rows would flow")


def test_after_the_visit_nothing_is_stopped() -> None:
    broker, stopped = OwnBroker(GOOD), threading.Event()
    with watching(broker) as lease:
        with lease.visit(stopped.set):
            pass
        broker.change(BAD)
        assert not stopped.wait(3 * BEAT_S)
