"""SIGTERM in a process that this room starts: leave through every ``finally``."""

from __future__ import annotations

import signal
import sys
from types import FrameType


def leave_on_sigterm() -> None:
    """Turn SIGTERM into ``SystemExit`` with the usual code."""
    signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
