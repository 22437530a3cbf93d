"""A job's passes in a group: each rank works on its own slice, then all agree on how to go on.

After each pass every rank tells every other, sealed, how it went: numbers that the output
rule lets out, sums, the form of its state, or the error that ends the job everywhere. Only
then are states averaged, and their digests compared. A rank that failed is named on every
rank, and nothing of that pass is summed.
Not here: what a rank's contribution is made of; the group has no way to tell.
Source: spec/collective.md section 6.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import numpy as np

from sealift.codec import decode, encode
from sealift.collective.announcement import Reduction
from sealift.collective.group import SealedGroup
from sealift.data.schedule.visits import Group, Stop
from sealift.errors import (
    IntegrityError,
    JobError,
    MalformedError,
    PeerError,
    SealiftError,
)
from sealift.ids import Digest
from sealift.release.agreement import OutputRule, Purpose
from sealift.release.log.entries import Logged, SignedTreeHead
from sealift.train.loop.averaging import Contribution, demand_same_form
from sealift.train.loop.states import TrainerState, TrainingState, state_digest
from sealift.train.loop.statistics import Measured, add_sums, let_out
from sealift.train.loop.stepsums import FAILED
from sealift.train.loop.trainer import Trainer
from sealift.train.output.accounts import SharedAccount, SignedAccount
from sealift.train.output.uses import Uses
from sealift.travel.visit.messages import MAX_RUN_RECEIPT_BYTES

MAX_WORDS: Final = 16 << 20  # that every rank may make every other one hold
_LENGTH: Final = struct.Struct(">Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Numbers of one stop, as the output rule lets them out."""

    stop: Stop
    metrics: dict[str, float]

    @classmethod
    def of(cls, stop: Stop, found: Measured, rule: OutputRule) -> Part:
        """What others may hear: of our own numbers, or of what another rank told."""
        told = {} if rule.audience == "owner" else let_out(found, rule).metrics
        return cls(stop=stop, metrics=dict(told))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How a pass went on one rank.

    Attributes:
        code: Stable name of the error that ended it; empty if it went well.
        line: The error's one line.
        of_the_job: Whether it is the job's error, and not that rank's alone.
        steps: Optimizer steps that its model has made.
        form: Of the state that is to be averaged.
        sums: Blob of the sums of ``prepare``.
        parts: What was measured.
        uses: What rows were used for.
    """

    code: str = ""
    line: str = ""
    of_the_job: bool = False
    steps: int = 0
    form: Digest | None = None
    sums: bytes = b""
    parts: tuple[Part, ...] = ()
    uses: Uses = field(default_factory=Uses)


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """What a rank shows the others before the first pass.

    Attributes:
        heads: Of every log that released a key to it.
        releases: What these logs say of it.
        position: Of the pass that it goes on with; rank 0's counts.
        states: Lengths of the states that rank 0 goes on from, by name.
    """

    heads: tuple[SignedTreeHead, ...]
    releases: tuple[Logged, ...] = ()
    position: int = 0
    states: dict[str, int] = field(default_factory=dict)


Told = TypeVar("Told", Present, Report, SharedAccount)
Work = Callable[[Purpose, int], tuple[tuple[Part, ...], Uses]]


class GroupRounds:
    """One rank's passes.

    Args:
        group: Its end; whoever made it closes it.
        trainer: Of its slice's model.
        plans: Of every rank's slice, the same on every rank.
        work: Works on a pass of our own slice.
        max_norm: Of what a slice changes in a round; 0 bounds nothing.
    """

    def __init__(
        self,
        group: SealedGroup,
        trainer: Trainer,
        plans: Sequence[Sequence[Group]],
        work: Work,
        *,
        max_norm: float,
    ) -> None:
        self._group = group
        self._trainer = trainer
        self._plans = plans
        self._work = work
        self._max_norm = max_norm

    def meet(self, own: Present, passes: int) -> tuple[Present, ...]:
        """Go on where rank 0 does, from its states; what every rank shows.

        Args:
            own: What we show, but for the states.
            passes: Of the whole job.

        Raises:
            MalformedError: if rank 0 goes on with a pass that there is not.
        """
        parts = self._trainer.snapshot().to_parts() if own.position else {}
        states = {name: len(each) for name, each in parts.items()}
        seen = self._share(replace(own, states=states))
        sizes = seen[0].states.values()
        if not 0 <= seen[0].position <= passes or min(sizes, default=0) < 0:
            raise MalformedError("rank 0 goes on nowhere", code="bad-message")
        if seen[0].position:
            self._trainer.restore(self._hand_out(parts, seen[0].states))
        return tuple(seen)

    def run(self, purpose: Purpose, epoch: int) -> tuple[Report, ...]:
        """Do one pass with all others; what each rank reported, in their order.

        Raises:
            SealiftError: what ended it here; the same line, as the job's, elsewhere.
            PeerError: if a rank is gone, or failed at something of its own.
            MalformedError: if one tells numbers of rows that are not its own.
            IntegrityError: ``ranks-diverged``.
        """
        before = self._trainer.joint if purpose == "train" else None
        contribution, own_error = None, None
        try:
            parts, uses = self._work(purpose, epoch)
            contribution = self._contribution(before, epoch) if before else None
            sums = self._trainer.statistics if purpose == "prepare" else b""
        except SealiftError as error:
            own_error = error
            report = Report(
                code=error.code, line=str(error), of_the_job=isinstance(error, JobError)
            )
        else:
            form = contribution.form if contribution else None
            report = Report(
                steps=self._trainer.steps, form=form, sums=sums, parts=parts, uses=uses
            )
        reports = tuple(self._share(report))
        if own_error is not None and own_error.code != FAILED:
            raise own_error
        _demand_all_well(reports)
        for rank, (report, plan) in enumerate(zip(reports, self._plans, strict=True)):
            _demand_own_rows(rank, report, stops_of(plan, purpose, epoch))
        self._agree(purpose, reports, contribution)
        return reports

    def share_account(self, own: SignedAccount) -> tuple[SignedAccount, ...]:
        """What every rank signed of the run; not verified yet."""
        return tuple(each.account for each in self._share(SharedAccount(own)))

    def hear_receipt(self, own: bytes) -> bytes:
        """The run's receipt, of which rank 0 has the only one; when every rank is here.

        Raises:
            MalformedError: if it is too long.
        """
        told = self._group.exchange(_LENGTH.pack(len(own)))
        length = _LENGTH.unpack(told[0])[0]
        if length > MAX_RUN_RECEIPT_BYTES:
            raise MalformedError("rank 0 says too much", code="bad-message")
        room = np.zeros(length, np.uint8)
        if self._group.rank == 0:
            room[:] = np.frombuffer(own, np.uint8)
        self._group.broadcast(room)
        return room.tobytes()

    def _contribution(self, before: TrainingState, epoch: int) -> Contribution:
        passes = [stops_of(plan, "train", epoch) for plan in self._plans]
        rows = [sum(stop.rows for stop in stops) for stops in passes]
        share = rows[self._group.rank] / sum(rows)
        after = self._trainer.joint
        summed = self._trainer.summed or None
        return Contribution(
            before, after, share, max_norm=self._max_norm, summed=summed
        )

    def _agree(
        self,
        purpose: Purpose,
        reports: Sequence[Report],
        contribution: Contribution | None,
    ) -> None:
        if purpose == "prepare":
            self._trainer.take_sums(add_sums([r.sums for r in reports if r.sums]))
        if contribution is None:
            return
        demand_same_form([_form(each) for each in reports])
        for vector in contribution.sums:
            self._group.all_reduce(vector)
        self._group.all_reduce(contribution.most, Reduction.MAX)
        self._trainer.join(contribution.result(max(each.steps for each in reports)))
        self._compare_weights()

    def _compare_weights(self) -> None:
        """A rank that summed its part in two ways would be found here (rule N4)."""
        own = state_digest(self._trainer.joint.model()).raw
        for rank, theirs in enumerate(self._group.exchange(own)):
            if theirs != own:
                raise IntegrityError(
                    f"rank {rank} has other weights than this one",
                    why="it was told another sum, or computed another one",
                    code="ranks-diverged",
                )

    def _share(self, own: Told) -> list[Told]:
        """What every rank says, however long it is."""
        words = encode(own)
        told = self._group.exchange(_LENGTH.pack(len(words)))
        lengths = [_LENGTH.unpack(each)[0] for each in told]
        if max(lengths) > MAX_WORDS:
            raise MalformedError("a rank says too much", code="bad-message")
        padded = words.ljust(max(lengths), b"\0")
        found = self._group.exchange(padded)
        said = (raw[:length] for raw, length in zip(found, lengths, strict=True))
        return [decode(type(own), each, max_bytes=MAX_WORDS) for each in said]

    def _hand_out(
        self, parts: Mapping[str, bytes], sizes: Mapping[str, int]
    ) -> TrainerState:
        """Rank 0's states, on every rank; it read them from a checkpoint that counts."""
        found = {}
        for name, length in sorted(sizes.items()):
            room = np.zeros(length, np.uint8)
            if self._group.rank == 0:
                room[:] = np.frombuffer(parts[name], np.uint8)
            self._group.broadcast(room)
            found[name] = room.tobytes()
        return TrainerState.from_parts(found)


def stops_of(plan: Sequence[Group], purpose: Purpose, epoch: int) -> list[Stop]:
    """What a pass works on."""
    wanted = (purpose, epoch)
    groups = (each for each in plan if (each.purpose, each.epoch) == wanted)
    return [stop for group in groups for stop in group.stops]


def _demand_own_rows(rank: int, report: Report, own: Sequence[Stop]) -> None:
    """Nobody speaks of another's rows, nor of more or fewer than it has."""
    foreign = MalformedError(
        f"rank {rank} tells numbers of other rows than its own", code="bad-message"
    )
    if [part.stop for part in report.parts] != own:
        raise foreign
    used = {each.resource for each in report.uses.tables}
    if used - {stop.resource for stop in own}:
        raise foreign
    uses = report.uses
    visits = sum(each.visits for each in uses.tables)
    dirty = any(each.nonzero_bytes for each in uses.tables)
    if dirty or visits != len(set(uses.receipts)) or len(uses.receipts) != visits:
        raise MalformedError(
            f"rank {rank} used rows without a receipt of a clean scrub each",
            code="bad-message",
        )


def _form(report: Report) -> Digest:
    if report.form is None:
        raise MalformedError("a rank averages nothing", code="bad-message")
    return report.form


def _demand_all_well(reports: Sequence[Report]) -> None:
    # Who only heard of another's failure says less than that one.
    told = sorted(enumerate(reports), key=lambda each: each[1].code == FAILED)
    for rank, report in told:
        if report.code and report.of_the_job:
            raise JobError(f"rank {rank}: {report.line[:300]}", code=report.code)
        if report.code:
            raise PeerError(f"rank {rank} failed", why=report.line[:300], code=FAILED)
