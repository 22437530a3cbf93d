"""A holder stops as soon as its broker says so, and when it says nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from sealift.crypto.sign import SigningKey
from sealift.errors import PeerError, SealiftError, StaleError
from sealift.release.standing import Standing
from sealift.travel.leasewatch import MARGIN_S, LeaseWatch

WHO = SigningKey.generate().public_key
GOOD = Standing(instance=WHO, good=True, due_s=9.0)
UNLEASED = Standing(instance=WHO, good=True)
BAD = Standing(instance=WHO, good=False, rule="ima-not-allowed")
BEAT_S = 0.2


class OwnBroker:
    """Answers as it is told."""

    def __init__(self, say: Standing | SealiftError) -> None:
        self.say = say
        self.changed = threading.Event()

    def __call__(self, wait_s: float) -> Standing:
        self.changed.wait(wait_s)
        if isinstance(self.say, SealiftError):
            raise self.say
        return self.say

    def change(self, say: Standing | SealiftError) -> None:
        self.say = say
        self.changed.set()


def watch(broker: OwnBroker, stop: Callable[[], None]) -> LeaseWatch:
    return LeaseWatch(broker, BEAT_S, time.monotonic, stop)


def test_good_words_keep_the_rows_flowing() -> None:
    stopped = threading.Event()
    with watch(OwnBroker(GOOD), stopped.set) as lease:
        time.sleep(3 * BEAT_S)
        lease.require_good()
    assert not stopped.is_set()


def test_a_revoked_instance_is_not_begun_with() -> None:
    with pytest.raises(StaleError) as refusal, watch(OwnBroker(BAD), lambda: None):
        pytest.fail("rows would flow")
    assert refusal.value.code == "lease-revoked"
    assert "ima-not-allowed" in str(refusal.value)


@pytest.mark.parametrize(
    "word",
    [BAD, UNLEASED, PeerError("gone"), StaleError("no", code="challenge-replayed")],
)
def test_bad_news_and_silence_end_the_flow(word: Standing | SealiftError) -> None:
    broker, stopped = OwnBroker(GOOD), threading.Event()
    with watch(broker, stopped.set) as lease:
        broker.change(word)
        assert stopped.wait(BEAT_S + MARGIN_S + 5)
        with pytest.raises(StaleError):
            lease.require_good()


def test_without_a_lease_no_visit_begins() -> None:
    with pytest.raises(StaleError), watch(OwnBroker(UNLEASED), lambda: None):
        pytest.fail("rows would flow")


def test_a_lease_that_comes_in_time_is_waited_for() -> None:
    """The broker was started again, and the instance proves itself anew."""
    words = [UNLEASED, UNLEASED, GOOD]

    def ask(wait_s: float) -> Standing:
        return words.pop(0) if len(words) > 1 else GOOD

    with LeaseWatch(ask, BEAT_S, time.monotonic, lambda: None) as lease:
        lease.require_good()


def test_a_good_word_that_was_held_back_is_an_old_one() -> None:
    """The relay keeps an answer for longer than a heartbeat, and then lets it through."""
    clock = [0.0]

    def ask(wait_s: float) -> Standing:
        clock[0] += BEAT_S + MARGIN_S + 0.01
        return GOOD

    lease = LeaseWatch(ask, BEAT_S, lambda: clock[0], lambda: None)
    with pytest.raises(StaleError), lease:
        pytest.fail("rows would flow")


def test_after_the_visit_nothing_is_stopped() -> None:
    broker, stopped = OwnBroker(GOOD), threading.Event()
    with watch(broker, stopped.set):
        pass
    broker.change(BAD)
    assert not stopped.wait(3 * BEAT_S)
