"""A watch goes on after whatever the system refuses, and never ends alone."""

from __future__ import annotations

import errno
import os
import threading
from collections import deque

import pytest

from sealift.errors import UnavailableError
from sealift.events import Event
from sealift.travel.holder import watches as watcher
from sealift.travel.holder.watches import Watcher

REFUSED = [
    OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    OSError(errno.EIO, os.strerror(errno.EIO)),
    UnavailableError("the disk is full", code="disk-full"),
    MemoryError(),
]


class Looking:
    """Raises what it is given, one at each look, and then looks well."""

    def __init__(self, *errors: BaseException) -> None:
        self._errors = deque(errors)
        self.looked = threading.Semaphore(0)

    def __call__(self) -> float:
        self.looked.release()
        if self._errors:
            raise self._errors.popleft()
        return 0.001


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "RETRY_S", 0.001)


def run(look: Looking, looks: int) -> tuple[list[Event], list[BaseException], bool]:
    events: list[Event] = []
    broken: list[BaseException] = []
    watch = Watcher("leases", look, broken=broken.append, sink=events.append)
    watch.start()
    seen = all(look.looked.acquire(timeout=300) for _ in range(looks))
    watch.stop(10)
    return events, broken, seen


@pytest.mark.parametrize("error", REFUSED, ids=lambda each: type(each).__name__)
def test_it_goes_on_and_says_so_once(error: BaseException) -> None:
    events, broken, seen = run(Looking(error, error, error), 6)
    assert seen
    assert broken == []
    kinds = [event.kind for event in events]
    assert kinds == ["watch.failing", "watch.mended"]
    assert events[0].fields["watch"] == "leases"


def test_a_bug_is_told_to_whoever_relies_on_it() -> None:
    bug = ZeroDivisionError("ours")
    _, broken, _ = run(Looking(bug), 1)
    assert broken == [bug]


def test_an_event_that_cannot_be_written_ends_nothing() -> None:
    def full(event: Event) -> None:
        raise OSError(errno.ENOSPC, "full")

    look = Looking(*REFUSED)
    watch = Watcher("leases", look, broken=pytest.fail, sink=full)
    watch.start()
    assert all(look.looked.acquire(timeout=300) for _ in range(len(REFUSED) + 2))
    watch.stop(10)


def test_a_watch_may_end_itself() -> None:
    watch = Watcher("quorum", lambda: None, broken=pytest.fail, sink=lambda event: None)
    watch.start()
    watch.stop(10)
    assert watch.over


def test_stopped_it_looks_no_more() -> None:
    look = Looking()
    watch = Watcher("leases", look, broken=pytest.fail, sink=lambda event: None)
    watch.start()
    assert look.looked.acquire(timeout=300)
    watch.stop(10)
    while look.looked.acquire(blocking=False):
        pass
    assert not look.looked.acquire(timeout=0.05)
