"""Roles as services: what a service manager is told (systemd's protocol, man 3 sd_notify).

``NOTIFY_SOCKET`` names a socket that takes datagrams of lines: ``READY=1`` once, when the role
does what it is there for; ``STATUS=`` with a sentence about who is there and what is awaited,
since every user of the machine may read it; ``WATCHDOG=1`` twice in the time that ``WATCHDOG_USEC`` says. A sign of life says that this process
runs and that its threads get their turn. It does not say that work goes on: a role waits for
others as long as its job says, and what bounds that wait is the job's, not the manager's.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Final

from sealift.errors import visible
from sealift.events import Event, Sink
from sealift.train.job.sentences import sentence

# By role: from here on others can work with it.
READY: Final = frozenset(
    {
        "broker.ready",
        "group.met",
        "holder.ready",
        "meeting.attended",
        "meeting.listening",
        "orchestrator.listening",
        "release.collected",
        "serve.ready",
        "shares.listening",
    }
)
# What names no row, no measure and nothing else of an owner's table.
_SHOWN: Final = READY | {
    "accelerator.lost",
    "holder.missing",
    "job.complete",
    "job.gathered",
    "job.ready",
    "lease.lost",
    "meeting.signed",
    "relay.awaited",
    "relay.lost",
    "role.arrived",
    "serve.listening",
    "visit.again",
}
_MAX_STATUS_CHARS: Final = 200


def with_notices(
    sink: Sink, environment: MutableMapping[str, str] = os.environ
) -> Sink:
    """A sink that also tells the service manager, if there is one.

    Args:
        sink: Where events go, first.
        environment: Its names are taken out, so that no child speaks for this process.
    """
    place = environment.pop("NOTIFY_SOCKET", "")
    period_us = environment.pop("WATCHDOG_USEC", "")
    process = environment.pop("WATCHDOG_PID", "")
    if not place:
        return sink
    notified = _NotifySocket(place)
    if period_us.isdecimal() and int(period_us) and process in ("", str(os.getpid())):
        notified.watch(int(period_us) / 1e6)

    def tell(event: Event) -> None:
        sink(event)
        notified.hear(event)

    return tell


class _NotifySocket:
    def __init__(self, place: str) -> None:
        # A name that begins with @ is none of a file (man 7 unix, abstract).
        self._address = "\0" + place[1:] if place.startswith("@") else place
        self._ready = False

    def hear(self, event: Event) -> None:
        """Pass on that the role is ready, and the event's sentence as one line."""
        lines = []
        if event.kind in READY and not self._ready:
            self._ready = True
            lines.append("READY=1")
        if event.kind in _SHOWN:
            said = visible(" ".join(sentence(event.kind, event.fields).split()))
            lines.append(f"STATUS={said[:_MAX_STATUS_CHARS]}")
        self._send(lines)

    def watch(self, period_s: float) -> None:
        """Give a sign of life twice each period."""

        def signs() -> None:
            while True:
                self._send(["WATCHDOG=1"])
                threading.Event().wait(period_s / 2)

        threading.Thread(target=signs, name="watchdog", daemon=True).start()

    def _send(self, lines: list[str]) -> None:
        if not lines:
            return
        # A manager that is gone or slow ends no job.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
            way.setblocking(False)
            way.sendto("\n".join(lines).encode(), self._address)
