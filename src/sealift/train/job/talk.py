"""Where a role's events go: lines for a person, or JSON for a program."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TextIO

from sealift.errors import UnavailableError, visible
from sealift.events import Event, Sink
from sealift.train.job.roleprocesses import EventLines


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
