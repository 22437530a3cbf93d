"""One accelerator's way through the plan: who loads, who waits, what is worked on next.

The orchestrator keeps a window of ``buffers`` groups: while one is worked on, the next
one loads. Groups are worked on in the plan's order, whatever loads first. A visit that
fails before its cargo was loaded may be tried again, after a pause that grows; one that
fails later never is, since the recipe may have seen its rows.

What became of the stops of a plan, whichever accelerator attended to them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Final

from sealift.channel.transport.transport import peer_timeout
from sealift.crypto.sign import PublicKey
from sealift.data.schedule.visits import Stop, VisitBatch
from sealift.errors import PeerError, require_value
from sealift.events import Sink, emit, metric_fields
from sealift.ids import Role, VisitId
from sealift.session.session import Session
from sealift.travel.orchestrator.sessions import LiveSessions
from sealift.travel.settings import JobSettings
from sealift.travel.visit.errors import NEVER_LATER, job_failed, named_errors
from sealift.travel.visit.lease import SignedLease
from sealift.travel.visit.messages import (
    BufferOffered,
    Departed,
    Failed,
    FailedError,
    Granted,
    OfferVisit,
    Output,
    VisitEnded,
    VisitLoaded,
    VisitPhase,
    Withdrawn,
    WorkVisits,
    parse_message,
    send_message,
)
from sealift.travel.visit.state import Clock

ANSWER_WAIT_S: Final = 60.0
NO_MORE: Final = frozenset({"too-many-visits", "privacy-budget-spent"})  # to an owner
POLL_S: Final = 0.05  # how often somebody who is waited for is looked for
SHORTEST_PAUSE_S: Final = 0.1  # before a holder is asked again
OfVisit = BufferOffered | VisitPhase | VisitLoaded | VisitEnded
_TOLD: Final = (*OfVisit.__args__, Departed, Failed, Output)
Grant = Callable[[OfferVisit, BufferOffered, PublicKey], SignedLease]


LASTING: Final = ("no-such-resource", "content-mismatch")


@dataclass(slots=True)
class StopTally:
    """What became of every stop of the plan, by (position, resource).

    Attributes:
        causes: Why visits to a resource were skipped, the last time, by its name.
        over: Resources of which nothing more will come: no key, another file than
            agreed, an owner who left.
        offered: Visits that were offered.
    """

    verified: set[tuple[int, str]] = field(default_factory=set)
    skipped: set[tuple[int, str]] = field(default_factory=set)
    causes: dict[str, Failed] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)
    offered: int = 0

    def forget_from(self, position: int) -> None:
        """These groups are done again."""
        for found in (self.verified, self.skipped):
            found -= {each for each in found if each[0] >= position}

    def skip(self, position: int, resource: str, cause: Failed, *, left: bool) -> None:
        """Nobody attends to this stop any more."""
        self.skipped.add((position, resource))
        self.causes[resource] = cause
        if left or cause.code in LASTING:
            self.over.add(resource)

    def may_count(self, position: int, resource: str) -> bool:
        """Whether a stop was attended to, or may be."""
        place = (position, resource)
        return place in self.verified or (
            place not in self.skipped and resource not in self.over
        )


class Stage(StrEnum):
    """Where one stop of the plan stands."""

    DUE = "due"
    OFFERED = "offered"
    LOADING = "loading"
    LOADED = "loaded"
    WORKING = "working"
    OVER = "over"


_COMING: Final = (Stage.DUE, Stage.OFFERED, Stage.LOADING)
# The accelerator's turn, and not ours.
_AWAITED: Final = (Stage.OFFERED, Stage.LOADING, Stage.WORKING)


@dataclass(slots=True)
class StopState:
    """A stop of the plan that is being attended to.

    Attributes:
        deadline: Until when its holder may be missing.
        attempts: Visits that were offered for it.
        offered: The last visit, and the holder's session that it is for.
        again_s: Until then the holder's session that failed last is not asked again.
        cause: Why the last one failed.
    """

    stop: Stop
    position: int
    deadline: float
    stage: Stage = Stage.DUE
    attempts: int = 0
    offered: tuple[OfferVisit, Session] | None = None
    again_s: float = 0.0
    cause: Failed | None = None

    def may_ask(self, holder: Session, now_s: float) -> bool:
        """Whether the pause is over; whoever came back is asked at once."""
        again = self.offered is not None and self.offered[1] is holder
        return not again or now_s >= self.again_s


class PlanRun:
    """Attends to every stop of some groups with one accelerator.

    Args:
        groups: What is left of the plan.
        settings: Of the job.
        accelerator: The session with it.
        sessions: Who is here; a holder that is gone leaves it.
        grant: Signs the lease of an offer, for a buffer and an instance.
        tally: Gets what became of every stop.
        clock: Monotonic seconds.
        keep: Takes what the accelerator sealed for a party.
        hopes: Asked after a stop was skipped: whether to go on.
        sink: Where progress goes.
    """

    def __init__(
        self,
        groups: Sequence[VisitBatch],
        settings: JobSettings,
        *,
        accelerator: Session,
        sessions: LiveSessions,
        grant: Grant,
        tally: StopTally,
        clock: Clock,
        keep: Callable[[Output], None],
        hopes: Callable[[], bool],
        sink: Sink,
    ) -> None:
        self._left = deque(groups)
        self._settings = settings
        self._accelerator = accelerator
        self._sessions = sessions
        self._grant = grant
        self._tally = tally
        self._clock = clock
        self._keep = keep
        self._hopes = hopes
        self._sink = sink
        self._window: list[list[StopState]] = []  # the groups that are under way
        self._visits: dict[VisitId, StopState] = {}
        self._heard = clock()
        self._departed: dict[str, Failed] = {}
        self._waits = settings.travel.on_missing == "wait"
        self._wait_s = settings.run.wait_s
        # How long the accelerator may say nothing while it has something to do.
        self._limit_s = settings.run.lease_s + settings.run.work_s + ANSWER_WAIT_S

    def run(self) -> None:
        """Until every stop is over.

        Raises:
            PeerError: if the accelerator is gone, or silent for too long.
            JobError: if the recipe failed.
            UnavailableError: ``no-memory``, if its memory ran out.
        """
        while self._advance():
            self._listen()

    def lose(self, line: str) -> None:
        """The accelerator is gone, and every visit with it."""
        for visit, state in self._visits.items():
            under_way = state.stage in (*_AWAITED, Stage.LOADED)
            if under_way and state.offered is not None:
                ended = VisitEnded(
                    visit=visit, outcome="failed", reason="accelerator-lost", line=line
                )
                self._tell_end(state.offered[0], ended)
                state.stage = Stage.OVER

    def _advance(self) -> bool:
        """Whatever can be done now; whether anything is left."""
        try:
            self._go_on()
        except PeerError:
            while True:  # what it said before it left may be why
                try:
                    raw = self._accelerator.receive(0.0)
                except PeerError:
                    break
                self._take(parse_message(raw, _TOLD))
            raise
        return bool(self._window or self._left)

    def _go_on(self) -> None:
        self._window = [each for each in self._window if not _is_over(each)]
        loading = any(each.stage in _COMING for group in self._window for each in group)
        full = len(self._window) >= self._settings.travel.buffers
        if self._left and not loading and not full:
            group, due = self._left.popleft(), self._clock() + self._wait_s
            states = [StopState(stop, group.position, due) for stop in group.stops]
            self._window.append(states)
        for states in self._window:
            for each in states:
                if each.stage is Stage.DUE and not _is_busy(each.stop.holder, states):
                    self._attend(each)
        self._order_work()

    def _attend(self, state: StopState) -> None:
        """Offer a visit if the holder is here; skip it if nobody waits any longer."""
        name = state.stop.holder
        holder = self._sessions.find(Role.HOLDER, name)
        if name in self._departed:
            self._skip(state, self._departed[name])
        elif holder is None:
            if not self._waits or self._clock() >= state.deadline:
                missing = PeerError(
                    f"the holder {name} is not connected", code="peer-missing"
                )
                cause = Failed(missing.code, str(missing))
                self._skip(state, state.cause or cause)
        elif state.may_ask(holder, self._clock()):
            self._offer(state, holder)

    def _offer(self, state: StopState, holder: Session) -> None:
        self._tally.offered += 1
        offer = OfferVisit(
            visit=VisitId.generate(),
            position=state.position,
            number=self._tally.offered,
            **asdict(state.stop),
        )
        emit(self._sink, "visit.offered", **_names(offer), rows=offer.rows)
        state.attempts += 1
        state.stage, state.offered = Stage.OFFERED, (offer, holder)
        self._visits[offer.visit] = state
        self._say(offer)

    def _order_work(self) -> None:
        """In the plan's order, and ahead of time: the accelerator takes one at a time.

        So nothing is asked and answered between the end of one group and the next.
        """
        for group in self._window:
            if any(each.stage in _COMING for each in group):
                return
            loaded = [each for each in group if each.stage is Stage.LOADED]
            visits = tuple(each.offered[0].visit for each in loaded if each.offered)
            for each in loaded:
                each.stage = Stage.WORKING
            if visits:
                self._say(WorkVisits(loaded[0].position, visits))

    def _say(self, message: object) -> None:
        self._heard = self._clock()
        send_message(self._accelerator, message)

    def _listen(self) -> None:
        """Take the next thing that the accelerator says, or find out that it is late."""
        if all(map(_is_over, self._window)):
            return  # all of it was skipped
        stages = {each.stage for group in self._window for each in group}
        awaited = not stages.isdisjoint(_AWAITED)
        if not awaited:  # cargo that waits for a holder beside it is not late
            self._heard = self._clock()
        left_s = max(0.001, self._limit_s - (self._clock() - self._heard))
        try:
            raw = self._accelerator.receive(
                min(POLL_S, left_s) if Stage.DUE in stages else left_s
            )
        except PeerError as error:
            late = self._clock() - self._heard >= self._limit_s
            if error.code != peer_timeout().code or late:
                raise
            return
        self._heard = self._clock()
        self._take(parse_message(raw, _TOLD))

    def _take(self, message: object) -> None:
        if isinstance(message, Failed):
            with named_errors():
                raise FailedError(message)
        elif isinstance(message, Output):
            self._keep(message)
        elif isinstance(message, Departed):
            self._depart(message)
        elif not isinstance(message, OfVisit):
            raise AssertionError(f"nobody takes a {type(message).__name__}")
        elif message.visit in self._visits:  # else it is of a visit that is over
            self._take_of(self._visits[message.visit], message)

    def _take_of(self, state: StopState, message: OfVisit) -> None:
        offer, holder = require_value(state.offered, "only offered visits are known")
        match message:
            case BufferOffered():
                state.stage = Stage.LOADING
                signed = self._grant(offer, message, self._accelerator.peer.instance)
                try:  # first: if it is gone, the accelerator need not wait for it
                    send_message(holder, Granted(signed))
                except PeerError:
                    self._sessions.leave(holder)
                    send_message(self._accelerator, Withdrawn(message.visit))
                else:
                    send_message(self._accelerator, Granted(signed))
            case VisitPhase():
                emit(self._sink, "visit.phase", **_names(offer), phase=message.phase)
            case VisitLoaded():
                state.stage = Stage.LOADED
            case VisitEnded():
                self._tell_end(offer, message)
                self._end(state, message)

    def _depart(self, message: Departed) -> None:
        """An owner left: the run goes on without it, or ends, as the job says."""
        emit(self._sink, "owner.departed", owner=message.owner, line=message.line[:300])
        if self._waits:
            raise job_failed(message.code, message.line)
        self._departed[message.owner] = Failed(message.code, message.line)

    def _end(self, state: StopState, ended: VisitEnded) -> None:
        if ended.fatal:
            raise job_failed(ended.reason, ended.line)
        loading = state.stage in (Stage.OFFERED, Stage.LOADING)
        del self._visits[ended.visit]
        state.cause = Failed(ended.reason, ended.line)
        left = state.attempts < self._settings.travel.attempts
        if ended.outcome == "verified":
            self._tally.verified.add((state.position, state.stop.resource))
            state.stage = Stage.OVER
        elif loading and self._waits and left and ended.reason not in NEVER_LATER:
            self._pause(state, state.cause)
        else:
            self._skip(state, state.cause)

    def _pause(self, state: StopState, cause: Failed) -> None:
        """Twice as long each time, half of ``wait_s`` in the end, so all of it together."""
        left = self._settings.travel.attempts - state.attempts
        pause_s = max(SHORTEST_PAUSE_S, self._wait_s / 2.0**left)
        state.again_s = self._clock() + pause_s
        state.stage = Stage.DUE
        emit(self._sink, "visit.again", **_cause(state.stop, cause), pause_s=pause_s)

    def _skip(self, state: StopState, cause: Failed) -> None:
        left = state.stop.holder in self._departed
        self._tally.skip(state.position, state.stop.resource, cause, left=left)
        emit(self._sink, "visit.skipped", **_cause(state.stop, cause))
        state.stage = Stage.OVER
        if cause.code in NO_MORE and state.stop.purpose == "train":
            self._end_training(state.stop, cause)
        if not self._hopes():
            self._give_up()

    def _end_training(self, stop: Stop, cause: Failed) -> None:
        """An owner allows no more: no epoch begins that it would be missing from.

        What was trained is measured in the last pass, and handed out.
        """
        begun = [each for states in self._window for each in states]
        epochs = [group.epoch for group in self._left]
        last = max([*epochs, *(each.stop.epoch for each in begun)])

        def goes_on(group: VisitBatch | Stop) -> bool:
            measures = group.purpose == "heldout" and group.epoch == last
            return group.epoch <= stop.epoch or measures

        left = [(g.position, each) for g in self._left for each in g.stops]
        dropped = [(at, each) for at, each in left if not goes_on(each)]
        for state in begun:  # of a group that another one's rows are loaded of already
            if state.stage is Stage.DUE and not goes_on(state.stop):
                state.stage = Stage.OVER
                dropped.append((state.position, state.stop))
        if not any(each.purpose == "train" for _, each in dropped):
            return
        self._left = deque(filter(goes_on, self._left))
        for position, each in dropped:
            self._tally.skip(position, each.resource, cause, left=False)
        line = f"no more visits to {stop.holder} are allowed for training: {cause.line}"
        emit(self._sink, "job.limited", purpose="train", epoch=stop.epoch, line=line)

    def _give_up(self) -> None:
        """Begin nothing more; what is under way ends."""
        self._left.clear()
        for each in (each for group in self._window for each in group):
            if each.stage is Stage.DUE:
                each.stage = Stage.OVER

    def _tell_end(self, offer: OfferVisit, ended: VisitEnded) -> None:
        emit(
            self._sink,
            "visit.ended",
            **_names(offer),
            outcome=ended.outcome,
            reason=ended.reason,
            line=ended.line,
            rows=offer.rows,
            sealed_bytes=ended.sealed_bytes,
            scrubbed_bytes=ended.scrubbed_bytes,
            **{f"{name}_s": seconds for name, seconds in ended.phases_s.items()},
            **metric_fields(ended.metrics),
            **{f"curve.{place}": value for place, value in enumerate(ended.curve)},
        )


def _is_over(group: Sequence[StopState]) -> bool:
    return all(each.stage is Stage.OVER for each in group)


def _is_busy(holder: str, group: Sequence[StopState]) -> bool:
    """Whether this holder brings other cargo of the group first."""
    return any(
        each.stage in (Stage.OFFERED, Stage.LOADING) and each.stop.holder == holder
        for each in group
    )


def _cause(stop: Stop, cause: Failed) -> dict[str, str | int]:
    return {
        "holder": stop.holder,
        "resource": stop.resource,
        "epoch": stop.epoch,
        "reason": cause.code,
        "line": cause.line,
    }


def _names(offer: OfferVisit) -> dict[str, str | int]:
    return {
        "visit": offer.visit.to_text(),
        "number": offer.number,
        "position": offer.position,
        "epoch": offer.epoch,
        "holder": offer.holder,
        "resource": offer.resource,
        "purpose": offer.purpose,
    }
