"""The orchestrator of a group: it waits for all ranks, starts them, and takes the result.

It forwards their frames, sees no key, no row and no gradient, and is trusted for progress
only. A rank that is lost ends the others as well; then all of them are waited for again,
with fresh keys, and go on from rank 0's checkpoint. One that is stopped and not killed says
nothing any more, and is lost as well. Of a rank's error it hears the stable name and whom
it is about, and no word of that rank's own.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sealift.errors import (
    MalformedError,
    PeerError,
    SealiftError,
    meaning,
    quote_foreign,
    require_kind,
)
from sealift.events import Sink, emit, metric_fields
from sealift.ids import Role
from sealift.release.agreement import Agreement
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.session.session import Session
from sealift.train.loop.measures import numbers_of
from sealift.train.loop.statistics import ALONE
from sealift.train.loop.stepsums import FAILED
from sealift.train.ranks.endings import LOST, MISSING, ON_AGAIN, group_ended
from sealift.travel.orchestrator.job import (
    LAST_WORDS_S,
    Outputs,
    RunSummary,
    add_to_receipt,
    dismiss_roles,
)
from sealift.travel.orchestrator.sessions import LiveSessions
from sealift.travel.peers import accelerator_names, peer_missing, say_ranks
from sealift.travel.settings import JobSettings
from sealift.travel.visit.messages import (
    Alive,
    Failed,
    FailedError,
    JobFinished,
    JobReady,
    Output,
    OutputKept,
    RoundEnded,
    StartJob,
    await_end,
    parse_message,
    send_message,
)

FIRST_WORD_S: Final = 0.5  # who is lost because of another says so a moment later
# What ends a job for good ends it on every rank: one that began later finds it, too,
# as long as brokers and relay are there.
OWN_WORD_S: Final = 10.0
SILENT_S: Final = 20.0  # a rank says that it is alive every 5 s
QUEUED: Final = 16  # words of ranks, of a MiB at most, that wait for being taken
MAX_LINE: Final = 300  # columns of a recipe's own text
_ECHOES: Final = (LOST, FAILED)
# What ends a start and not the job: whoever was there for an earlier run comes for this one,
# if its owner takes part in later runs.
_PASSING: Final = (LOST, "another-run")


class GroupOrchestrator:
    """Runs one job over its ranks.

    Args:
        agreement: Verified; says how many ranks there are.
        settings: Of the job.
        sessions: Live sessions.
        sink: Where progress goes.
    """

    def __init__(
        self,
        agreement: VerifiedAgreement,
        settings: JobSettings,
        *,
        sessions: LiveSessions,
        sink: Sink,
    ) -> None:
        self._agreement = agreement
        self._settings = settings
        self._sessions = sessions
        self._sink = sink
        self._names = accelerator_names(agreement.agreement.ranks)
        self._people = say_ranks(agreement.agreement)
        self._text = agreement.agreement.output_rule.recipe_text

    def run(self, start: StartJob, outputs: Outputs) -> RunSummary:
        """Gather the ranks, start them, collect the output; again, if one is lost.

        Raises:
            PeerError: if a rank is missing or gone.
            JobError: if the recipe failed.
        """
        wait_s = self._settings.run.gather_s
        try:
            while True:
                try:
                    return self._run(self._gather(wait_s), start, outputs)
                except PeerError as error:
                    wait_s = self._await_others(error)
        except Exception as error:
            self._tell_end(error)
            dismiss_roles(self._sessions, self._agreement, "failed", cause=error)
            if isinstance(error, FailedError):
                raise self._said(error) from None
            raise

    def _tell_end(self, error: Exception) -> None:
        """Ranks that wait for a start hear why there is none any more, and of whom."""
        told = Failed(FAILED, "")
        if isinstance(error, SealiftError):
            told = _last_word(error)
        if isinstance(error, PeerError) and error.code == MISSING:
            told = Failed(MISSING, "", error.ranks)
        waiting = [self._sessions.find(Role.ACCELERATOR, name) for name in self._names]
        here = [session for session in waiting if session is not None]
        for session in here:
            with suppress(SealiftError):
                send_message(session, told)
        deadline = time.monotonic() + LAST_WORDS_S  # of all together
        for session in here:
            await_end(session, max(0.0, deadline - time.monotonic()))

    def _said(self, error: FailedError) -> SealiftError:
        """What a rank's last word says to the host."""
        failed = error.failed
        people = [self._people[each] for each in failed.ranks]
        return group_ended(
            PeerError, people, failed.code, why=failed.line, ranks=failed.ranks
        )

    def _gather(self, wait_s: float) -> list[Session]:
        wanted = [(Role.ACCELERATOR, name) for name in self._names]
        self._sessions.gather(wanted, wait_s)
        ranks, missing = [], list[int]()
        for rank, name in enumerate(self._names):
            try:
                ranks.append(self._sessions.wait_for(Role.ACCELERATOR, name, 0.0))
            except PeerError:
                missing.append(rank)
        if missing:
            error = peer_missing([self._people[each] for each in missing], ON_AGAIN)
            error.ranks = tuple(missing)
            raise error
        emit(self._sink, "job.gathered", ranks=len(ranks))
        return ranks

    def _run(
        self, ranks: list[Session], start: StartJob, outputs: Outputs
    ) -> RunSummary:
        told: queue.Queue[object] = queue.Queue(QUEUED)
        outputs.clear()
        passes = len(list(self._settings.visits.passes()))
        try:
            for session in ranks:
                send_message(session, start)
            for rank, session in enumerate(ranks):
                words = RankWords(
                    rank,
                    self._people,
                    text=self._text,
                    passes=passes,
                    numbers=_numbers_told(self._agreement.agreement),
                )
                threading.Thread(
                    target=words.hear, args=(session, told.put), daemon=True
                ).start()
            receipt = bytearray()
            while not isinstance(each := told.get(), JobFinished):
                self._take(each, outputs, told)
                if isinstance(each, Output):
                    add_to_receipt(receipt, each)
            instances = tuple(session.peer.instance for session in ranks)
            summary = RunSummary(0, 0, each, bytes(receipt), instances)
            outputs.keep(summary)
        except SealiftError as error:
            for session in ranks:
                with suppress(SealiftError):
                    send_message(session, _last_word(error))
                self._sessions.leave(session)
                session.close()
            raise
        with suppress(SealiftError):
            send_message(ranks[0], OutputKept(start.job))
            await_end(ranks[0], LAST_WORDS_S)
        return summary

    def _take(
        self, message: object, outputs: Outputs, told: queue.Queue[object]
    ) -> None:
        match message:
            case JobReady():
                emit(
                    self._sink,
                    "rank.ready",
                    level=message.level,
                    keys=message.keys,
                    position=message.position,
                    why=message.why,
                    sandbox=message.sandbox,
                )
            case RoundEnded():
                emit(
                    self._sink,
                    "round.ended",
                    purpose=message.purpose,
                    epoch=message.epoch,
                    rows=message.rows,
                    seconds=message.seconds,
                    **metric_fields(message.metrics),
                )
            case Output() if _is_note(message):
                outputs.keep_fault(message)
            case Output():
                outputs.write(message)
            case _:
                raise _first_cause(message, told, len(self._names))

    def _await_others(self, error: PeerError) -> float:
        """How long to wait for all ranks anew; raises what ended them, if not at all."""
        wait_s = self._settings.run.rejoin_s
        lasting = isinstance(error, FailedError) and error.failed.code not in _PASSING
        if wait_s <= 0 or lasting or error.code == MISSING:
            raise error
        said = self._said(error) if isinstance(error, FailedError) else error
        emit(self._sink, "accelerator.lost", line=str(said), wait_s=wait_s)
        return wait_s


@dataclass(frozen=True, slots=True)
class RankWords:
    """What is taken of a rank's words.

    Attributes:
        rank: Its number.
        names: Of all ranks, for people.
        text: Whether the agreement lets a recipe's text out.
        passes: How many there are in the job; each is told once.
        numbers: Names of those that may be told of a pass.
    """

    rank: int
    names: Sequence[str]
    text: bool = False
    passes: int = 1
    numbers: Set[str] = frozenset()

    def hear(self, session: Session, tell: Callable[[object], None]) -> None:
        """Pass on what it says until its session, or what it may say, ends.

        A rank that says nothing for ``SILENT_S`` is lost, however long its work may take.
        """
        kinds = (Alive, JobReady, RoundEnded, Output, JobFinished, Failed)
        name, heard = self.names[self.rank], Counter[type]()
        try:
            while True:
                message = parse_message(session.receive(SILENT_S), kinds)
                if isinstance(message, Alive):
                    continue
                heard[type(message)] += 1
                if heard[JobReady] > 1 or heard[RoundEnded] > self.passes:
                    what = "it reports that it began twice, or more passes than the plan has"
                    raise MalformedError(what, code="bad-message")
                if (
                    isinstance(message, RoundEnded)
                    and message.metrics.keys() - self.numbers
                ):
                    what = "it reports numbers that the agreement does not list"
                    raise MalformedError(what, code="bad-message")
                if self.rank:
                    _demand_its_own(self.rank, message)
                if isinstance(message, Failed):
                    tell(self.explain(message))
                    return  # its last word
                tell(message)
        except PeerError as error:
            what = f"{name} cannot be reached"
            if error.code == "peer-timeout":
                what = f"{name} has sent nothing for {SILENT_S:g} s"
            tell(PeerError(what, why=error, code=error.code, ranks=(self.rank,)))
        except SealiftError as error:
            error.what, error.ranks = f"{name}: {error.what}", (self.rank,)
            tell(error)

    def explain(self, failed: Failed) -> Failed:
        """Its error in our own words: a code of the catalogue, itself, and the ranks it blames."""
        others = [each for each in failed.ranks if each != self.rank]
        known = (
            "" if failed.code == MISSING else meaning(failed.code)
        )  # only we know that
        if not known or set(others) - set(range(len(self.names))):
            return Failed(FAILED, meaning(FAILED), (self.rank,))
        if self.text and failed.line:
            known = quote_foreign(failed.line, MAX_LINE)
        return Failed(failed.code, known, (self.rank, *others))


def _last_word(error: SealiftError) -> Failed:
    """What every rank hears of the end of this start: a stable name, and who it is about."""
    if isinstance(error, FailedError):
        code = LOST if error.failed.code in _PASSING else error.failed.code
        return Failed(code, "", error.failed.ranks)
    if isinstance(error, PeerError):
        return Failed(LOST, "", error.ranks)
    return Failed(error.code if meaning(error.code) else FAILED, "", error.ranks)


def _numbers_told(agreement: Agreement) -> frozenset[str]:
    """Names of numbers over all ranks that leave by the agreement; no counts are among them."""
    rule = agreement.output_rule
    names = numbers_of(rule.metrics)
    owners = agreement.data_owners if rule.baseline_alone else ()
    alone = {f"{ALONE}.{owner}.{name}" for owner in owners for name in names}
    return frozenset(names | alone)


def _demand_its_own(rank: int, message: object) -> None:
    """The result is rank 0's; of the others each tells about itself."""
    note = isinstance(message, Output) and _is_note(message)
    if not note and not isinstance(message, JobReady | Failed):
        raise MalformedError(
            f"rank {rank} sent a result, which only rank 0 may send", code="bad-message"
        )


def _is_note(output: Output) -> bool:
    """Of where a recipe failed."""
    return output.name.startswith("fault.")


def _first_cause(
    message: object, told: queue.Queue[object], ranks: int
) -> SealiftError:
    """What ended the group: the rank that others lost knows best."""
    causes = [message]
    lasting = isinstance(message, Failed) and message.code not in _ECHOES
    deadline = time.monotonic() + (OWN_WORD_S if lasting else FIRST_WORD_S)
    with suppress(queue.Empty):
        while len(causes) < ranks:
            each = told.get(timeout=max(0.0, deadline - time.monotonic()))
            if isinstance(each, Failed | SealiftError):
                causes.append(each)
    for each in causes:
        if isinstance(each, Failed) and each.code not in _ECHOES:
            return FailedError(each)
    # Who is gone, or silent, said nothing itself: what others say of it is an echo.
    first = next((c for c in causes if not isinstance(c, Failed)), causes[0])
    if isinstance(first, Failed):
        return FailedError(first)
    return require_kind(first, SealiftError)
