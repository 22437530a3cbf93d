"""SIGTERM and SIGINT: stop taking work, scrub, exit; a second one exits at once.

The first signal raises ``StopRequested`` in the main thread, so every ``finally`` on the
way out runs: pools are scrubbed, sessions closed. A second signal, or ``GRACE_S`` without
an end, runs what was handed to ``on_second_signal`` (the accelerator scrubs its pools)
and ends the process. That is a thread's business, woken from the signal itself, because
the main thread may sit in a long operation of torch, or in a recipe that swallows the
exception.

A child that follows its parent gets ``ORPHANED`` when that was killed. It scrubs and ends,
and tells nobody of an end: whoever was killed may come again. That is a signal of its own,
since the kernel sends it with the end of the thread that started the child: while others
still end, nothing else tells it from a parent that asks. If they go on, so does the child.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

from sealift.errors import Stopping

GRACE_S: Final = 7.0
STOPPING: Final = (signal.SIGTERM, signal.SIGINT)
ORPHANED: Final = signal.SIGUSR1
ENDING_S: Final = 5.0  # of all threads of a parent that was killed
FOLLOW: Final = "SEALIFT_FOLLOW_PARENT"
_PR_SET_PDEATHSIG: Final = 1
_LAST_ACTS: list[Callable[[], None]] = []
_SCRUBS: list[Callable[[], None]] = []  # those of them that an orphan does as well


class StopRequested(Stopping):
    """A signal asked this process to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class _State:
    """Of this process: one watching thread, and a signal that waits for a block's end."""

    parent = 0
    watched = False
    postponing = 0
    postponed = 0


def install_stop_signals() -> None:
    """Handle them as described above; safe to repeat."""
    for number in STOPPING:
        signal.signal(number, _first)
    signal.signal(ORPHANED, _later)
    if not _State.watched:
        _State.watched, _State.parent = True, os.getppid()
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threading.Thread(
            target=_watch, args=(reader,), name="stop signals", daemon=True
        ).start()


def on_second_signal(act: Callable[[], None], *, ends_children: bool = False) -> None:
    """Run ``act`` before a second signal ends the process; it must be quick.

    Args:
        act: What to do.
        ends_children: An orphan leaves it out: its children follow it, and would tell
            their peers of an end if it asked them.
    """
    _LAST_ACTS.append(act)
    if not ends_children:
        _SCRUBS.append(act)


@contextlib.contextmanager
def stop_postponed() -> Iterator[None]:
    """Let a first signal wait until the block ends: for starting what must be stopped."""
    _State.postponing += 1
    try:
        yield
    finally:
        _State.postponing -= 1
        if _State.postponed and not _State.postponing:
            number, _State.postponed = _State.postponed, 0
            raise StopRequested(number)


def follow_parent() -> bool:
    """End with the process that started us, if it asked for that; whether it did."""
    parent = os.environ.pop(FOLLOW, "")
    if not parent:
        return False
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ORPHANED, 0, 0, 0)
    if os.getppid() != int(parent):  # it ended before we asked
        os._exit(128 + ORPHANED)
    return True


def followed() -> dict[str, str]:
    """What to add to the environment of a child that is to end with this process."""
    return {FOLLOW: str(os.getpid())}


def _first(number: int, frame: FrameType | None) -> None:
    for each in STOPPING:
        signal.signal(each, _later)
    if _State.postponing:
        _State.postponed = number
        return
    raise StopRequested(number)


def _later(number: int, frame: FrameType | None) -> None:
    """The watching thread ends the process; nothing is left to do here."""


def _watch(reader: int) -> None:
    number = _next_signal(reader, None)
    while number == ORPHANED and not _has_lost_parent():
        number = _next_signal(reader, None)
    if number in STOPPING:
        _next_signal(reader, GRACE_S)
    try:
        for act in _SCRUBS if number == ORPHANED else _LAST_ACTS:
            act()
    finally:
        os._exit(128 + number)


def _has_lost_parent() -> bool:
    """Whether it is gone, and not a thread of it alone."""
    deadline = time.monotonic() + ENDING_S
    while os.getppid() == _State.parent:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True


def _next_signal(reader: int, timeout_s: float | None) -> int:
    """The number of the next signal of ours; 0 if none came in time."""
    waiting = select.poll()  # select() takes no descriptor above 1023
    waiting.register(reader, select.POLLIN)
    while waiting.poll(None if timeout_s is None else timeout_s * 1000):
        number = os.read(reader, 1)[0]
        if number in (*STOPPING, ORPHANED):
            return number
    return 0
