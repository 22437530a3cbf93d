"""One accelerator's way through the plan: who loads, who waits, what is worked on next.

The orchestrator keeps a window of ``buffers`` groups: while one is worked on, the next
one loads. Groups are worked on in the plan's order, whatever loads first. A visit that
fails before its cargo was loaded may be tried again, after a pause that grows; one that
fails later never is, since the recipe may have seen its rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sealift.channel.transport.transport import peer_timeout
from sealift.data.schedule.visits import Group, Stop
from sealift.errors import PeerError
from sealift.ids import Role, VisitId
from sealift.session.session import Session
from sealift.travel.orchestrator.leases import Granting, Offered
from sealift.travel.orchestrator.roster import Roster
from sealift.travel.settings import JobSettings
from sealift.travel.visit.errors import NEVER_LATER, job_failed, told_errors
from sealift.travel.visit.messages import (
    BufferOffered,
    Departed,
    Failed,
    FailedError,
    Output,
    VisitEnded,
    VisitLoaded,
    VisitPhase,
    WorkVisits,
    parse_message,
    send_message,
)
from sealift.travel.visit.state import Clock

ANSWER_WAIT_S: Final = 60.0
POLL_S: Final = 0.05  # how often somebody who is waited for is looked for
SHORTEST_PAUSE_S: Final = 0.1  # before a holder is asked again
TIMEOUT: Final = peer_timeout().code
_TOLD: Final = (
    BufferOffered, VisitPhase, VisitLoaded, VisitEnded, Departed, Failed, Output,
)  # fmt: skip


class Stage(StrEnum):
    """Where one stop of the plan stands."""

    DUE = "due"
    OFFERED = "offered"
    LOADING = "loading"
    LOADED = "loaded"
    WORKING = "working"
    OVER = "over"


@dataclass(slots=True)
class Stay:
    """A stop that is being attended to.

    Attributes:
        deadline: Until when its holder may be missing.
        attempts: Visits that were offered for it.
        again_s: Until then the holder's session that failed last is not asked again.
        cause: Why the last one failed.
    """

    stop: Stop
    deadline: float
    stage: Stage = Stage.DUE
    attempts: int = 0
    offered: Offered | None = None
    again_s: float = 0.0
    cause: Failed | None = None

    @property
    def under_way(self) -> bool:
        """Whether the accelerator has something of it."""
        return self.awaited or self.stage is Stage.LOADED

    @property
    def awaited(self) -> bool:
        """Whether it is the accelerator's turn, not ours."""
        return self.stage in (Stage.OFFERED, Stage.LOADING, Stage.WORKING)

    def may_ask(self, holder: Session, now_s: float) -> bool:
        """Whether the pause is over; whoever came back is asked at once."""
        again = self.offered is not None and self.offered.holder is holder
        return not again or now_s >= self.again_s


@dataclass(slots=True)
class Convoy:
    """A group of the plan and how its stops stand."""

    group: Group
    stays: list[Stay]

    @property
    def loading(self) -> bool:
        """Whether some cargo is still to come."""
        return any(
            stay.stage in (Stage.DUE, Stage.OFFERED, Stage.LOADING)
            for stay in self.stays
        )

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        return all(stay.stage is Stage.OVER for stay in self.stays)

    @property
    def loaded(self) -> list[Stay]:
        """Stops whose cargo waits for work."""
        return [stay for stay in self.stays if stay.stage is Stage.LOADED]


@dataclass(slots=True)
class Tally:
    """What became of every stop of the plan, by (position, resource).

    Attributes:
        causes: Why visits to a resource were skipped, the last time, by its name.
    """

    verified: set[tuple[int, str]] = field(default_factory=set)
    skipped: set[tuple[int, str]] = field(default_factory=set)
    causes: dict[str, Failed] = field(default_factory=dict)

    def forget_from(self, position: int) -> None:
        """These groups are done again."""
        for found in (self.verified, self.skipped):
            found -= {each for each in found if each[0] >= position}


class Voyage:
    """Attends to every stop of some groups with one accelerator.

    Args:
        groups: What is left of the plan.
        settings: Of the job.
        accelerator: The session with it.
        roster: Who is here.
        granting: Makes offers and leases, and tells what happens.
        tally: Gets what became of every stop.
        clock: Monotonic seconds.
        keep: Takes what the accelerator sealed for a party.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        settings: JobSettings,
        *,
        accelerator: Session,
        roster: Roster,
        granting: Granting,
        tally: Tally,
        clock: Clock,
        keep: Callable[[Output], None],
    ) -> None:
        self._left = deque(groups)
        self._settings = settings
        self._accelerator = accelerator
        self._roster = roster
        self._granting = granting
        self._tally = tally
        self._clock = clock
        self._keep = keep
        self._convoys: list[Convoy] = []
        self._stays: dict[VisitId, tuple[Convoy, Stay]] = {}
        self._heard = clock()
        self._departed: dict[str, Failed] = {}

    def run(self) -> None:
        """Until every stop is over.

        Raises:
            PeerError: if the accelerator is gone, or silent for too long.
            JobError: if the recipe failed.
            UnavailableError: ``no-memory``, if its memory ran out.
        """
        while self._go_on():
            self._listen()

    def lose(self, line: str) -> None:
        """The accelerator is gone, and every visit with it."""
        for convoy, stay in list(self._stays.values()):
            if stay.offered is not None and stay.under_way:
                ended = VisitEnded(
                    visit=stay.offered.offer.visit,
                    outcome="failed",
                    reason="accelerator-lost",
                    line=line,
                )
                self._granting.tell_end(stay.offered.offer, ended)
                self._over(convoy, stay)

    def _go_on(self) -> bool:
        try:
            return self._advance()
        except PeerError:
            self._hear_out()
            raise

    def _hear_out(self) -> None:
        """What it said before it left, which may be why."""
        while True:
            try:
                raw = self._accelerator.receive(0.0)
            except PeerError:
                return
            self._take(parse_message(raw, _TOLD))

    def _advance(self) -> bool:
        """Whatever can be done now; whether anything is left."""
        self._convoys = [convoy for convoy in self._convoys if not convoy.over]
        self._begin_next()
        for convoy in self._convoys:
            for stay in convoy.stays:
                if stay.stage is Stage.DUE and not _busy(convoy, stay):
                    self._attend(convoy, stay)
        self._order_work()
        return bool(self._convoys or self._left)

    def _begin_next(self) -> None:
        loading = any(convoy.loading for convoy in self._convoys)
        full = len(self._convoys) >= self._settings.travel.buffers
        if self._left and not loading and not full:
            group = self._left.popleft()
            deadline = self._clock() + self._settings.run.wait_s
            stays = [Stay(stop, deadline) for stop in group.stops]
            self._convoys.append(Convoy(group, stays))

    def _attend(self, convoy: Convoy, stay: Stay) -> None:
        """Offer a visit if the holder is here; skip it if nobody waits any longer."""
        holder = self._roster.find(Role.HOLDER, stay.stop.holder)
        if stay.stop.holder in self._departed:
            self._skip(convoy, stay, self._departed[stay.stop.holder])
        elif holder is None:
            if not self._waits or self._clock() >= stay.deadline:
                self._skip(convoy, stay, stay.cause or _missing(stay.stop.holder))
        elif stay.may_ask(holder, self._clock()):
            self._offer(convoy, stay, holder)

    def _offer(self, convoy: Convoy, stay: Stay, holder: Session) -> None:
        stay.attempts += 1
        stay.stage = Stage.OFFERED
        offer = self._granting.offer(stay.stop, convoy.group.position)
        stay.offered = Offered(offer, holder)
        self._stays[offer.visit] = (convoy, stay)
        self._heard = self._clock()
        send_message(self._accelerator, offer)

    def _order_work(self) -> None:
        """In the plan's order, and ahead of time: the accelerator takes one at a time.

        So nothing is asked and answered between the end of one group and the next.
        """
        for convoy in self._convoys:
            if convoy.loading:
                return
            if convoy.loaded:
                self._order(convoy)

    def _order(self, convoy: Convoy) -> None:
        visits = []
        for stay in convoy.loaded:
            assert stay.offered is not None, "what is loaded was offered"
            stay.stage = Stage.WORKING
            visits.append(stay.offered.offer.visit)
        self._heard = self._clock()
        order = WorkVisits(convoy.group.position, tuple(visits))
        send_message(self._accelerator, order)

    def _listen(self) -> None:
        """Take the next thing that the accelerator says, or find out that it is late."""
        if all(convoy.over for convoy in self._convoys):
            return  # all of it was skipped
        stays = [stay for convoy in self._convoys for stay in convoy.stays]
        awaited = any(stay.awaited for stay in stays)
        if not awaited:  # cargo that waits for a holder beside it is not late
            self._heard = self._clock()
        due = any(stay.stage is Stage.DUE for stay in stays)
        left_s = max(0.001, self._limit_s - (self._clock() - self._heard))
        try:
            raw = self._accelerator.receive(min(POLL_S, left_s) if due else left_s)
        except PeerError as error:
            late = self._clock() - self._heard >= self._limit_s
            if error.code != TIMEOUT or late:
                raise
            return
        self._heard = self._clock()
        self._take(parse_message(raw, _TOLD))

    def _take(self, told: object) -> None:
        if isinstance(told, Failed):
            with told_errors():
                raise FailedError(told)
        if isinstance(told, Output):
            self._keep(told)
            return
        if isinstance(told, Departed):
            self._depart(told)
            return
        assert isinstance(told, (BufferOffered, VisitPhase, VisitLoaded, VisitEnded))
        convoy, stay = self._stays.get(told.visit, (None, None))
        if convoy is None or stay is None or stay.offered is None:
            return  # of a visit that is over
        match told:
            case BufferOffered():
                stay.stage = Stage.LOADING
                self._granting.grant(stay.offered, told, self._accelerator)
            case VisitPhase():
                self._granting.tell_phase(stay.offered.offer, told.phase)
            case VisitLoaded():
                stay.stage = Stage.LOADED
            case VisitEnded():
                self._granting.tell_end(stay.offered.offer, told)
                self._end(convoy, stay, told)

    def _depart(self, told: Departed) -> None:
        """An owner left: the run goes on without it, or ends, as the job says."""
        self._granting.tell_departed(told)
        if self._waits:
            raise job_failed(told.code, told.line)
        self._departed[told.owner] = Failed(told.code, told.line)

    def _end(self, convoy: Convoy, stay: Stay, ended: VisitEnded) -> None:
        if ended.fatal:
            raise job_failed(ended.reason, ended.line)
        loading = stay.stage in (Stage.OFFERED, Stage.LOADING)
        self._stays.pop(ended.visit)
        stay.cause = Failed(ended.reason, ended.line)
        if ended.outcome == "verified":
            self._tally.verified.add((convoy.group.position, stay.stop.resource))
            stay.stage = Stage.OVER
        elif loading and self._may_try_again(stay, ended.reason):
            self._pause(stay, stay.cause)
        else:
            self._skip(convoy, stay, stay.cause)

    def _pause(self, stay: Stay, cause: Failed) -> None:
        """Twice as long each time, half of ``wait_s`` in the end, so all of it together."""
        left = self._settings.travel.attempts - stay.attempts
        pause_s = max(SHORTEST_PAUSE_S, self._settings.run.wait_s / 2.0**left)
        stay.again_s = self._clock() + pause_s
        stay.stage = Stage.DUE
        self._granting.tell_again(stay.stop, cause, pause_s)

    def _may_try_again(self, stay: Stay, reason: str) -> bool:
        left = stay.attempts < self._settings.travel.attempts
        return self._waits and left and reason not in NEVER_LATER

    def _skip(self, convoy: Convoy, stay: Stay, cause: Failed) -> None:
        self._tally.skipped.add((convoy.group.position, stay.stop.resource))
        self._tally.causes[stay.stop.resource] = cause
        self._granting.tell_skipped(stay.stop, cause)
        stay.stage = Stage.OVER

    def _over(self, convoy: Convoy, stay: Stay) -> None:
        stay.stage = Stage.OVER
        if stay.offered is not None:
            self._stays.pop(stay.offered.offer.visit, None)

    @property
    def _waits(self) -> bool:
        return self._settings.travel.on_missing == "wait"

    @property
    def _limit_s(self) -> float:
        """How long the accelerator may say nothing while it has something to do."""
        run = self._settings.run
        return run.lease_s + run.work_s + ANSWER_WAIT_S


def _busy(convoy: Convoy, stay: Stay) -> bool:
    """Whether this holder brings other cargo of the group first."""
    return any(
        other.stage in (Stage.OFFERED, Stage.LOADING)
        and other.stop.holder == stay.stop.holder
        for other in convoy.stays
    )


def _missing(holder: str) -> Failed:
    missing = PeerError(f"holder {holder} is not here", code="peer-missing")
    return Failed(missing.code, str(missing))
