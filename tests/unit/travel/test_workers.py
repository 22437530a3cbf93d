"""Every task runs at once; threads are used again, and end when told."""

from __future__ import annotations

import threading
import time

from sealift.travel.broker import Workers

NAME = "a worker under test"


def threads() -> int:
    return sum(thread.name == NAME for thread in threading.enumerate())


def wait_until(wanted: int) -> None:
    end = time.monotonic() + 300
    while threads() != wanted:
        assert time.monotonic() < end
        time.sleep(0.002)


def test_tasks_that_wait_for_each_other_run_at_once() -> None:
    workers = Workers(NAME)
    meeting = threading.Barrier(5)
    for _ in range(4):
        workers.run(lambda: meeting.wait(300) and None)
    meeting.wait(300)
    assert threads() <= 4
    workers.close()
    wait_until(0)


def test_a_thread_is_used_again() -> None:
    workers = Workers(NAME)
    seen: list[int] = []
    for _ in range(5):
        done = threading.Event()
        workers.run(lambda: seen.append(threading.get_ident()))
        workers.run(done.set)
        assert done.wait(300)
    assert threads() <= 2
    workers.close()
    wait_until(0)
    assert len(seen) == 5


def test_who_is_busy_when_it_is_closed_ends_after_its_task() -> None:
    workers = Workers(NAME)
    gate = threading.Event()
    workers.run(lambda: gate.wait(300) and None)
    workers.close()
    assert threads() == 1
    gate.set()
    wait_until(0)
