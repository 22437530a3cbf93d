"""A holder on a slow line: each of its frames takes ``PACE_S``.

``python -m sealift.lab.demo.slow`` runs it as a process of its own. The demo's rows are few;
with slow lines a cargo is under way when something happens to the accelerator's host.
"""

from __future__ import annotations

import sys
import time
from typing import Final

from sealift.events import Sink
from sealift.ids import Buffer
from sealift.lab.demo.holding import attend
from sealift.lab.demo.passing import PassingSession
from sealift.session.session import Session
from sealift.travel.attendance import Between
from sealift.travel.lease import SignedLease

PACE_S: Final = 0.25


class SlowSession(PassingSession):
    """Everything goes through, frames one after another."""

    def send_raw(self, frame: Buffer) -> None:
        """A visit frame, after a while."""
        time.sleep(PACE_S)
        super().send_raw(frame)


def slow_line(_sink: Sink) -> Between:
    """What makes every session of a holder slow."""

    def between(session: Session, signed: SignedLease) -> Session:
        return SlowSession(session, signed.lease)

    return between


if __name__ == "__main__":
    sys.exit(attend("sealift.lab.demo.slow", slow_line))
