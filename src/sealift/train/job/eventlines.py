"""Events as the roles print them: one JSON object per line, read and written here.

What is no event is kept as a result: the orchestrator's last line is its summary.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from sealift.events import Event


@dataclass(frozen=True, slots=True)
class RoleEvent:
    """One event of one process.

    Attributes:
        process: Which process told it, such as ``holder-north``.
        t_s: Monotonic seconds of this machine.
        kind: Dotted name.
        fields: Everything else.
    """

    process: str
    t_s: float
    kind: str
    fields: Mapping[str, Any]

    def text(self, name: str) -> str:
        """A field as text, empty without it."""
        return str(self.fields.get(name, ""))


@dataclass(frozen=True, slots=True)
class RoleResult:
    """A process's result: the JSON object on stdout that is no event."""

    process: str
    content: Mapping[str, Any]


def parse_line(process: str, line: str) -> RoleEvent | RoleResult | None:
    """What a line of stdout is; None for anything that is not a JSON object."""
    try:
        plain = json.loads(line)
    except ValueError:
        return None
    if not isinstance(plain, dict):
        return None
    if "kind" not in plain or "t_s" not in plain:
        return RoleResult(process, plain)
    kind, t_s = str(plain.pop("kind")), float(plain.pop("t_s"))
    return RoleEvent(process, t_s, kind, plain)


class EventLines:
    """A sink that writes one JSON line per event, at once.

    Args:
        stream: Where to; stdout, or a file.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Write seconds on the monotonic clock, kind and fields."""
        line = {"t_s": round(time.monotonic(), 6), "kind": event.kind, **event.fields}
        with self._lock:
            self._stream.write(json.dumps(line) + "\n")
            self._stream.flush()
