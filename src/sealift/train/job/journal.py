"""What the roles of a job told on this machine, in order: for whoever looks at the run.

One file beside the job's, ``JOB.journal.jsonl``, to which every role of the job here adds a
line for each event. It holds what events hold: no key, no row. What cannot be written is
lost, and ends nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sealift.events import Event, Sink

SUFFIX: Final = ".journal.jsonl"
BEGAN: Final = "role.began"
ENDED: Final = "role.ended"
FINISHED: Final = "finished"
STOPPED: Final = "stopped"
MAX_READ_BYTES: Final = 8 << 20  # at one time
_OFTEN: Final = frozenset({"holder.frame", "visit.path", "lease.heard"})


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One line.

    Attributes:
        at_s: Seconds since 1970.
        by: The role that told it: ``orchestrator``, ``holder``.
    """

    at_s: float
    by: str
    kind: str
    fields: Mapping[str, Any]


class Journal:
    """A sink that passes events on, and writes them down.

    Args:
        path: The file; made if it is not there.
        by: The role that tells.
        sink: Gets every event.
        clock: Seconds since 1970.
    """

    def __init__(
        self, path: Path, by: str, sink: Sink, clock: Callable[[], float]
    ) -> None:
        self._by, self._sink, self._clock = by, sink, clock
        self._ended = False
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
            self._descriptor = os.open(path, flags, 0o600)
        except OSError:
            self._descriptor = -1

    def begin(self, **fields: Any) -> None:
        """The role begins."""
        self._write(Event(BEGAN, fields))

    def end(self, outcome: str, line: str = "") -> None:
        """The role ends, once: ``finished``, or an error's stable name and its line."""
        if self._ended:
            return
        self._ended = True
        self._write(Event(ENDED, {"outcome": outcome, "line": line}))

    def __call__(self, event: Event) -> None:
        """Pass it on, and write it down if a person may want to know of it."""
        self._sink(event)
        if event.kind not in _OFTEN:
            self._write(event)

    def _write(self, event: Event) -> None:
        line = {
            "at_s": round(self._clock(), 3),
            "by": self._by,
            "kind": event.kind,
            "fields": dict(event.fields),
        }
        with suppress(OSError):  # in one piece: other roles write, too
            os.write(self._descriptor, json.dumps(line).encode() + b"\n")


def journal_of(folder: Path, job: str) -> Path:
    """Where a job's roles write."""
    return folder / f"{job}{SUFFIX}"


class JournalReader:
    """Reads on where it stopped.

    Args:
        path: The file, which may come later.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode, self._offset = 0, 0

    def read(self) -> list[JournalEntry]:
        """What was told since; nothing if it cannot be read."""
        found: list[JournalEntry] = []
        while more := self._read_piece():
            found += more
        return found

    def _read_piece(self) -> list[JournalEntry]:
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._inode or found.st_size < self._offset:
                    self._inode = found.st_ino
                    self._offset = 0
                file.seek(self._offset)
                raw = file.read(MAX_READ_BYTES)
        except OSError:
            return []
        whole = raw.rfind(b"\n") + 1  # the last line may be half written
        self._offset += whole
        return list(_parsed(raw[:whole]))


def _parsed(raw: bytes) -> Iterator[JournalEntry]:
    for line in raw.splitlines():
        try:
            plain = json.loads(line)
            fields = plain["fields"]
            at_s, by, kind = float(plain["at_s"]), plain["by"], plain["kind"]
        except (ValueError, TypeError, KeyError):
            continue  # cut off by a full disk
        if isinstance(by, str) and isinstance(kind, str) and isinstance(fields, dict):
            yield JournalEntry(at_s, by, kind, fields)
