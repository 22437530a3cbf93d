"""The orchestrator's orders at the accelerator: read at once, worked on in turn.

A reader thread never waits for loading or work: it answers offers and starts loads as
they come, and leaves what takes the working thread in a queue. So the next cargo loads
while one group is worked on.
"""

from __future__ import annotations

import queue
import threading
from typing import Final

from sealift.errors import PeerError
from sealift.session.session import Session
from sealift.travel.accelerator.visits import Hosting
from sealift.travel.visit.messages import (
    FinishJob,
    Granted,
    OfferVisit,
    OutputKept,
    Withdrawn,
    WorkVisits,
    parse_message,
)

_ORDERS: Final = (OfferVisit, Granted, Withdrawn, WorkVisits, FinishJob, OutputKept)
Turn = WorkVisits | FinishJob | OutputKept


class Orders:
    """The orchestrator's messages, from ``start`` to the session's end.

    Args:
        control: The session with the orchestrator.
    """

    def __init__(self, control: Session) -> None:
        self._control = control
        self._turns: queue.SimpleQueue[Turn | BaseException] = queue.SimpleQueue()

    def start(self, hosting: Hosting) -> None:
        """Begin to read."""
        threading.Thread(
            target=self._read, args=(hosting,), name="orders", daemon=True
        ).start()

    def stop(self, error: BaseException) -> None:
        """Raise this in the working thread, when it asks for its next turn."""
        self._turns.put(error)

    def next_turn(self, timeout_s: float | None = None) -> Turn:
        """What the working thread does next; raises whatever stopped the job.

        Raises:
            PeerError: if the orchestrator is gone, or says nothing in time.
        """
        try:
            turn = self._turns.get(timeout=timeout_s)
        except queue.Empty:
            raise PeerError(
                f"the orchestrator said nothing for {timeout_s:g} s",
                code="peer-timeout",
            ) from None
        if isinstance(turn, BaseException):
            raise turn
        return turn

    def _read(self, hosting: Hosting) -> None:
        try:
            while True:
                order = parse_message(self._control.receive(None), _ORDERS)
                match order:
                    case OfferVisit():
                        hosting.offer(order)
                    case Granted():
                        hosting.grant(order.lease)
                    case Withdrawn():
                        hosting.withdraw(order.visit)
                    case WorkVisits() | FinishJob() | OutputKept():
                        self._turns.put(order)
        except BaseException as error:
            self.stop(error)
