"""Where a role's events go: lines for a person, or JSON for a program.

A person hears what is waited for, too: three seconds after the last line, then ever more
rarely in a file, or with a count that goes on in place on a terminal.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TextIO

from sealift.errors import UnavailableError, for_screen, visible
from sealift.events import Event, Sink
from sealift.train.job.roleprocesses import EventLines
from sealift.train.job.sentences import sentence
from sealift.train.job.service import with_notices
from sealift.travel.peers import call_by_person

SILENCE_S: Final = 3.0
_TICK_S: Final = 1.0
_CLEAR: Final = "\x1b[K"  # to the end of the line


def open_events(place: str, people: Mapping[str, str] | None = None) -> Sink:
    """A sink that writes to ``place``; people get short lines on stderr without one.

    A service manager that started this process is told, too (``service``).

    Args:
        place: A file, or ``-`` for standard output.
        people: What people call processes, by their names (``rank_names``).

    Raises:
        UnavailableError: if the file cannot be written.
    """
    if not place:
        return with_notices(TalkativeSink(Talk(sys.stderr), people))
    if place == "-":
        return with_notices(EventLines(sys.stdout))
    try:
        return with_notices(EventLines(Path(place).open("a", encoding="utf-8")))
    except OSError as error:
        raise UnavailableError(
            f"the file {place} cannot be written", why=error, code="disk"
        ) from None


class Talk:
    """Lines for people, and what is waited for when there are none.

    Args:
        stream: Where lines go.
        silence_s: How long nothing may be said.
    """

    def __init__(self, stream: TextIO, *, silence_s: float = SILENCE_S) -> None:
        self._stream = stream
        self._silence_s = silence_s
        self._in_place = stream.isatty()
        self._changed = threading.Condition()
        self._awaited, self._since_s = "", 0.0
        self._due_s, self._pause_s = math.inf, silence_s
        self._thread: threading.Thread | None = None

    def say(self, line: str) -> None:
        """One line; text of others in it has no room to look like a line of its own."""
        line = " ".join(line.split())
        with self._changed:
            clear = _CLEAR if self._in_place else ""
            shown = for_screen(visible(f"sealift: {line}"), self._stream)
            self._write(f"{clear}{shown}\n")
            self._rest(self._silence_s)

    def wait_for(self, what: str) -> None:
        """What is waited for from now on; empty for nothing."""
        with self._changed:
            if what != self._awaited:
                self._awaited, self._since_s = what, time.monotonic()
                self._rest(self._silence_s)
                self._changed.notify()
            if what and self._thread is None:
                self._thread = threading.Thread(target=self._mind, daemon=True)
                self._thread.start()

    def _mind(self) -> None:
        with suppress(OSError, ValueError), self._changed:  # nobody reads any more
            while True:
                left_s = self._due_s - time.monotonic()
                if not self._awaited or left_s > 0:
                    self._changed.wait(left_s if self._awaited else None)
                    continue
                self._remind()

    def _remind(self) -> None:
        waited = f"{time.monotonic() - self._since_s:.0f} s"
        line = visible(f"sealift: waiting for {self._awaited} ({waited})")
        self._write(f"{line}{_CLEAR}\r" if self._in_place else f"{line}\n")
        self._rest(_TICK_S if self._in_place else 2 * self._pause_s)

    def _rest(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._due_s = time.monotonic() + pause_s

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


_BEGINNING: Final = "the start of the job"
_AWAITED: Final[Mapping[str, str]] = {
    "broker.ready": "an accelerator that asks for keys",
    "checkpoint.committed": "the accelerator",
    "group.met": "the first round",
    "holder.ready": "a visit",
    "holder.receipt": "the next visit",
    "job.complete": "",
    "job.gathered": "the accelerator's preparation",
    "job.ready": "the first visit",
    "local.slice": "the next slice",
    "release.collected": "the start of the job",
    "release.granted": "the accelerator",
    "relay.awaited": "the orchestrator",
    "relay.lost": "the orchestrator",
    "round.ended": "the next round",
    "serve.listening": "the loading of the model",
    "serve.ready": "",
    "shares.listening": "the accelerator",
    "visit.again": "the next attempt",
    "visit.ended": "the next visit",
    "visit.offered": "the visit to {holder}",
    "visit.path": "the end of the visit",
}
"""By event: what the role waits for next. Other events change nothing."""


class TalkativeSink:
    """Prints a job's events as sentences.

    Args:
        talk: Prints lines, and what is waited for.
        people: What people call processes, by their names (``rank_names``).
    """

    def __init__(self, talk: Talk, people: Mapping[str, str] | None = None) -> None:
        self._talk, self._people = talk, people or {}
        self._missing: list[str] = []
        talk.wait_for(_BEGINNING)

    def __call__(self, event: Event) -> None:
        """Print the event's sentence, if it has one, and note what is waited for next."""
        event = self.for_people(event)
        if line := sentence(event.kind, event.fields):
            self._talk.say(line)
        self.expect(event)

    def for_people(self, event: Event) -> Event:
        """The same event, with processes as people call them."""
        if not self._people:
            return event
        fields = {
            key: call_by_person(value, self._people)
            if isinstance(value, str)
            else value
            for key, value in event.fields.items()
        }
        if event.kind == "role.arrived" and fields["name"] != event.fields["name"]:
            fields["role"] = ""  # the name says it
        return Event(event.kind, fields)

    def expect(self, event: Event) -> None:
        """Note what the role waits for after this event."""
        if (awaited := self._awaited(event.kind, event.fields)) is not None:
            self._talk.wait_for(awaited)

    def _awaited(self, kind: str, fields: Mapping[str, Any]) -> str | None:
        if kind == "orchestrator.listening":
            self._missing = str(fields["awaits"]).split(", ")
        elif kind == "role.arrived" and fields["name"] in self._missing:
            self._missing.remove(str(fields["name"]))
        else:
            what = _AWAITED.get(kind)
            return what and what.format_map(fields)
        return ", ".join(self._missing) or _BEGINNING
