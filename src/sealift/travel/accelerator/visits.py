"""Every visit that is in the accelerator at one time: who may come, who waits, who ends.

A reader thread takes the orchestrator's orders at once: it answers offers and starts
loads, a thread per visit, and queues what takes the working thread. So the next cargo
loads while one group is worked on, in the orchestrator's order. How many visits there
may be is enforced here, whatever the orchestrator asks for (rules H2, H8). Cargo that
nobody works on in time is scrubbed. Whatever must end the process is raised in the
thread that works.

Where visits meet their holders: circuits to the visit that waits for that holder.

Several visits may wait at one time. A circuit carries the name of its holder, which
the handshake then proves. A holder may be early: it hears of its lease before the
accelerator does, so its newest circuit is kept for a moment.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from sealift.data.schedule.visits import Stop
from sealift.errors import PeerError, PolicyError, SealiftError
from sealift.ids import Role, VisitId
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.agreement.statements import SignedStatement
from sealift.session.endpoint import Endpoint
from sealift.session.relay.circuit import Circuit
from sealift.session.relay.client import RelayClient
from sealift.session.session import Session, accept
from sealift.travel.accelerator.setup import HostSetup
from sealift.travel.accelerator.visit import HostedVisit, work_together
from sealift.travel.peers import (
    expect_data_owner,
    expect_holder,
    relay_name,
    teller_name,
)
from sealift.travel.settings import TravelSettings
from sealift.travel.visit.errors import job_failed
from sealift.travel.visit.lease import Lease, SignedLease
from sealift.travel.visit.messages import (
    Departed,
    Failed,
    FinishJob,
    Granted,
    OfferVisit,
    OutputKept,
    Said,
    VisitEnded,
    VisitLoaded,
    Withdrawn,
    WorkVisits,
    await_end,
    parse_message,
    receive_message,
    send_message,
)
from sealift.travel.visit.state import Clock

GONE_S: Final = 30.0  # for the visits of an owner that left to end
POLL_S: Final = 0.05
UNLOAD_S: Final = 3.0  # for loads to notice that they were revoked


EARLY_S: Final = 5.0  # that a holder may come before its visit waits for it
TELLER_S: Final = 5.0
Heard = Callable[[SignedStatement], None]


class HolderArrivals:
    """Brings visits and holders together.

    Args:
        relay: The connection to it; this object accepts every circuit of it.
        endpoint: Ours.
        agreement: Names the holders.
        clock: Seconds that also count while the machine sleeps.
        heard: Obeys what a data owner comes to say; raises if it counts for nothing.
    """

    def __init__(
        self,
        relay: RelayClient,
        endpoint: Endpoint,
        agreement: VerifiedAgreement,
        clock: Clock,
        *,
        heard: Heard,
    ) -> None:
        self._heard = heard
        # Who may come now to say something; each party once at a time.
        self._tellers = {teller_name(each.name) for each in agreement.agreement.parties}
        self._relay = relay
        self._endpoint = endpoint
        self._agreement = agreement
        self._clock = clock
        holders = agreement.agreement.holders
        self._names = {relay_name(Role.HOLDER, holder) for holder in holders}
        self._changed = threading.Condition()
        self._parked: dict[str, tuple[Circuit, float]] = {}
        self._over: PeerError | None = None
        self._router = threading.Thread(
            target=self._route, name="arrivals", daemon=True
        )

    def start(self) -> None:
        """Begin to accept."""
        self._router.start()

    def __call__(self, lease: Lease, timeout_s: float) -> Session:
        """A session with the lease's holder.

        Raises:
            PeerError: code ``holder-missing``, if it does not come in time.
        """
        deadline = self._clock() + timeout_s
        name = relay_name(Role.HOLDER, lease.holder)
        policy = expect_holder(self._agreement, lease)
        while (circuit := self._next(name, deadline)) is not None:
            left_s = max(0.001, deadline - self._clock())
            with suppress(SealiftError):  # somebody else, or a failed handshake
                return accept(circuit, self._endpoint, policy, left_s)
        raise PeerError(
            f"{lease.holder} did not connect within {timeout_s:g} s",
            code="holder-missing",
        )

    def _next(self, name: str, deadline: float) -> Circuit | None:
        with self._changed:
            while (left_s := deadline - self._clock()) > 0:
                circuit, since = self._parked.pop(name, (None, 0.0))
                if circuit is not None and self._clock() - since < EARLY_S:
                    return circuit
                if circuit is not None:
                    circuit.close()
                elif self._over is not None:
                    raise PeerError(str(self._over), code=self._over.code)
                else:
                    self._changed.wait(left_s)
        return None

    def _route(self) -> None:
        while True:
            try:
                circuit = self._relay.accept(None)
            except PeerError as error:
                with self._changed:
                    self._over = error
                    self._changed.notify_all()
                return
            self._park(circuit)

    def _listen(self, circuit: Circuit) -> None:
        """What an owner says that left, or ended the agreement: in a session of its own."""
        try:
            policy = expect_data_owner(self._agreement)
            with (
                suppress(SealiftError),
                accept(circuit, self._endpoint, policy, TELLER_S) as session,
            ):
                said = receive_message(session, Said, timeout_s=TELLER_S)
                answer: Said | Failed = said
                try:
                    self._heard(said.statement)
                except SealiftError as error:
                    answer = Failed(error.code, str(error))
                send_message(session, answer)
                await_end(session)
        finally:
            with self._changed:
                self._tellers.add(circuit.peer_name)

    def _park(self, circuit: Circuit) -> None:
        """Keep a holder's newest circuit; nobody else has business here but tellers."""
        with self._changed:
            teller = circuit.peer_name in self._tellers
            self._tellers.discard(circuit.peer_name)
        if teller:
            listen = partial(self._listen, circuit)
            threading.Thread(target=listen, name="teller", daemon=True).start()
            return
        if circuit.peer_name not in self._names:
            circuit.close()
            return
        with self._changed:
            former = self._parked.pop(circuit.peer_name, None)
            self._parked[circuit.peer_name] = (circuit, self._clock())
            self._changed.notify_all()
        if former is not None:
            former[0].close()


@dataclass(slots=True)
class _Hosted:
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


class HostedVisits:
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
        self._entries: dict[VisitId, _Hosted] = {}
        self._closed = False

    def offer(self, offer: OfferVisit) -> None:
        """Answer an offer with a buffer, or with the visit's end."""
        try:
            with self._lock:
                self._require_planned(offer)
                self._require_room(offer)
                visit = HostedVisit(offer, self._setup)
                self._entries[offer.visit] = _Hosted(visit)
        except SealiftError as error:
            line = str(error)
            refused = VisitEnded(
                visit=offer.visit, outcome="failed", reason=error.code, line=line
            )
            self._send(refused)
        else:
            self._send(visit.offered())

    def grant(self, signed: SignedLease) -> None:
        """Begin to load; nothing waits for it here."""
        with self._lock:
            entry = self._entries.get(signed.body.visit)
            if entry is None or entry.answered:
                return  # it has ended meanwhile, or was granted before
            entry.answered = True
            loader = entry.loader = threading.Thread(
                target=self._load, args=(entry, signed), name="load", daemon=True
            )
        loader.start()

    def withdraw(self, visit_id: VisitId) -> None:
        """An offer is not granted: its holder is gone."""
        with self._lock:
            entry = self._entries.get(visit_id)
            if entry is None or entry.answered:
                return
            entry.answered = True
        self._end(entry, entry.visit.withdraw())

    def work(self, order: WorkVisits) -> None:
        """Work on a group; visits of it that have ended meanwhile are left out.

        Raises:
            JobError: if the recipe failed; every visit of the group was told.
            UnavailableError: ``no-memory``, if its memory ran out; likewise.
            StaleError: if this group, or a later one, was worked on before.
            PolicyError: ``bad-group``, if these visits are not one group.
            IntegrityError: if a scrub did not hold.
        """
        entries = self._take(order)
        self._setup.rules.advance(order.position)
        fatal: VisitEnded | None = None
        visits = {entry.visit: entry for entry in entries}
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
            entries = [
                each
                for each in self._entries.values()
                if each.visit.offer.holder == owner
            ]
            for entry in entries:
                entry.visit.depart(failure)
                if not entry.working:
                    entry.taken.set()
        for entry in entries:
            _hang_up(entry)
            if entry.loader is None:
                entry.answered = True
                self._end(entry, entry.visit.fail(failure))
        self._await_gone(entries)
        self._send(Departed(owner, failure.code, failure.line))

    def _await_gone(self, entries: Sequence[_Hosted]) -> None:
        """Work that was about to begin is cut as well, so again until it is gone."""
        deadline = time.monotonic() + GONE_S
        while time.monotonic() < deadline:
            with self._lock:
                here = [
                    each
                    for each in entries
                    if self._entries.get(each.visit.offer.visit) is each
                ]
            if not here:
                return
            if any(each.working for each in here):
                self._setup.cut()
            time.sleep(POLL_S)

    def owners(self, order: WorkVisits) -> set[str]:
        """Whose rows a group is made of."""
        with self._lock:
            found = (self._entries.get(visit) for visit in order.visits)
            return {each.visit.offer.holder for each in found if each is not None}

    def abandon(self, reason: str) -> Abandoned:
        """Revoke and scrub everything; nothing can be offered afterwards.

        Raises:
            IntegrityError: if a scrub did not hold; the others were made all the same.
        """
        with self._lock:
            self._closed = True
            entries = list(self._entries.values())
            self._entries.clear()
        for entry in entries:
            entry.visit.revoke(reason)
            entry.taken.set()
        # No frame may be placed after the scrub, so loads end first, if they can.
        deadline = time.monotonic() + UNLOAD_S
        for entry in entries:
            _hang_up(entry)
        for entry in entries:
            if entry.loader is not None and entry.loader.ident is not None:
                entry.loader.join(max(0.0, deadline - time.monotonic()))
        return _scrub_all(entries, reason)

    def _require_room(self, offer: OfferVisit) -> None:
        offers = [entry.visit.offer for entry in self._entries.values()]
        groups = {each.position for each in offers} | {offer.position}
        beside = [each for each in offers if each.position == offer.position]
        mixed = self._travel.mixed and offer.purpose != "heldout"
        repeated = offer.resource in {each.resource for each in beside}
        if self._closed or len(groups) > self._travel.buffers:
            raise _no_room(f"{len(offers)} visits are already here")
        if beside and (repeated or not mixed):
            raise _no_room(
                "the job does not mix rows of several holders"
                if not mixed
                else "rows of this holder are already here"
            )

    def _require_planned(self, offer: OfferVisit) -> None:
        if (offer.position, offer.stop) not in self._planned:
            raise PolicyError(
                f"the job's plan has no such visit to {offer.resource}",
                why="the accelerator computes the plan from the agreement and the job",
                code="not-planned",
            )

    def _load(self, entry: _Hosted, signed: SignedLease) -> None:
        """The life of one visit's thread: load, then see that the cargo is not left."""
        try:
            ended = entry.visit.load(signed)
            if ended is None:
                entry.loaded = True
                self._send(VisitLoaded(entry.visit.offer.visit))
                ended = self._await_work(entry)
            if ended is not None:
                self._end(entry, ended)
        except BaseException as error:
            self._stop(error)

    def _await_work(self, entry: _Hosted) -> VisitEnded | None:
        """None once somebody works on it; else how it ended."""
        entry.taken.wait(self._idle_s)
        with self._lock:
            left = entry.visit.departed is not None and not self._closed
            if entry.working or (entry.taken.is_set() and not left):
                return None
            entry.taken.set()
            self._entries.pop(entry.visit.offer.visit, None)
        return entry.visit.fail(
            Failed(
                "never-worked",
                "its rows were loaded, but no work on them was requested",
            )
        )

    def _take(self, order: WorkVisits) -> list[_Hosted]:
        with self._lock:
            found = [self._entries.get(visit) for visit in dict.fromkeys(order.visits)]
            entries = [entry for entry in found if entry and not entry.visit.departed]
            offers = [entry.visit.offer for entry in entries]
            alike = {(each.position, each.purpose, each.epoch) for each in offers}
            foreign = any(each.position != order.position for each in offers)
            if len(alike) > 1 or foreign or not all(entry.loaded for entry in entries):
                raise PolicyError(
                    "these visits are not a complete batch of the plan",
                    why="they are not loaded, or belong to different batches",
                    code="bad-group",
                )
            for entry in entries:
                entry.working = True
                entry.taken.set()
        return entries

    def _end(self, entry: _Hosted, ended: VisitEnded) -> None:
        """Only what was scrubbed makes room for the next one."""
        offer = entry.visit.offer
        with self._lock:
            self._entries.pop(offer.visit, None)
            if self._closed:
                return
        self._send(self._note(offer, ended))


def _hang_up(entry: _Hosted) -> None:
    """On its holder, which may take its time to hear it."""
    threading.Thread(target=entry.visit.close_session, daemon=True).start()


def _scrub_all(entries: list[_Hosted], reason: str) -> Abandoned:
    told, broken = Abandoned(visits=len(entries)), None
    for entry in entries:
        try:
            scrubbed = entry.visit.abandon(reason)
        except SealiftError as error:
            told.verified, broken = False, error
            continue
        if scrubbed is not None:
            told.scrubbed_bytes += scrubbed.scrubbed_bytes
            told.verified = told.verified and scrubbed.verified
    if broken is not None:
        raise broken
    return told


def _no_room(why: str) -> PolicyError:
    return PolicyError(
        "the accelerator accepts no more visits at this time",
        why=why,
        code="too-many-buffers",
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

    def start(self, visits: HostedVisits) -> None:
        """Begin to read."""
        threading.Thread(
            target=self._read, args=(visits,), name="orders", daemon=True
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
                f"the orchestrator sent nothing for {timeout_s:g} s",
                code="peer-timeout",
            ) from None
        if isinstance(turn, BaseException):
            raise turn
        return turn

    def _read(self, visits: HostedVisits) -> None:
        try:
            while True:
                order = parse_message(self._control.receive(None), _ORDERS)
                match order:
                    case OfferVisit():
                        visits.offer(order)
                    case Granted():
                        visits.grant(order.lease)
                    case Withdrawn():
                        visits.withdraw(order.visit)
                    case WorkVisits() | FinishJob() | OutputKept():
                        self._turns.put(order)
        except BaseException as error:
            self.stop(error)
