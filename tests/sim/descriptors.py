"""Which descriptors this process has open, and whether a step leaves more of them."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable

ROUNDS = 2
SETTLED_S = 1.0


def descriptors() -> set[int]:
    """Open descriptors of this process."""
    names = [int(name) for name in os.listdir("/proc/self/fd")]
    found = set()
    for number in names:
        with contextlib.suppress(OSError):  # what listed them is closed by now
            os.fstat(number)
            found.add(number)
    return found


def opened() -> set[tuple[int, int, int]]:
    """The same, each with what it is a descriptor of: a number may be given again."""
    found = set()
    for number in descriptors():
        with contextlib.suppress(OSError):  # another thread closed it
            of = os.fstat(number)
            found.add((number, of.st_dev, of.st_ino))
    return found


def kept_since(before: set[tuple[int, int, int]]) -> set[tuple[int, int, int]]:
    """What was not open before and stays open: a thread may still end, or dial again."""
    kept, deadline = opened() - before, time.monotonic() + SETTLED_S
    while kept and time.monotonic() < deadline:
        time.sleep(0.05)
        kept &= opened()
    return kept


def left_open(step: Callable[[], object]) -> int:
    """How many that were not are open after some rounds of `step`; garbage is collected first.

    The first round is not counted: what it opens for good (a cache, a library) is no
    leak. Threads may still be ending after the last. What an earlier test opened and
    something closes in the meantime is not counted either.
    """
    step()
    gc.collect()
    before = opened()
    for _ in range(ROUNDS):
        step()
    gc.collect()
    return len(kept_since(before))
