from __future__ import annotations

import threading

import pytest

from sealift.session.impatience import Impatience


def test_giving_up_takes_its_time() -> None:
    """A connection that does not even close holds nobody else up."""
    impatience = Impatience(0.02)
    stuck, second = threading.Event(), threading.Event()
    try:
        with impatience.limit(stuck.wait), impatience.limit(second.set):
            assert second.wait(300)
    finally:
        stuck.set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_giving_up_fails() -> None:
    """An error in it is that one's alone."""
    impatience = Impatience(0.02)
    given_up = threading.Event()

    def fail() -> None:
        raise OSError

    for give_up in (fail, given_up.set):
        with impatience.limit(give_up):
            given_up.wait(0.2)
    assert given_up.is_set()


def test_whoever_leaves_in_time() -> None:
    """Control."""
    impatience = Impatience(0.02)
    given_up = threading.Event()
    with impatience.limit(given_up.set):
        pass
    assert not given_up.wait(0.1)
