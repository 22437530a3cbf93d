"""Every visit that is in the accelerator at one time: who may come, who waits, who ends.

Loading goes on in a thread per visit; work is done by whoever calls ``work``, one group
at a time and in the orchestrator's order. How many visits there may be is enforced here,
whatever the orchestrator asks for (rules H2, H8). Cargo that nobody works on in time is
scrubbed. Whatever must end the process is raised in the thread that works.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Final

from sealift.data.schedule.visits import Stop
from sealift.errors import PolicyError, SealiftError
from sealift.ids import VisitId
from sealift.travel.accelerator.setup import HostSetup
from sealift.travel.accelerator.visit import HostedVisit, work_together
from sealift.travel.settings import TravelSettings
from sealift.travel.visit.errors import job_failed
from sealift.travel.visit.lease import SignedLease
from sealift.travel.visit.messages import (
    Departed,
    Failed,
    OfferVisit,
    VisitEnded,
    VisitLoaded,
    WorkVisits,
)

GONE_S: Final = 30.0  # for the visits of an owner that left to end
POLL_S: Final = 0.05
UNLOAD_S: Final = 3.0  # for loads to notice that they were revoked


@dataclass(slots=True)
class _Guest:
    visit: HostedVisit
    loader: threading.Thread | None = None
    answered: bool = False  # granted or withdrawn
    loaded: bool = False
    working: bool = False
    taken: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class Abandoned:
    """What was scrubbed when everything was given up."""

    visits: int = 0
    scrubbed_bytes: int = 0
    verified: bool = True


class Hosting:
    """The visits of one job.

    Args:
        setup: What every visit needs.
        travel: How many there may be.
        idle_s: How long loaded cargo may wait to be worked on.
        planned: Every visit of the job, with the position of its group.
        send: Tells the orchestrator something; from any thread.
        note: Takes note of a visit's end; returns what the orchestrator may see of it.
        stop: Called with what must end the process, from the thread it happened in.
    """

    def __init__(
        self,
        setup: HostSetup,
        travel: TravelSettings,
        *,
        idle_s: float,
        planned: Container[tuple[int, Stop]],
        send: Callable[[object], None],
        note: Callable[[OfferVisit, VisitEnded], VisitEnded],
        stop: Callable[[BaseException], None],
    ) -> None:
        self._setup = setup
        self._travel = travel
        self._idle_s = idle_s
        self._planned = planned
        self._send = send
        self._note = note
        self._stop = stop
        self._lock = threading.Lock()
        self._guests: dict[VisitId, _Guest] = {}
        self._closed = False

    def offer(self, offer: OfferVisit) -> None:
        """Answer an offer with a buffer, or with the visit's end."""
        try:
            with self._lock:
                self._require_planned(offer)
                self._require_room(offer)
                visit = HostedVisit(offer, self._setup)
                self._guests[offer.visit] = _Guest(visit)
        except SealiftError as error:
            self._send(_refused(offer, error))
            return
        self._send(visit.offered())

    def grant(self, signed: SignedLease) -> None:
        """Begin to load; nothing waits for it here."""
        with self._lock:
            guest = self._guests.get(signed.lease.visit)
            if guest is None or guest.answered:
                return  # it has ended meanwhile, or was granted before
            guest.answered = True
            loader = guest.loader = threading.Thread(
                target=self._load, args=(guest, signed), name="load", daemon=True
            )
        loader.start()

    def withdraw(self, visit_id: VisitId) -> None:
        """An offer is not granted: its holder is gone."""
        with self._lock:
            guest = self._guests.get(visit_id)
            if guest is None or guest.answered:
                return
            guest.answered = True
        self._end(guest, guest.visit.withdraw())

    def work(self, order: WorkVisits) -> None:
        """Work on a group; visits of it that have ended meanwhile are left out.

        Raises:
            JobError: if the recipe failed; every visit of the group was told.
            UnavailableError: ``no-memory``, if its memory ran out; likewise.
            StaleError: if this group, or a later one, was worked on before.
            PolicyError: ``bad-group``, if these visits are not one group.
            IntegrityError: if a scrub did not hold.
        """
        guests = self._take(order)
        self._setup.rules.advance(order.position)
        fatal: VisitEnded | None = None
        visits = {guest.visit: guest for guest in guests}
        for visit, ended in work_together(list(visits), self._setup.work):
            self._end(visits[visit], ended)
            fatal = ended if ended.fatal else fatal
        if fatal is not None:  # told already; no order can follow
            raise job_failed(fatal.reason, fatal.line)

    def drop(self, owner: str, error: SealiftError) -> None:
        """An owner's keys have ended: its visits end, and their rows are overwritten.

        Returns once they are; other owners' work goes on.

        Raises:
            IntegrityError: if a scrub did not hold.
        """
        failure = Failed(error.code, str(error))
        with self._lock:
            guests = [
                each
                for each in self._guests.values()
                if each.visit.offer.holder == owner
            ]
            for guest in guests:
                guest.visit.depart(failure)
                if not guest.working:
                    guest.taken.set()
        for guest in guests:
            _hang_up(guest)
            if guest.loader is None:
                guest.answered = True
                self._end(guest, guest.visit.fail(failure))
        self._await_gone(guests)
        self._send(Departed(owner, failure.code, failure.line))

    def _await_gone(self, guests: Sequence[_Guest]) -> None:
        """Work that was about to begin is cut as well, so again until it is gone."""
        deadline = time.monotonic() + GONE_S
        while time.monotonic() < deadline:
            with self._lock:
                here = [
                    each
                    for each in guests
                    if self._guests.get(each.visit.offer.visit) is each
                ]
            if not here:
                return
            if any(each.working for each in here):
                self._setup.cut()
            time.sleep(POLL_S)

    def owners(self, order: WorkVisits) -> set[str]:
        """Whose rows a group is made of."""
        with self._lock:
            found = (self._guests.get(visit) for visit in order.visits)
            return {each.visit.offer.holder for each in found if each is not None}

    def abandon(self, reason: str) -> Abandoned:
        """Revoke and scrub everything; nothing can be offered afterwards.

        Raises:
            IntegrityError: if a scrub did not hold; the others were made all the same.
        """
        with self._lock:
            self._closed = True
            guests = list(self._guests.values())
            self._guests.clear()
        for guest in guests:
            guest.visit.revoke(reason)
            guest.taken.set()
        _await_loaders(guests)
        return _scrub_all(guests, reason)

    def _require_room(self, offer: OfferVisit) -> None:
        offers = [guest.visit.offer for guest in self._guests.values()]
        groups = {each.position for each in offers} | {offer.position}
        beside = [each for each in offers if each.position == offer.position]
        mixed = self._travel.mixed and offer.purpose != "heldout"
        repeated = offer.resource in {each.resource for each in beside}
        if self._closed or len(groups) > self._travel.buffers:
            raise _no_room(f"{len(offers)} are here")
        if beside and (repeated or not mixed):
            raise _no_room("cargo is not mixed" if not mixed else "it is here already")

    def _require_planned(self, offer: OfferVisit) -> None:
        if (offer.position, _stop(offer)) not in self._planned:
            raise PolicyError(
                f"the job's plan has no such visit to {offer.resource}",
                why="it follows from agreement and job, and the accelerator makes it",
                code="not-planned",
            )

    def _load(self, guest: _Guest, signed: SignedLease) -> None:
        """The life of one visit's thread: load, then see that the cargo is not left."""
        try:
            ended = guest.visit.load(signed)
            if ended is None:
                guest.loaded = True
                self._send(VisitLoaded(guest.visit.offer.visit))
                ended = self._await_work(guest)
            if ended is not None:
                self._end(guest, ended)
        except BaseException as error:
            self._stop(error)

    def _await_work(self, guest: _Guest) -> VisitEnded | None:
        """None once somebody works on it; else how it ended."""
        guest.taken.wait(self._idle_s)
        with self._lock:
            left = guest.visit.departed is not None and not self._closed
            if guest.working or (guest.taken.is_set() and not left):
                return None
            guest.taken.set()
            self._guests.pop(guest.visit.offer.visit, None)
        return guest.visit.fail(
            Failed("never-worked", "its cargo was loaded, and nobody asked for work")
        )

    def _take(self, order: WorkVisits) -> list[_Guest]:
        with self._lock:
            found = [self._guests.get(visit) for visit in dict.fromkeys(order.visits)]
            guests = [guest for guest in found if guest and not guest.visit.departed]
            offers = [guest.visit.offer for guest in guests]
            alike = {(each.position, each.purpose, each.epoch) for each in offers}
            foreign = any(each.position != order.position for each in offers)
            if len(alike) > 1 or foreign or not all(guest.loaded for guest in guests):
                raise PolicyError(
                    "these visits are no group that could be worked on",
                    why="they are not loaded, or of different groups",
                    code="bad-group",
                )
            for guest in guests:
                guest.working = True
                guest.taken.set()
        return guests

    def _end(self, guest: _Guest, ended: VisitEnded) -> None:
        """Only what was scrubbed makes room for the next one."""
        offer = guest.visit.offer
        with self._lock:
            self._guests.pop(offer.visit, None)
            if self._closed:
                return
        self._send(self._note(offer, ended))


def _await_loaders(guests: list[_Guest]) -> None:
    """No frame may be placed after the scrub, so loads end first, if they can."""
    deadline = time.monotonic() + UNLOAD_S
    for guest in guests:
        _hang_up(guest)
    for guest in guests:
        if guest.loader is not None and guest.loader.ident is not None:
            guest.loader.join(max(0.0, deadline - time.monotonic()))


def _hang_up(guest: _Guest) -> None:
    """On its holder, which may take its time to hear it."""
    threading.Thread(target=guest.visit.close_session, daemon=True).start()


def _scrub_all(guests: list[_Guest], reason: str) -> Abandoned:
    told, broken = Abandoned(visits=len(guests)), None
    for guest in guests:
        try:
            scrubbed = guest.visit.abandon(reason)
        except SealiftError as error:
            told.verified, broken = False, error
            continue
        if scrubbed is not None:
            told.scrubbed_bytes += scrubbed.scrubbed_bytes
            told.verified = told.verified and scrubbed.verified
    if broken is not None:
        raise broken
    return told


def _stop(offer: OfferVisit) -> Stop:
    return Stop(
        offer.epoch,
        offer.holder,
        offer.resource,
        offer.purpose,
        offer.first_row,
        offer.rows,
    )


def _refused(offer: OfferVisit, error: SealiftError) -> VisitEnded:
    return VisitEnded(
        visit=offer.visit, outcome="failed", reason=error.code, line=str(error)
    )


def _no_room(why: str) -> PolicyError:
    return PolicyError("no more visits at this time", why=why, code="too-many-buffers")
