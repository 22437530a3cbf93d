"""Events as JSON lines, for whoever reads a role's output: a screen, a file, a program."""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path
from typing import TextIO

from sealift.errors import UnavailableError
from sealift.events import Event, Sink
from sealift.release.visible import visible
from sealift.train.job.roleprocesses import EventLines


def add_events_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--events``."""
    parser.add_argument(
        "--events",
        metavar="FILE",
        default="",
        help="write events as JSON lines to FILE, or to stdout for '-'",
    )


def open_events(place: str) -> Sink:
    """A sink that writes to ``place``; people get short lines on stderr without one.

    Raises:
        UnavailableError: if the file cannot be written.
    """
    if not place:
        return _Talk(sys.stderr)
    if place == "-":
        return EventLines(sys.stdout)
    try:
        return EventLines(Path(place).open("a", encoding="utf-8"))
    except OSError as error:
        raise UnavailableError(
            f"cannot write {place}", why=error, code="disk"
        ) from None


class _Talk:
    """What a person at a terminal wants to know; frames and phases are too many."""

    _QUIET = frozenset({"holder.frame", "holder.phase", "visit.phase"})

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        if event.kind in self._QUIET:
            return
        shown = {name: value for name, value in event.fields.items() if value != ""}
        fields = " ".join(f"{name}={_short(value)}" for name, value in shown.items())
        with self._lock:
            line = visible(f"sealift: {event.kind} {fields}")
            print(line, file=self._stream, flush=True)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
