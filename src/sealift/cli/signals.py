"""SIGTERM and SIGINT: stop taking work, scrub, exit; a second one exits at once.

The first signal raises ``StopRequested`` in the main thread, so every ``finally`` on the
way out runs: pools are scrubbed, sessions closed. The second one ends the process; what
it leaves in memory is the kernel's, which hands out zeroed pages only.
"""

from __future__ import annotations

import os
import signal
from types import FrameType


class StopRequested(BaseException):
    """A signal asked this process to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def install_stop_signals() -> None:
    """Handle SIGTERM and SIGINT as described above."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _first)


def _first(number: int, frame: FrameType | None) -> None:
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, _second)
    raise StopRequested(number)


def _second(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)
