"""The orchestrator: who is visited when, under which lease. It sees no data and no key.

It is trusted for progress only: what counts (visits per holder, distinct holders, what
leaves) is enforced by the accelerator, and it signs nothing but leases (rules H8, M4).
A holder that is dead, stalled or misbehaving loses its visit; the job says whether it
is waited for or skipped, and the run goes on. An accelerator that is lost may be
followed by another one, which says where in the plan the job goes on: the orchestrator
remembers nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from sealift.crypto.sign import PublicKey, Signer, sign_document
from sealift.data.schedule.visits import Stop, VisitBatch, plan_job
from sealift.errors import MalformedError, PeerError, SealiftError
from sealift.events import Sink, emit
from sealift.ids import Role
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.session.session import Session
from sealift.travel.accelerator.rules import check_cargo
from sealift.travel.orchestrator.sessions import LiveSessions
from sealift.travel.orchestrator.visits import ANSWER_WAIT_S, PlanRun, StopTally
from sealift.travel.peers import accelerator_names, peer_missing, say_role
from sealift.travel.settings import JobSettings, run_terms
from sealift.travel.visit.errors import SERVER_GONE, named_errors
from sealift.travel.visit.lease import Lease, SignedLease, check_seconds
from sealift.travel.visit.messages import (
    FAREWELL_S,
    MAX_RUN_RECEIPT_BYTES,
    RUN_RECEIPT_NAME,
    BufferOffered,
    Departed,
    Failed,
    FailedError,
    Finished,
    FinishJob,
    JobFinished,
    JobReady,
    OfferVisit,
    Output,
    OutputKept,
    StartJob,
    await_end,
    parse_message,
    receive_message,
    send_finished,
    send_message,
)
from sealift.travel.visit.state import Clock

_MISSED: Final = frozenset({"output-withheld", "statistics-withheld"})
Hopes = Callable[[Iterable[Stop]], bool]
LAST_WORDS_S: Final = 10.0  # for the accelerator to let go of its checkpoints


@dataclass(frozen=True, slots=True)
class RunSummary:
    """How a run ended.

    Attributes:
        visits: Verified visits.
        skipped: Planned visits that were skipped.
        finished: The accelerator's signed account.
        receipt: Of the run, for every party.
        instances: Keys of the accelerators that are here, in the order of ranks.
    """

    visits: int
    skipped: int
    finished: JobFinished
    receipt: bytes
    instances: tuple[PublicKey, ...]


class Outputs(Protocol):
    """Where the accelerator's output goes."""

    def clear(self) -> None:
        """It comes from the beginning; what came before is dropped."""
        ...

    def write(self, output: Output) -> None:
        """One piece."""
        ...

    def keep_fault(self, output: Output) -> None:
        """What is for a party alone, of a run that failed."""
        ...

    def keep(self, summary: RunSummary) -> None:
        """That was all: check it, and keep it in its place, synced.

        Raises:
            SealiftError: if it is not what it must be, or cannot be kept.
        """
        ...


class Orchestrator:
    """Runs one job over the roles that are here.

    Args:
        agreement: Verified; names parties, resources and rules.
        settings: Of the job.
        sessions: Live sessions.
        signer: The operator's identity; signs leases.
        job: Name of the job.
        plan: Its plan.
        clock: Monotonic seconds.
        sink: Where progress goes.
        hopes: Whether anything could be handed out if these stops were attended to. If
            not, the accelerator is asked for its output at once, and says why there is none.
        accelerator: Its name.
    """

    def __init__(
        self,
        agreement: VerifiedAgreement,
        settings: JobSettings,
        *,
        sessions: LiveSessions,
        signer: Signer,
        job: str,
        plan: str = "travel",
        clock: Clock,
        sink: Sink,
        hopes: Hopes,
        accelerator: str = accelerator_names()[0],
    ) -> None:
        self._agreement = agreement
        self._settings = settings
        self._sessions = sessions
        self._job, self._plan = job, plan
        self._clock = clock
        self._sink = sink
        self._name = accelerator
        self._tally = StopTally()
        self._signer = signer
        self._hopes = hopes
        self._absent: list[str] = []

    def run(self, start: StartJob, outputs: Outputs) -> RunSummary:
        """Gather the roles, run every planned visit, collect the output.

        Raises:
            PeerError: if the accelerator is missing or gone.
            JobError: if the recipe failed.
            PolicyError: if the job asks for more than agreed.
        """
        agreed = self._agreement.agreement.travel_rule
        check_seconds(self._settings.run.lease_s, agreed.lease_s)
        check_cargo(self._settings.travel, agreed)
        dismiss = partial(dismiss_roles, self._sessions, self._agreement)
        try:
            self._gather()
            summary = self._travel(start, outputs)
        except Exception as error:  # no stop: the same command again finds all of them
            if isinstance(error, SealiftError) and error.code in _MISSED:
                error.fix = _say_causes(self._tally, self._absent) or error.fix
            dismiss("failed", cause=error, missing=self._absent)
            raise
        dismiss("finished", receipt=summary.receipt)
        return summary

    def _gather(self) -> None:
        waits = self._settings.travel.on_missing == "wait"
        holders = self._agreement.agreement.holders
        wanted = [
            (Role.ACCELERATOR, self._name),
            *((Role.HOLDER, each) for each in holders),
        ]
        self._sessions.gather(wanted, self._settings.run.gather_s)
        self._accelerator()
        for holder in holders:
            try:
                self._sessions.wait_for(Role.HOLDER, holder, 0.0)
            except PeerError as error:
                self._absent.append(holder)
                if not waits:
                    emit(self._sink, "holder.missing", holder=holder, line=str(error))
        if waits and self._absent:
            raise peer_missing([say_role(Role.HOLDER, each) for each in self._absent])
        emit(self._sink, "job.gathered", holders=len(holders))

    def _travel(self, start: StartJob, outputs: Outputs) -> RunSummary:
        """With one accelerator after another, until one of them has finished."""
        accelerator = self._accelerator()
        while True:
            try:
                self._visit_all(accelerator, self._start(accelerator, start), outputs)
                return self._finish(accelerator, outputs)
            except PeerError as error:
                if isinstance(error, FailedError) or error.code == SERVER_GONE:
                    raise  # it lives, and says that there is no way
                accelerator = self._await_another(accelerator, error)

    def _await_another(self, lost: Session, error: PeerError) -> Session:
        wait_s = self._settings.run.rejoin_s
        self._sessions.leave(lost)
        lost.close()
        if wait_s <= 0:
            raise error
        emit(self._sink, "accelerator.lost", line=str(error), wait_s=wait_s)
        try:
            return self._accelerator(wait_s)
        except PeerError:
            raise error from None

    def _start(self, accelerator: Session, start: StartJob) -> JobReady:
        send_message(accelerator, start)
        run = self._settings.run  # it may open a checkpoint first
        limit_s = run.brokers_s + run.work_s + ANSWER_WAIT_S
        with named_errors():
            ready = receive_message(accelerator, JobReady, timeout_s=limit_s)
        emit(
            self._sink,
            "job.ready",
            level=ready.level,
            keys=ready.keys,
            position=ready.position,
            buffer_bytes=ready.buffer_bytes,
            why=ready.why,
            sandbox=ready.sandbox,
        )
        return ready

    def _visit_all(
        self, accelerator: Session, ready: JobReady, outputs: Outputs
    ) -> None:
        resources = self._agreement.agreement.resources
        plan = plan_job(resources, self._settings.visits, ready.buffer_bytes)
        self._tally.forget_from(ready.position)
        away = self._absent = self._away()
        stops = (stop for group in plan for stop in group.stops)
        here = (stop for stop in stops if stop.holder not in away)
        # In the midst of a job who is away may have been here before.
        if away and not ready.position and not self._hopes(here):
            return
        run = PlanRun(
            plan[ready.position :],
            self._settings,
            accelerator=accelerator,
            sessions=self._sessions,
            grant=self._grant,
            tally=self._tally,
            clock=self._clock,
            keep=outputs.keep_fault,
            hopes=partial(self._hopes_for_rest, plan),
            sink=self._sink,
        )
        try:
            run.run()
        except PeerError as error:
            run.lose(str(error))
            raise

    def _away(self) -> list[str]:
        """Holders that did not arrive in time, nor since."""
        find = self._sessions.find
        return [each for each in self._absent if find(Role.HOLDER, each) is None]

    def _hopes_for_rest(self, plan: Sequence[VisitBatch]) -> bool:
        """Whether the run can end well, if all goes well that is still to come."""
        return self._hopes(
            stop
            for group in plan
            for stop in group.stops
            if self._tally.may_count(group.position, stop.resource)
        )

    def _grant(
        self, offer: OfferVisit, buffer: BufferOffered, instance: PublicKey
    ) -> SignedLease:
        """The operator's only signature: one visit's rows, into one instance's buffer."""
        resource = self._agreement.resource(offer.resource)
        lease = Lease(
            job=self._job,
            visit=offer.visit,
            agreement=self._agreement.digest,
            accelerator=instance,
            holder=offer.holder,
            resource=offer.resource,
            purpose=offer.purpose,
            handle=buffer.handle,
            offset=0,
            max_bytes=offer.rows * resource.row_bytes,
            dtype="uint8",
            shape=(offer.rows, resource.row_bytes),
            first_row=offer.first_row,
            mode="write-only",
            lease_s=self._settings.run.lease_s,
            content=resource.content,
            run=run_terms(self._job, self._plan, self._settings),
        )
        return sign_document(lease, self._signer)

    def _finish(self, accelerator: Session, outputs: Outputs) -> RunSummary:
        outputs.clear()
        receipt = bytearray()
        model = self._settings.training.epochs > 0
        # A checkpoint of the last visit is sealed first, which takes long of a large model.
        limit_s = self._settings.run.work_s + ANSWER_WAIT_S
        send_message(accelerator, FinishJob(self._job, model=model))
        while True:
            with named_errors():
                told = _next_output(accelerator, limit_s)
            if isinstance(told, JobFinished):
                break
            outputs.write(told)
            add_to_receipt(receipt, told)
        tally, content = self._tally, bytes(receipt)
        here = (accelerator.peer.instance,)
        summary = RunSummary(
            len(tally.verified), len(tally.skipped), told, content, here
        )
        outputs.keep(summary)
        with suppress(SealiftError):  # it has nothing left that we need
            send_message(accelerator, OutputKept(self._job))
            await_end(accelerator, LAST_WORDS_S)
        return summary

    def _accelerator(self, timeout_s: float = 0.0) -> Session:
        return self._sessions.wait_for(Role.ACCELERATOR, self._name, timeout_s)


def add_to_receipt(receipt: bytearray, output: Output) -> None:
    """Take what an output adds to the run's receipt, which is held in memory.

    Raises:
        MalformedError: ``bad-output``, if it is longer than a receipt may be.
    """
    if output.name != RUN_RECEIPT_NAME:
        return
    if len(receipt) + len(output.part) > MAX_RUN_RECEIPT_BYTES:
        raise MalformedError("the run's receipt is too long", code="bad-output")
    receipt += output.part


def _say_causes(tally: StopTally, absent: Sequence[str]) -> str:
    """Why rows are missing: what the last visit to each table came to, or who is."""
    if absent and not tally.skipped:
        return f"These holders did not connect: {', '.join(absent)}"
    skipped = sorted({resource for _position, resource in tally.skipped})
    causes = [(resource, tally.causes[resource]) for resource in skipped]
    return "; ".join(f"{name} was skipped: {c.line} [{c.code}]" for name, c in causes)


def _next_output(accelerator: Session, limit_s: float) -> Output | JobFinished:
    """Whoever leaves now, its rows were worked on before."""
    while True:
        raw = accelerator.receive(limit_s)
        told = parse_message(raw, (Output, JobFinished, Departed, Failed))
        if isinstance(told, Failed):
            raise FailedError(told)
        if isinstance(told, (Output, JobFinished)):
            return told


def dismiss_roles(
    sessions: LiveSessions,
    agreement: VerifiedAgreement,
    outcome: str,
    *,
    until: float = 0.0,
    accelerators: Sequence[str] = (),
    holders: Sequence[str] | None = None,
    receipt: bytes = b"",
    cause: Exception | None = None,
    missing: Sequence[str] = (),
) -> None:
    """Tell every holder, and wait until it has heard: the relay ends with us.

    Args:
        sessions: Who is here.
        agreement: Verified; names the holders.
        outcome: ``finished`` or ``failed``.
        until: When nobody that is away is waited for any more, in monotonic seconds.
        accelerators: Names of those that are told as well: they wait for a job.
        holders: Those of the job; all of the agreement's without.
        receipt: Of the run, for the holders.
        cause: What ended a job that failed: its name is told, and no word of it.
        missing: Owners that had not come then; told where they are the cause.
    """
    code = cause.code if isinstance(cause, SealiftError) else ""
    if isinstance(cause, FailedError):  # the accelerator's own name for it
        code = cause.failed.code
    absent = tuple(sorted(missing)) if code in {*_MISSED, "peer-missing"} else ()
    finished = Finished(outcome, agreement.digest, code=code, missing=absent)
    bring = agreement.agreement.holders if holders is None else holders
    expected = [(Role.HOLDER, holder) for holder in bring]
    expected += [(Role.ACCELERATOR, name) for name in accelerators]
    told = []
    for role, name in expected:
        with suppress(SealiftError):
            left_s = max(0.0, until - time.monotonic())
            session = sessions.wait_for(role, name, left_s)
            send_finished(session, finished, receipt if role == Role.HOLDER else b"")
            told.append(session)
    deadline = time.monotonic() + FAREWELL_S
    for session in told:
        await_end(session, max(0.0, deadline - time.monotonic()))
