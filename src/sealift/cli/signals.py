"""SIGTERM and SIGINT: stop taking work, scrub, exit; a second one exits at once.

The first signal raises ``StopRequested`` in the main thread, so every ``finally`` on the
way out runs: pools are scrubbed, sessions closed. The second one runs what was handed
to ``on_second_signal`` (the accelerator scrubs its pools) and ends the process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType

_LAST_ACTS: list[Callable[[], None]] = []


class StopRequested(BaseException):
    """A signal asked this process to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def install_stop_signals() -> None:
    """Handle SIGTERM and SIGINT as described above."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _first)


def on_second_signal(act: Callable[[], None]) -> None:
    """Run ``act`` before a second signal ends the process; it must be quick."""
    _LAST_ACTS.append(act)


def _first(number: int, frame: FrameType | None) -> None:
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, _second)
    raise StopRequested(number)


def _second(number: int, frame: FrameType | None) -> None:
    for act in _LAST_ACTS:
        act()
    os._exit(128 + number)
