from __future__ import annotations

import threading

import pytest

from sealift.session.lifetime import Watchdog


def test_giving_up_takes_its_time() -> None:
    """A connection that does not even close holds nobody else up."""
    watchdog = Watchdog(0.02)
    stuck, second = threading.Event(), threading.Event()
    try:
        with watchdog.limit(stuck.wait), watchdog.limit(second.set):
            assert second.wait(300)
    finally:
        stuck.set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_giving_up_fails() -> None:
    """An error in it is that one's alone."""
    watchdog = Watchdog(0.02)
    given_up = threading.Event()

    def fail() -> None:
        raise OSError

    for give_up in (fail, given_up.set):
        with watchdog.limit(give_up):
            given_up.wait(0.2)
    assert given_up.is_set()


def test_whoever_leaves_in_time() -> None:
    """Control."""
    watchdog = Watchdog(0.02)
    given_up = threading.Event()
    with watchdog.limit(given_up.set):
        pass
    assert not given_up.wait(0.1)
