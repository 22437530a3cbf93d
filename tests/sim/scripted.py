"""An accelerator and holders that only talk, for tests of the orchestrator's decisions.

The accelerator says what it may say next in an order that a seed decides; some visits
fail. Time passes when nobody has anything to say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TypeVar

import numpy as np

from sealift.channel.transport.transport import peer_timeout
from sealift.codec import encode
from sealift.crypto.sign import SigningKey
from sealift.errors import PeerError
from sealift.ids import Handle, Role, VisitId
from sealift.travel.visit.messages import (
    BufferOffered,
    Finished,
    FinishJob,
    Granted,
    JobFinished,
    JobReady,
    OfferVisit,
    Output,
    StartJob,
    VisitEnded,
    VisitLoaded,
    VisitPhase,
    Withdrawn,
    WorkVisits,
    message_name,
    parse_message,
)
from tests.sim.utterances import ANY
from tests.sim.visit_parts import FakeClock

T = TypeVar("T")
INSTANCE = SigningKey.generate().public_key


class ScriptedAccelerator:
    """The accelerator's end of the control session."""

    def __init__(
        self,
        clock: FakeClock,
        *,
        seed: int = 0,
        fails: float = 0.0,
        dies_after: int = -1,
        reasons: tuple[str, ...] = ("peer-timeout",),
        position: int = 0,
        buffer_bytes: int = 1,
    ) -> None:
        self.peer = SimpleNamespace(
            role=Role.ACCELERATOR, name="accelerator-0", instance=INSTANCE
        )
        self.said: list[object] = []
        self.offers: dict[VisitId, OfferVisit] = {}
        self.loaded: set[VisitId] = set()
        self.closed = False
        self._clock = clock
        self._choices = np.random.default_rng(seed)
        self._fails = fails
        self._reasons = reasons
        self._left = dies_after
        self._next: dict[VisitId, str] = {}
        self._answers: deque[object] = deque()
        self._ready = JobReady(
            "development", 3, position=position, buffer_bytes=buffer_bytes, why="so"
        )
        self.on_death: Callable[[], None] = lambda: None

    def send(self, raw: bytes) -> None:
        self._live()
        message = parse_message(raw, ANY)
        self.said.append(message)
        match message:
            case StartJob():
                self._answers.append(self._ready)
            case FinishJob():
                self._answers.append(Output("model.sealed", b"model", last=True))
                self._answers.append(JobFinished(b"manifest", b"signature"))
            case OfferVisit():
                self.offers[message.visit] = message
                self._next[message.visit] = "offer"
            case Granted():
                self._next[message.lease.body.visit] = "load"
            case Withdrawn():
                self._next[message.visit] = "withdraw"
            case WorkVisits():
                for visit in message.visits:
                    assert visit in self.loaded
                    self._next[visit] = "work"

    def receive(self, timeout_s: float | None = None) -> bytes:
        self._live()
        if self._answers:
            self._left -= 1
            return self._tell(self._answers.popleft())
        if not self._next:
            assert timeout_s is not None, "waits for ever for nothing"
            self._clock.advance(timeout_s)
            raise peer_timeout()
        self._left -= 1
        return self._tell(self._say(self._pick(self._speakers())))

    def _tell(self, message: object) -> bytes:
        self.said.append(message)
        return encode({"type": message_name(type(message)), "body": message})

    def close(self) -> None:
        self.closed = True

    def _live(self) -> None:
        if self._left == 0 or self.closed:
            on_death, self.on_death = self.on_death, lambda: None
            on_death()
            raise PeerError("the accelerator died", code="session-truncated")

    def _speakers(self) -> list[VisitId]:
        """Visits of which something may be said: groups are worked on in turn."""
        turn = min(
            (
                self.offers[v].position
                for v, step in self._next.items()
                if step == "work"
            ),
            default=0,
        )
        return [
            visit
            for visit, step in self._next.items()
            if step != "work" or self.offers[visit].position == turn
        ]

    def _pick(self, among: Sequence[T]) -> T:
        return among[int(self._choices.integers(len(among)))]

    def _say(self, visit: VisitId) -> object:
        step = self._next.pop(visit)
        fails = step != "phase" and self._choices.random() < self._fails
        if fails or step == "withdraw":
            reason = self._pick(self._reasons)
            return VisitEnded(visit=visit, outcome="failed", reason=reason, line="no")
        if step == "offer":
            return BufferOffered(visit, Handle.generate(), 1)
        if step == "load":
            self._next[visit] = "phase"
            return VisitPhase(visit, "load")
        if step == "phase":
            self.loaded.add(visit)
            return VisitLoaded(visit)
        return VisitEnded(visit=visit, outcome="verified")


class ScriptedHolder:
    """A holder's end of its session with the orchestrator: it takes leases."""

    def __init__(self, name: str) -> None:
        self.peer = SimpleNamespace(role=Role.HOLDER, name=name)
        self.leases: list[VisitId] = []
        self.gone = False
        self.told: object = None

    def send(self, raw: bytes) -> None:
        if self.gone:
            raise PeerError("the holder is gone", code="session-truncated")
        message = parse_message(raw, (Granted, Finished))
        if isinstance(message, Granted):
            self.leases.append(message.lease.body.visit)
        self.told = message

    def receive(self, timeout_s: float | None = None) -> bytes:
        raise PeerError("it has left", code="session-closed")

    def close(self) -> None:
        self.gone = True
