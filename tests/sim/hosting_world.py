"""Several visits at one time: the visit world, with everything that hosts its visits.

The test plays the orchestrator; every load has its own thread, as in the accelerator.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import TypeVar

from sealift.data.schedule.visits import Stop
from sealift.ids import VisitId
from sealift.release.agreement import Purpose
from sealift.session.session import Session
from sealift.travel.accelerator.visits import HostedVisits
from sealift.travel.settings import TravelSettings
from sealift.travel.visit.lease import Lease
from sealift.travel.visit.messages import (
    BufferOffered,
    OfferVisit,
    VisitEnded,
    VisitLoaded,
    WorkVisits,
)
from tests.sim.hands import WAIT_S, Bring, honest
from tests.sim.outcome import Outcome
from tests.sim.visit_parts import GuardedPool, TappedTransport
from tests.sim.visit_world import VisitWorld
from tests.worlds.memorytransport import memory_pair

T = TypeVar("T", BufferOffered, VisitLoaded, VisitEnded)


@dataclass
class Guest:
    """A visit as the test sees it."""

    outcome: Outcome
    pool: GuardedPool
    holder: threading.Thread
    line: TappedTransport
    stalled: threading.Event = field(default_factory=threading.Event)

    @property
    def id(self) -> VisitId:
        return self.outcome.offer.visit


MakeHost = Callable[..., "HostingWorld"]


class Everything(Container[object]):
    """A plan that has every visit: for tests of what else may refuse it."""

    def __contains__(self, visit: object) -> bool:
        return True


EVERYTHING = Everything()


class HostingWorld:
    """Holders that come to one accelerator, several at one time."""

    def __init__(
        self,
        world: VisitWorld,
        *,
        buffers: int = 2,
        mixed: bool = False,
        idle_s: float = 30.0,
        planned: Container[tuple[int, Stop]] = EVERYTHING,
    ) -> None:
        self.world = world
        self.told: list[object] = []
        self.stopped: list[BaseException] = []
        self.guests: dict[VisitId, Guest] = {}
        self._lines: dict[VisitId, TappedTransport] = {}
        self._heard = threading.Condition()
        self.hosting = HostedVisits(
            world.setup(self._meet),
            TravelSettings(buffers=buffers, mixed=mixed),
            idle_s=idle_s,
            planned=planned,
            send=self._hear,
            note=lambda offer, ended: ended,
            stop=self.stopped.append,
        )

    def offer(
        self, owner: str, position: int, purpose: Purpose = "train"
    ) -> BufferOffered | VisitEnded:
        """Offer a visit; the accelerator's answer."""
        return self.answer(make_offer(self.world, owner, position, purpose))

    def answer(self, offer: OfferVisit) -> BufferOffered | VisitEnded:
        before = len(self.told)
        self.hosting.offer(offer)
        found = [
            each
            for each in self.told[before:]
            if isinstance(each, (BufferOffered, VisitEnded))
            and each.visit == offer.visit
        ]
        return found[0]

    def begin(self, owner: str, position: int, bring: Bring = honest) -> Guest:
        """Offer, grant, and let the holder come."""
        offer = make_offer(self.world, owner, position, "train")
        offered = self.answer(offer)
        assert isinstance(offered, BufferOffered), offered
        signed = self.world.sign(offer, offered)
        theirs, ours = memory_pair(self.world.faults)
        outcome = Outcome(offer, signed)
        stalled = threading.Event()
        line = TappedTransport(ours, self.world.clock, stalled, outcome.wire)
        self._lines[offer.visit] = line
        pool = self.world.pools[-1]
        holder = self.world.send_holder(theirs, outcome, bring, stalled)
        guest = self.guests[offer.visit] = Guest(outcome, pool, holder, line, stalled)
        self.hosting.grant(signed)
        return guest

    def load(self, owner: str, position: int) -> Guest:
        """A visit whose cargo waits for work."""
        guest = self.begin(owner, position)
        self.wait_for(VisitLoaded, guest.id)
        return guest

    def work(self, position: int, *guests: Guest) -> list[VisitEnded]:
        """Work on a group here; how its visits ended."""
        self.hosting.work(WorkVisits(position, tuple(each.id for each in guests)))
        return [self.wait_for(VisitEnded, each.id) for each in guests]

    def wait_for(self, kind: type[T], visit: VisitId) -> T:
        """What the accelerator tells of a visit."""
        deadline = time.monotonic() + WAIT_S
        with self._heard:
            while True:
                for each in self.told:
                    if isinstance(each, kind) and each.visit == visit:
                        return each
                left_s = deadline - time.monotonic()
                assert left_s > 0, (kind, self.told[-3:], self.stopped)
                self._heard.wait(left_s)

    def close(self) -> None:
        """End every holder."""
        self.hosting.abandon("test")
        for guest in self.guests.values():
            guest.line.close()
            guest.holder.join(WAIT_S)
            assert not guest.holder.is_alive()

    def _hear(self, message: object) -> None:
        with self._heard:
            self.told.append(message)
            self._heard.notify_all()

    def _meet(self, lease: Lease, left_s: float) -> Session:
        return self.world.accept(self._lines[lease.visit], lease, left_s)


def make_offer(
    world: VisitWorld, owner: str, position: int, purpose: Purpose
) -> OfferVisit:
    """An offer of all rows of an owner."""
    part = "heldout" if purpose == "heldout" else "train"
    resource = world.resource(f"{owner}-{part}")
    return OfferVisit(
        visit=VisitId.generate(),
        position=position,
        number=1,
        epoch=0,
        holder=owner,
        resource=resource.name,
        purpose=purpose,
        first_row=0,
        rows=resource.rows,
    )


def reason(answer: BufferOffered | VisitEnded) -> str:
    return answer.reason if isinstance(answer, VisitEnded) else ""
