"""A job's passes in a group: each rank works on its own slice, then all agree on how to go on.

After each pass every rank tells every other, sealed, how it went: numbers that the output
rule lets out, sums, the form of its state, or the stable name of the error that ends the
job everywhere. All ranks compare what they heard of each, and refuse what they can compute
themselves and a peer says differently (rule O5). Only then are states averaged; model,
optimizer and statistics that follow are compared as a whole. A rank that failed, said what
cannot be true, or told two ranks two things is named on every rank.
Not here: what a rank's contribution is made of; the group has no way to tell.
Source: spec/collective.md section 6.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final, Literal, NoReturn, TypeVar

import numpy as np

from sealift.codec import decode, encode
from sealift.collective.announcement import Algorithm, Reduction
from sealift.collective.group import SealedGroup
from sealift.collective.tensors import chunks_of
from sealift.crypto.hash import HASH_BYTES, ContentHasher, content_hash
from sealift.data.schedule.memory import free_memory_bytes
from sealift.data.schedule.visits import Stop, VisitBatch, batches_of
from sealift.errors import (
    IntegrityError,
    JobError,
    PeerError,
    SealiftError,
    meaning,
)
from sealift.ids import Digest
from sealift.release.agreement import OutputRule, Purpose
from sealift.release.log.entries import Logged, SignedTreeHead
from sealift.train.loop.averaging import Contribution
from sealift.train.loop.held import PIECE_BYTES, Content, Held, pieces_of, read_of
from sealift.train.loop.slices import steps_of_slices
from sealift.train.loop.states import Settled, TrainerState, TrainingState
from sealift.train.loop.statistics import (
    MAX_SUMS_BYTES,
    Measured,
    add_sums,
    check_sums,
    let_out,
)
from sealift.train.loop.stepsums import FAILED
from sealift.train.loop.trainer import Trainer
from sealift.train.output.accounts import SharedAccount, SignedAccount, Uses
from sealift.train.ranks.endings import group_ended
from sealift.train.ranks.sumsonly import SumsOnly, layout_of
from sealift.travel.settings import TrainingSettings
from sealift.travel.visit.messages import MAX_RUN_RECEIPT_BYTES

MAX_WORDS: Final = 16 << 20  # that every rank may make every other one hold
UNTRUE: Final = "untrue-report"
DIVERGED: Final = "ranks-diverged"
_LENGTH: Final = struct.Struct(">Q")
_HEAD: Final = struct.Struct(">QQQ")  # steps, and how long tensors and tree are
# Of the states that rank 0 hands out.
_STATES: Final[Mapping[str, int]] = {
    "best": 0,
    "joint": 0,  # as long as a state may be that a recipe's process hands over
    "rows": 8,
    "statistics": MAX_SUMS_BYTES,
}
_ROOM_SHARE: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNumbers:
    """Numbers of one stop, as the output rule lets them out."""

    stop: Stop
    metrics: dict[str, float]

    @classmethod
    def of(cls, stop: Stop, found: Measured, rule: OutputRule) -> RankNumbers:
        """What others may hear: of our own numbers, or of what another rank told."""
        told = {} if rule.audience == "owner" else let_out(found, rule).metrics
        return cls(stop=stop, metrics=dict(told))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReport:
    """How a pass went on one rank.

    Attributes:
        code: Stable name of the error that ended it; empty if it went well. Its line
            stays at home: it may name files and values there.
        of_the_job: Whether it is the job's error, and not that rank's alone.
        steps: Optimizer steps that its model has made.
        form: Of the state that is to be averaged.
        sums: Blob of the sums of ``prepare``.
        parts: What was measured.
        uses: What rows were used for.
    """

    code: str = ""
    of_the_job: bool = False
    steps: int = 0
    form: Digest | None = None
    sums: bytes = b""
    parts: tuple[RankNumbers, ...] = ()
    uses: Uses = field(default_factory=Uses)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankIntroduction:
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


Shared = TypeVar("Shared", RankIntroduction, PassReport, SharedAccount)
Work = Callable[[Purpose, int], tuple[tuple[RankNumbers, ...], Uses]]


class GroupRounds:
    """One rank's passes.

    Args:
        group: Its end; whoever made it closes it.
        trainer: Of its slice's model.
        plans: Of every rank's slice, the same on every rank.
        work: Works on a pass of our own slice.
        max_norm: Of what a slice changes in a round; 0 bounds nothing.
        sync: When slices come together.
        names: Of the ranks, for people.
        sums: With ``sums = "only"``: adds up what ranks otherwise tell each other. Measures
            that ``work`` returns are then as the recipe told them.

    Attributes:
        cut: With ``sums = "only"``: numbers of all ranks that the last pass cut.
    """

    def __init__(
        self,
        group: SealedGroup,
        trainer: Trainer,
        plans: Sequence[Sequence[VisitBatch]],
        work: Work,
        *,
        max_norm: float,
        sync: Literal["round", "step"] = "round",
        names: Sequence[str] = (),
        sums: SumsOnly | None = None,
    ) -> None:
        self._sums = sums
        self.cut = 0
        self._group = group
        self._trainer = trainer
        self._plans = plans
        self._work = work
        self._max_norm = max_norm
        self._sync: Literal["round", "step"] = sync
        self._names = names or [f"rank {number}" for number in range(group.world)]

    def meet(
        self, own: RankIntroduction, passes: Sequence[tuple[Purpose, int]]
    ) -> tuple[RankIntroduction, ...]:
        """Go on where rank 0 does, from its states; what every rank shows.

        Args:
            own: What we show, but for the states.
            passes: Of the whole job.

        Raises:
            IntegrityError: ``untrue-report``, if rank 0 goes on with a pass that there
                is not, or from a state that none of the job's is; ``ranks-diverged``.
        """
        parts = self._trainer.snapshot().to_parts() if own.position else {}
        states = {name: len(each) for name, each in parts.items()}
        seen = self._share(replace(own, states=states))
        first = seen[0]
        for rank, each in enumerate(seen):
            if not 0 <= each.position <= (0 if rank else len(passes)):
                self.refuse(
                    rank,
                    f"it continues at pass {each.position:,}, which is not possible",
                )
            if bool(each.position) != bool(each.states):
                self.refuse(
                    rank,
                    "it reports a state without a finished pass, or a finished "
                    "pass without a state",
                )
        if first.position:
            if why := wrong_sizes(first.states):
                self.refuse(0, why)
            found = {
                name: self._hear_state(parts.get(name, b""), length)
                for name, length in sorted(first.states.items())
            }
            with self.blaming(0):
                self._trainer.restore(TrainerState.from_parts(found))
            done = passes[: first.position]
            trained = [n for purpose, n in done if purpose == "train"]
            steps = sum(map(self.most_steps, trained))
            rows = count_rows(self._plans[0], done, self._trainer.settings)
            if self._trainer.rows_trained != rows:
                self.refuse(
                    0,
                    f"its state was trained on {self._trainer.rows_trained:,} rows; the plan has {rows:,}",
                )
            if self._trainer.steps != steps:
                self.refuse(
                    0,
                    f"its state has {self._trainer.steps:,} optimizer steps; the plan has {steps:,}",
                )
        return tuple(seen)

    def run(self, purpose: Purpose, epoch: int) -> tuple[PassReport, ...]:
        """Do one pass with all others; what each rank reported, in their order.

        Raises:
            SealiftError: what ended it here; the same line, as the job's, elsewhere.
            PeerError: if a rank is gone, or failed at something of its own.
            IntegrityError: ``untrue-report``, if one says what cannot be true;
                ``ranks-diverged``, if two ranks were told two things, or hold two states.
        """
        before = self._trainer.joint if purpose == "train" else None
        began = Settled(before, moved=True) if before else None
        contribution, own_error = None, None
        measured: tuple[RankNumbers, ...] = ()
        if self._sums is not None:
            if purpose == "train" and 0 in self._steps_made(epoch):
                raise JobError(
                    f"an owner makes no step in epoch {epoch + 1}",
                    why='with sums = "only" the sum would be of the others alone; a lower '
                    "training.batch_rows, or training.drop_last = false, gives it one",
                    code="slices-differ",
                )
            self._sums.begin()
        try:
            parts, uses = self._work(purpose, epoch)
            if before and began:
                began.verify(before)
                self._trainer.verify()
                contribution = self._contribution(before, epoch)
            sums = self._trainer.statistics if purpose == "prepare" else b""
            if self._sums is not None:
                measured = parts
                parts = tuple(replace(each, metrics={}) for each in parts)
                sums = layout_of(sums) if sums else sums
        except SealiftError as error:
            own_error = error
            code = error.code if meaning(error.code) else FAILED
            report = PassReport(code=code, of_the_job=isinstance(error, JobError))
        else:
            form = contribution.form if contribution else None
            report = PassReport(
                steps=self._trainer.steps, form=form, sums=sums, parts=parts, uses=uses
            )
        reports = tuple(self._share(report))
        if own_error is not None and own_error.code != FAILED:
            raise own_error
        self._demand_all_well(reports)
        self._demand_true(purpose, epoch, reports, before)
        self._agree(purpose, reports, contribution)
        if self._sums is not None:
            reports = self._add_measures(self._sums, measured, reports)
        return reports

    def _add_measures(
        self,
        sums: SumsOnly,
        measured: Sequence[RankNumbers],
        reports: Sequence[PassReport],
    ) -> tuple[PassReport, ...]:
        """Reports in which the first part has what all parts come to, and all rows."""
        parts = [part for report in reports for part in report.parts]
        own = [(each.stop, each.metrics) for each in measured]
        stops = [each.stop for each in parts]
        rows, metrics = sums.add_measures(own, stops, self._tell)
        self.cut = sums.count_cut()
        found = encode({"rows": rows, "metrics": metrics, "cut": self.cut})
        digests = self._tell(content_hash(found))
        self._demand_alike(digests, "added up other measures", DIVERGED)
        if not metrics:
            return tuple(reports)
        stop = replace(parts[0].stop, rows=rows)
        whole, last = (RankNumbers(stop=stop, metrics=metrics),), list(reports[1:])
        return (
            replace(reports[0], parts=whole),
            *(replace(report, parts=()) for report in last),
        )

    def hear_limits(self, *, over: bool) -> tuple[int, ...]:
        """Ranks whose owner's side allows no such pass any more, before it begins.

        Args:
            over: Whether ours is one.

        Raises:
            IntegrityError: ``untrue-report``, ``ranks-diverged``.
        """
        told = self._tell(bytes([over]))
        for rank, each in enumerate(told):
            if each not in (b"\0", b"\1"):
                self.refuse(
                    rank, "it says neither that it may begin nor that it may not"
                )
        return tuple(rank for rank, each in enumerate(told) if each == b"\1")

    def share_account(self, own: SignedAccount) -> tuple[SignedAccount, ...]:
        """What every rank signed of the run; not verified yet."""
        return tuple(each.account for each in self._share(SharedAccount(own)))

    def hear_receipt(self, own: bytes) -> bytes:
        """The run's receipt, of which rank 0 has the only one; when every rank is here.

        Raises:
            MalformedError: if it is too long.
        """
        told = self._tell(_LENGTH.pack(len(own)))
        length = _LENGTH.unpack(told[0])[0]
        if length > MAX_RUN_RECEIPT_BYTES:
            self.refuse(0, f"the run's receipt has an invalid length of {length} bytes")
        return self._hear_rank_0(own, length)

    def _contribution(self, before: TrainingState, epoch: int) -> Contribution:
        passes = [stops_of(plan, "train", epoch) for plan in self._plans]
        rows = [sum(stop.rows for stop in stops) for stops in passes]
        share = rows[self._group.rank] / sum(rows)
        after = self._trainer.joint
        summed = self._trainer.summed or None
        return Contribution(
            before, after, share, max_norm=self._max_norm, summed=summed,
            only_sums=self._group.world if self._sums is not None else 0,
        )  # fmt: skip

    def refuse(self, rank: int, why: str | SealiftError) -> NoReturn:
        """A rank said of itself what cannot be true, or must not be.

        Raises:
            IntegrityError: ``untrue-report``, with the rank's name.
        """
        what = f"{self._names[rank]} reports something about itself that cannot be true"
        raise IntegrityError(what, why=why, code=UNTRUE, ranks=(rank,))

    def accuse(self, ranks: Sequence[int], what: str) -> NoReturn:
        """One of these ranks lies, and nobody can say which.

        Raises:
            IntegrityError: ``ranks-diverged``, with all of them.
        """
        names = " and ".join(self._names[each] for each in ranks)
        raise IntegrityError(f"{names} {what}", code=DIVERGED, ranks=tuple(ranks))

    @contextmanager
    def blaming(self, rank: int) -> Iterator[None]:
        """While words of a rank are judged: what is wrong with them is its doing.

        Raises:
            IntegrityError: see ``refuse``.
        """
        try:
            yield
        except PeerError:
            raise
        except SealiftError as error:
            wrong = error
        else:
            return
        self.refuse(rank, wrong)

    def _agree(
        self,
        purpose: Purpose,
        reports: Sequence[PassReport],
        contribution: Contribution | None,
    ) -> None:
        if purpose == "prepare":
            total = self._add_reported(reports)
            if self._sums is not None and total:
                total = self._sums.add_statistics(total, self._trainer.statistics)
            self._trainer.take_sums(total)
            self._compare_states(b"")
        if contribution is None:
            return
        forms = [b"" if each.form is None else each.form.raw for each in reports]
        self._demand_alike(
            forms, "have other tensors, shapes or plain values", "states-differ"
        )
        heard = [ContentHasher() for _ in reports]
        for piece in contribution.pieces():
            if self._sums is not None:
                self._sums.add_piece(piece)
            else:
                how = Reduction.MAX if piece.counts else Reduction.SUM
                self._group.all_reduce(piece.numbers, how, Algorithm.TWO_PHASE)
            chunks = chunks_of(piece.numbers, self._group.world)
            for hasher, chunk in zip(heard, chunks, strict=True):
                hasher.update(chunk.data.cast("B"))
            contribution.put(piece)
        digest, odd = b"", None
        try:
            mean = contribution.result(max(each.steps for each in reports))
            self._trainer.join(mean)
            digest = _digest_of(self._trainer.joint)
        except (
            JobError
        ) as error:  # of this sum; another rank may have been told another
            odd = error
        self._compare_states(digest, [each.digest() for each in heard])
        if odd is not None:
            raise odd

    def _compare_states(self, joint: bytes, heard: Sequence[bytes] = ()) -> None:
        """All ranks go on from the same model, optimizer and statistics (rule N4).

        Args:
            joint: Digest of model and optimizer.
            heard: Digest of what each rank told; rank k told all others chunk k of each
                piece that was added up.
        """
        digests = self._tell(content_hash(joint, self._trainer.statistics))
        if heard and len(set(digests)) > 1:
            self._compare(heard)
        self._demand_alike(digests, "ended a pass in other states", DIVERGED)

    def _demand_alike(self, said: Sequence[bytes], what: str, code: str) -> None:
        """Nobody can say who is right; so both sides are named."""
        apart = [rank for rank, each in enumerate(said) if each != said[0]]
        if apart:
            alike = [rank for rank in range(len(said)) if rank not in apart]
            kind = JobError if code == "states-differ" else IntegrityError
            sides = [
                " and ".join(self._names[r] for r in side) for side in (apart, alike)
            ]
            ranks = (*apart, *alike)
            raise kind(f"{sides[0]} {what} than {sides[1]}", code=code, ranks=ranks)

    def _tell(self, words: bytes) -> list[bytes]:
        """What every rank says, and said to all alike; as long on every rank."""
        heard = self._group.exchange(words)
        self._compare([content_hash(each) for each in heard])
        return heard

    def _compare(self, told: Sequence[bytes]) -> None:
        """Find a rank that told two ranks two things.

        Args:
            told: Digest of what this rank heard from each, and itself told to all.

        Raises:
            IntegrityError: ``ranks-diverged``, with the rank; with the one that says so
                as well, where one of the two lies and nobody can say which.
        """
        own, names = b"".join(told), self._names
        unsure: tuple[int, ...] = ()
        for rank, theirs in enumerate(self._group.exchange(own)):
            for teller in range(self._group.world):
                place = slice(teller * HASH_BYTES, (teller + 1) * HASH_BYTES)
                if theirs[place] == own[place]:
                    continue
                if rank != teller != self._group.rank:
                    unsure = unsure or (teller, rank)
                    continue
                # What it told is known here, or what it was told.
                what = f"{names[rank]} sent or received another message than it reports"
                raise IntegrityError(what, code=DIVERGED, ranks=(rank,))
        if unsure:
            what = f"{names[unsure[0]]} sent two different messages, or {names[unsure[1]]} falsely reports it"
            raise IntegrityError(what, code=DIVERGED, ranks=unsure)

    def _share(self, own: Shared) -> list[Shared]:
        """What every rank says, however long it is."""
        words = encode(own)
        lengths = [
            _LENGTH.unpack(each)[0] for each in self._tell(_LENGTH.pack(len(words)))
        ]
        for rank, length in enumerate(lengths):
            if length > MAX_WORDS:
                self.refuse(
                    rank, f"its report has {length:,} bytes; the limit is {MAX_WORDS:,}"
                )
        said = self._tell(words.ljust(max(lengths), b"\0"))
        found = []
        for rank, (raw, length) in enumerate(zip(said, lengths, strict=True)):
            with self.blaming(rank):
                found.append(decode(type(own), raw[:length], max_bytes=MAX_WORDS))
        return found

    def most_steps(self, epoch: int) -> int:
        """Steps of the slice that makes most in an epoch."""
        return max(self._steps_made(epoch))

    def _steps_made(self, epoch: int) -> list[int]:
        return steps_of_slices(self._plans, epoch, self._trainer.settings, self._sync)

    def _demand_true(
        self,
        purpose: Purpose,
        epoch: int,
        reports: Sequence[PassReport],
        before: TrainingState | None,
    ) -> None:
        """Refuse what this rank can compute and another one says differently (rule O5)."""
        steps = [self._trainer.steps] * len(reports)
        if before is not None:
            steps = [before.step + made for made in self._steps_made(epoch)]
        for rank, (report, plan) in enumerate(zip(reports, self._plans, strict=True)):
            if report.steps != steps[rank]:
                self.refuse(
                    rank,
                    f"it reports {report.steps:,} optimizer steps; the plan has {steps[rank]:,}",
                )
            if (report.form is None) != (before is None):
                self.refuse(
                    rank, "it reports a model state where there is none, or the reverse"
                )
            if report.sums and purpose != "prepare":
                self.refuse(rank, "it reports sums of a pass that computes none")
            if [part.stop for part in report.parts] != stops_of(plan, purpose, epoch):
                self.refuse(rank, "it reports metrics that do not belong to its rows")
            if self._sums is not None:
                self._demand_only_layout(rank, report, reports)

    def _demand_only_layout(
        self, rank: int, report: PassReport, reports: Sequence[PassReport]
    ) -> None:
        """With ``sums = "only"`` a report has no number, and all ranks have the same sums."""
        if any(part.metrics for part in report.parts):
            self.refuse(
                rank, "it reports measures, and here they are only added up masked"
            )
        with self.blaming(rank):
            layout = layout_of(report.sums)
        if report.sums and layout != report.sums:
            self.refuse(rank, "it reports sums, and here they are only added up masked")
        if not report.sums and any(each.sums for each in reports):
            self.refuse(rank, "it has no sums of prepare, and other ranks have some")

    def _add_reported(self, reports: Sequence[PassReport]) -> bytes:
        """All ranks' sums together; the first one whose names or shapes differ is named."""
        total: list[bytes] = []
        for rank, report in enumerate(reports):
            if report.sums:
                with self.blaming(rank):
                    check_sums(report.sums)
                    total = [add_sums([*total, report.sums])]
        return total[0] if total else add_sums([])

    def _demand_all_well(self, reports: Sequence[PassReport]) -> None:
        """Say who failed, and what that is called; a peer's own words go nowhere."""
        # Who only heard of another's failure says less than that one.
        told = sorted(enumerate(reports), key=lambda each: each[1].code == FAILED)
        for rank, report in told:
            if not report.code:
                continue
            if not (known := meaning(report.code)):
                self.refuse(
                    rank,
                    "it reports an error by a name that this version does not know",
                )
            kind, code = (
                (JobError, report.code) if report.of_the_job else (PeerError, FAILED)
            )
            ended = group_ended(
                kind, [self._names[rank]], report.code, why=known, ranks=(rank,)
            )
            ended.code = code
            raise ended

    def _hear_rank_0(self, own: bytes, length: int) -> bytes:
        """What rank 0 tells all alike."""
        told = self._hear_state(own, length)
        return read_of(told, 0, length)

    def _hear_state(self, own: Content, length: int) -> Content:
        """The same by pieces; what is long lies in a memory file."""
        hasher, first = ContentHasher(), self._group.rank == 0
        told = own if first else Held.room(length)
        for start in range(0, max(1, length), PIECE_BYTES):
            room = np.zeros(min(PIECE_BYTES, length - start), np.uint8)
            if first:
                room[:] = np.frombuffer(read_of(own, start, len(room)), np.uint8)
            self._group.broadcast(room)
            hasher.update(room.data)
            if isinstance(told, Held) and not first:
                told.write(start, room.data)
        others = [bytes(HASH_BYTES)] * (self._group.world - 1)
        self._compare([hasher.digest(), *others])
        return told


def stops_of(plan: Sequence[VisitBatch], purpose: Purpose, epoch: int) -> list[Stop]:
    """What a pass works on."""
    groups = batches_of(plan, purpose, epoch)
    return [stop for group in groups for stop in group.stops]


def count_rows(
    plan: Sequence[VisitBatch],
    passes: Sequence[tuple[Purpose, int]],
    settings: TrainingSettings,
) -> int:
    """Rows that a slice trains on in these passes, as its trainer counts them."""
    return sum(
        settings.trained_rows(sum(stop.rows for stop in group.stops))
        for purpose, epoch in passes
        if purpose == "train"
        for group in batches_of(plan, purpose, epoch)
    )


def _digest_of(state: TrainingState) -> bytes:
    """Of everything that training goes on from."""
    head = _HEAD.pack(state.step, len(state.tensors), len(state.tree))
    hasher = ContentHasher()
    for piece in chain((head,), pieces_of(state.tensors), (state.tree,)):
        hasher.update(piece)
    return hasher.digest()


def wrong_sizes(sizes: Mapping[str, int]) -> str:
    """Why these are not the sizes of a job's states; empty if they may be.

    They are bounded before any of it is allocated.
    """
    if set(sizes) != set(_STATES):
        return "it announces states by unknown names"
    for name, most in _STATES.items():
        most = most or free_memory_bytes() // _ROOM_SHARE
        if not 0 <= sizes[name] <= most:
            return f"it announces {sizes[name]:,} bytes of the state {name!r}; the limit is {most:,}"
    return ""
