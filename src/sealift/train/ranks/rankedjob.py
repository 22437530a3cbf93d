"""A job that a rank has opened: its slice's passes with all others, and what leaves of it.

Every use of rows has a receipt, kept where the rank runs: rows are read into a pool of
their own, which is scrubbed and read back before the next. What leaves passes the output
rule on each rank before another one hears it; rank 0 counts for all of them, which it can,
since every rank's slice follows from the agreement and the job alone. So do the rows that
each rank used: what one says differently is refused, and enters no checkpoint or receipt.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Final

from sealift.channel.device.device import SummingEngine
from sealift.codec import encode
from sealift.collective.group import SealedGroup
from sealift.collective.masked import MaskedSums
from sealift.collective.planner import plan_group
from sealift.data.schedule.memory import SharedBuffer
from sealift.data.schedule.visits import Stop, VisitBatch
from sealift.errors import (
    IntegrityError,
    JobError,
    MalformedError,
    PeerError,
    PolicyError,
    SealiftError,
)
from sealift.events import Sink, emit, metric_fields
from sealift.ids import Digest, VisitId
from sealift.release.agreement import Purpose
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.agreement.statements import CLOCKS_DIFFER_S
from sealift.release.log.entries import verify_head
from sealift.release.log.heads import demand_dated, log_owner
from sealift.session.session import Session
from sealift.train.job.checkpoints import Checkpoints
from sealift.train.job.leasekeeping import LeaseKeeper
from sealift.train.job.releasedkeys import OVER, VISITS_OVER, ReleasedKeys
from sealift.train.job.runningjob import JobProgress, check_cargo_rows
from sealift.train.loop.faults import RecipeError
from sealift.train.loop.measures import joint_numbers, withheld_numbers
from sealift.train.loop.slices import (
    Slice,
    StepGroup,
    plan_slice,
    resources_of_slice,
)
from sealift.train.loop.states import TrainerState
from sealift.train.loop.statistics import ALONE, Measured, let_out
from sealift.train.loop.trainer import Trainer
from sealift.train.output.accounts import (
    PackedUses,
    RunAccount,
    SignedAccount,
    TableUse,
    Uses,
    join_uses,
    verify_accounts,
    wrong_uses,
)
from sealift.train.output.handout import Handout, HeldOut
from sealift.train.output.runreceipt import NO_RELEASE, demand_of, demand_release
from sealift.train.plans.local import SealedTables
from sealift.train.ranks.endings import LOST
from sealift.train.ranks.rounds import (
    GroupRounds,
    PassReport,
    RankIntroduction,
    RankNumbers,
    count_rows,
    stops_of,
)
from sealift.train.ranks.sumsonly import SumsOnly, step_group
from sealift.train.worker.process import garbled
from sealift.travel.accelerator.rules import VisitRules
from sealift.travel.accelerator.setup import LoadedCargo, LoadedVisit, PhaseTimer
from sealift.travel.holder.jobs import Receipts, keep_run
from sealift.travel.holder.watches import Watcher
from sealift.travel.peers import say_ranks
from sealift.travel.settings import JobSettings
from sealift.travel.visit.memory import CPUPool, scrub
from sealift.travel.visit.messages import (
    JobReady,
    OutputKept,
    RoundEnded,
    receive_message,
    send_message,
)

CLOSE_S: Final = 60.0  # for all ranks to have kept the receipt
KEPT_WAIT_S: Final = 60.0  # for the orchestrator to have synced the output
Pass = tuple[Purpose, int]
_NO_QUARANTINE: Final = 1  # rows are opened by the reader of the rank's own files


@dataclass(slots=True, kw_only=True)
class RankedJob:
    """One rank's job.

    Attributes:
        rank: This one's number.
        settings: As the orchestrator asks, the same for all ranks.
        trainer: Of this slice's model.
        tables: The slice's rows.
        group: All ranks.
        device: Adds up gradients where they lie; None for this process.
        rules: Counts what all slices were used for.
        receipts: Where they are kept.
        checkpoints: Of rank 0; None keeps none.
        control: To the orchestrator.
        heartbeat: Tells the orchestrator that this process is alive.
    """

    rank: int
    settings: JobSettings
    agreement: VerifiedAgreement
    trainer: Trainer
    tables: SealedTables
    group: SealedGroup
    device: SummingEngine | None
    rules: VisitRules
    handout: Handout
    level: str
    keys: ReleasedKeys
    leases: LeaseKeeper
    receipts: Receipts
    checkpoints: Checkpoints[JobProgress] | None
    control: Session
    heartbeat: Watcher
    sandbox: str
    sink: Sink
    plans: Sequence[Sequence[VisitBatch]] = field(init=False)
    _slice: Slice = field(init=False)
    _beside: StepGroup | None = field(init=False, default=None)
    _masked: MaskedSums | None = field(init=False, default=None)
    _rounds: GroupRounds = field(init=False)
    _uses: list[Uses] = field(init=False, default_factory=list)
    _used: list[list[Uses]] = field(init=False)
    # Of this pass: what this rank's owner sees of its own rows, and what others may.
    _own: list[tuple[int, Mapping[str, float]]] = field(init=False)
    _shared: list[tuple[int, Mapping[str, float]]] = field(init=False)
    _rows_before: int = field(init=False, default=0)  # of passes before this start
    _seen: set[Digest] = field(
        init=False, default_factory=set
    )  # receipts, of all starts
    _done: list[Pass] = field(init=False, default_factory=list)  # in this start
    _counted: Pass | None = field(init=False, default=None)
    _refused: SealiftError | None = field(init=False, default=None)
    _best: HeldOut = field(init=False, default_factory=HeldOut)
    _planned: str = field(init=False, default="")  # how sums are made
    _cut: int = field(init=False, default=0)  # numbers beyond the bound, in this start
    _stopped_at: int | None = field(init=False, default=None)  # a limit's first round

    def __post_init__(self) -> None:
        agreement, settings = self.agreement.agreement, self.settings
        count = settings.slices.count
        self.plans = [plan_slice(agreement, settings, n) for n in range(count)]
        self._used = [[] for _plan in self.plans]
        self._slice = Slice(
            agreement, self.plans[self.rank], self.trainer, self._lend_rows
        )
        sums = None
        if settings.slices.sums == "only":
            self._masked = MaskedSums(self.group, settings.slices.encoding)
            sums = SumsOnly(self._masked, agreement.output_rule)
        self._rounds = GroupRounds(
            self.group,
            self.trainer,
            self.plans,
            self._work,
            max_norm=settings.slices.max_norm,
            sync=settings.slices.sync,
            names=say_ranks(agreement),
            sums=sums,
        )

    def work(self) -> None:
        """From the first pass, or the checkpoint, to the model.

        Raises:
            PeerError: ``rank-lost``, if another rank is gone.
            SealiftError: whatever ended the job, here or there.
        """
        with as_lost(), closing(self._masked) if self._masked else nullcontext():
            passes = list(self.settings.visits.passes())
            position = self._meet(passes)
            self._rows_before = self.trainer.rows_trained
            self._plan_group()
            send_message(self.control, self._ready(position))
            for done in range(position):
                self._begin(*passes[done])
                self._count(*passes[done])
            for number, (purpose, epoch) in enumerate(passes[position:], position + 1):
                began_s = time.monotonic()
                if not self._may_begin(purpose, epoch, last=number == len(passes)):
                    continue
                self._begin(purpose, epoch)
                reports = self._rounds.run(purpose, epoch)
                self._tell_cut(purpose, epoch)
                self._count(purpose, epoch)
                self._take_uses(purpose, epoch, reports)
                self._done.append((purpose, epoch))
                self._tell(purpose, epoch, reports, time.monotonic() - began_s)
                if self._stopped_at is None:  # else no position of the plan is reached
                    self._note(number)
        self._finish(position)
        self.heartbeat.stop()  # the orchestrator may go once every rank has all of it
        self._close_group()

    def _close_group(self) -> None:
        """Let the others have everything; who does not say so in time is not waited for.

        This rank's own work is over: it has model, receipt and all accounts.
        """
        watch = threading.Timer(CLOSE_S, self.group.abort)
        watch.daemon = True
        watch.start()
        try:
            with suppress(PeerError):
                self.group.close()
        finally:
            watch.cancel()

    def _finish(self, position: int) -> None:
        """All sign what they found; rank 0 writes the receipt, which all verify and keep.

        Args:
            position: Passes that were done before this start.

        Raises:
            RefusedError: what a rank signed, or the receipt, is not what we found.
        """
        self.trainer.verify()
        self._take_best()
        with as_lost():
            accounts = self._exchange_accounts(position)
        receipt = self._hand_out(accounts)
        with as_lost():
            receipt = self._rounds.hear_receipt(receipt)
        folder = self.receipts.folder.parent
        verified, job, settings = self.agreement, self.handout.job, self.settings
        held = demand_of(
            receipt,
            verified,
            costs=False,
            job=job,
            settings=settings,
            accounts=accounts,
        )
        path, new = keep_run(folder, held)
        if new:
            emit(self.sink, "receipt.kept", name=path.name)

    def _exchange_accounts(self, position: int) -> tuple[SignedAccount, ...]:
        """What each rank signs of the run, if all of them found what this one did.

        Raises:
            RefusedError: ``account-differs``, ``account-unsigned``; with that party.
        """
        uses = [join_uses(each) for each in self._used]
        if not position:
            self.handout.order_uses(uses)
        own = self.handout.account(
            self.trainer,
            uses[self.rank],
            model=self.settings.training.epochs > 0,
            passes_before=position,
        )
        accounts = self._rounds.share_account(own)
        for rank, each in enumerate(accounts):
            with self._rounds.blaming(rank):
                self._demand_account(rank, each.body, uses[rank], own.body)
        signers = self.handout.account_signers()
        verify_accounts(accounts, signers, own.body.result, self.agreement)
        return accounts

    def _demand_account(
        self, rank: int, account: RunAccount, uses: Uses, own: RunAccount
    ) -> None:
        """What a rank signs of itself is what every rank knows of it (rule O5).

        Else it would be found in the run's receipt, and whoever wrote that be named.

        Raises:
            PolicyError: ``account-differs``.
        """
        receipts = Digest.of(encode(uses.receipts))
        if (account.tables, account.receipts) != (uses.tables, receipts):
            raise _differs("another use of its rows than it reported before")
        if account.passes_before != own.passes_before:
            raise _differs("an account that begins at another checkpoint")
        if not set(account.released) <= set(own.released):
            raise _differs("a key release that no log contains")
        trained = self._rows_before + count_rows(
            self.plans[rank], self._done, self.settings.training
        )
        if account.rows != trained:
            raise _differs(
                f"an account of {account.rows:,} rows; the plan has {trained:,}"
            )
        if not -2 * CLOCKS_DIFFER_S <= account.at_s - own.at_s <= CLOCKS_DIFFER_S:
            raise _differs("a time that differs too much from this machine's clock")
        if rank and account.head is not None:  # rank 0's log may have grown since
            head = account.head.body
            shown = (each.body for each in self.keys.heads())
            if head not in shown:
                raise _differs("a log head that it did not show before")

    def _meet(self, passes: Sequence[tuple[Purpose, int]]) -> int:
        """All ranks show what they have; the pass that they go on with."""
        own = RankIntroduction(
            heads=self.keys.heads(),
            releases=self.keys.releases,
            position=self._restore(),
        )
        for head in own.heads:  # an owner's broker, and not who shows it to others
            demand_dated(head, self.agreement)
        seen = self._rounds.meet(own, passes)
        if seen[0].position and self.agreement.agreement.output_rule.baseline_alone:
            emit(self.sink, "baseline.lost")
        for rank, each in enumerate(seen):
            with self._rounds.blaming(rank):
                self._judge_releases(rank, each)
        others = (r for each in seen for r in each.releases)
        self.keys.releases = tuple(dict.fromkeys(others))
        return seen[0].position

    def _judge_releases(self, rank: int, present: RankIntroduction) -> None:
        """What a rank shows of owners' logs is theirs, and says of that rank what must be.

        Raises:
            RefusedError: if it is not; nothing of it is kept or shown to others.
        """
        agreement, wanted = self.agreement.agreement, set[str]()
        for resource in resources_of_slice(agreement, self.settings, rank):
            wanted.add(resource.name)
        instance = self.handout.instances[rank]
        found = {
            demand_release(each, self.agreement, (instance,), self.level)
            for each in present.releases
        }
        if found != wanted:
            missing = ", ".join(sorted(found ^ wanted))
            raise PolicyError(
                f"other key releases than those of its keys: {missing}", code=NO_RELEASE
            )
        heads = (*present.heads, *(each.head for each in present.releases))
        for head in heads:
            body = verify_head(head)
            owner = log_owner(head, self.agreement).name
            demand_dated(head, self.agreement)
            for shown in self.keys.heads():
                same = (shown.body.log, shown.body.size) == (body.log, body.size)
                if same and shown.body.root != body.root:
                    what = f"{owner} signed two different logs of {body.size} entries"
                    raise IntegrityError(what, code="log-forked")
        for head in heads:
            self.keys.heads.show(head)

    def _take_uses(
        self, purpose: Purpose, epoch: int, reports: Sequence[PassReport]
    ) -> None:
        """Take each rank's account of its rows as the plan has it; each receipt counts once.

        Raises:
            IntegrityError: ``untrue-report``, with the rank.
        """
        seen = self._seen
        for rank, report in enumerate(reports):
            uses, stops = report.uses, stops_of(self.plans[rank], purpose, epoch)
            planned = join_uses(self._plan_use(stop) for stop in stops)
            if why := wrong_uses(uses.tables, planned.tables):
                self._rounds.refuse(rank, why)
            fresh = set(uses.receipts) - seen
            if not len(stops) == len(fresh) == len(uses.receipts):
                self._rounds.refuse(
                    rank, "not exactly one receipt for each use of its rows"
                )
            for other in range(rank):
                if fresh.intersection(reports[other].uses.receipts):
                    self._rounds.accuse(
                        (other, rank), "reported the same receipt of rows"
                    )
            taken = Uses(planned.tables, uses.receipts)
            self.handout.use(taken)
            self._used[rank].append(taken)
        seen.update(receipt for each in reports for receipt in each.uses.receipts)

    def _plan_use(self, stop: Stop) -> Uses:
        """What a use of rows comes to, as everybody computes it."""
        nbytes = stop.rows * self.agreement.resource(stop.resource).row_bytes
        use = TableUse(
            resource=stop.resource,
            purpose=stop.purpose,
            visits=1,
            rows=stop.rows,
            cargo_bytes=nbytes,
            scrubbed_bytes=nbytes + _NO_QUARANTINE,
        )
        return Uses((use,))

    def _plan_group(self) -> None:
        """Measure with all others, and choose; the manifest says what and why."""
        planned = plan_group(self.group, self._model_bytes(), time.perf_counter)
        self._planned = self.handout.collectives = planned.why
        if self.settings.slices.sync == "step":
            nbytes = planned.bucket_bytes
            rule = self.agreement.agreement.training_rule
            self._beside = StepGroup(
                group=step_group(self.group, self._masked, rule),
                plans=self.plans,
                bucket_bytes=nbytes,
                device=None if rule.honest_ranks else self.device,
                units=rule.honest_ranks > 0,
            )

    def _model_bytes(self) -> int:
        """0 without a model, and before the sums that it is built on."""
        training = self.settings.training
        if not training.epochs or (training.prepare and not self.trainer.statistics):
            return 0
        return sum(len(each.content) for each in self.trainer.joint.model().values())

    def _ready(self, position: int) -> JobReady:
        return JobReady(
            self.level,
            len(self.keys.released),
            position,
            why=self.handout.collectives,
            sandbox=self.sandbox,
        )

    def _restore(self) -> int:
        """Of rank 0: the pass that its checkpoint goes on with."""
        found = self.checkpoints and self.checkpoints.restore()
        if not found:
            return 0
        if found.position > self._most_done:
            raise PolicyError(
                "the checkpoint that is kept has more epochs than this run",
                code="settings-differ",
            )
        progress = found.progress
        uses = progress.uses.unpack()
        self.handout.restore(progress.measured, progress.resumed + 1, uses)
        self._seen.update(uses.receipts)
        self._best = progress.best
        self.trainer.restore(TrainerState.from_parts(found.states))
        return found.position

    def _work(
        self, purpose: Purpose, epoch: int
    ) -> tuple[tuple[RankNumbers, ...], Uses]:
        """Our slice's pass; what others may hear of it."""
        agreement = self.agreement.agreement
        self._require_counted(purpose, epoch)
        if purpose != "prepare" and self.trainer.statistics:
            self.handout.check_totals()
        rule, parts, self._own, self._shared = agreement.output_rule, [], [], []
        may_see = agreement.rows_at_home or rule.audience == "everyone"
        # How many rows a number is of protects these rows, and not from their owner.
        home = replace(rule, metric_rows=1) if agreement.rows_at_home else rule
        try:
            most = self._rounds.most_steps(epoch) if purpose == "train" else 0
            for stop, found in self._slice.work(
                purpose, epoch, self._beside, most=most
            ):
                seen = let_out(found, home).metrics if may_see else {}
                self._own.append((stop.rows, seen))
                self._shared.append((stop.rows, let_out(found, rule).metrics))
                if purpose != "heldout":
                    emit(
                        self.sink,
                        "slice.worked",
                        purpose=purpose,
                        epoch=epoch,
                        rows=stop.rows,
                        holder=stop.holder if agreement.rows_at_home else "",
                        **seen,
                    )
                told = RankNumbers.of(stop, found, rule)
                if self._masked is not None:  # nobody hears them but in a sum
                    told = RankNumbers(stop=stop, metrics=dict(found.metrics))
                parts.append(told)
        except MalformedError as error:
            if error.code != "bad-row":
                raise
            failed = garbled()  # rows were checked: which would be the recipe's word
        except RecipeError as error:
            failed = self.handout.hide(error, self._tell_orchestrator)
        else:
            uses, self._uses = join_uses(self._uses), []
            return tuple(parts), uses
        raise failed  # out here: what is hidden is nobody's context

    def _may_begin(self, purpose: Purpose, epoch: int, *, last: bool) -> bool:
        """Have a pass counted by all owners' sides; whether all ranks may begin it.

        Where one of them allows no further round, no rank begins it: training ends there,
        and what was trained is measured in the last pass and handed out.

        Raises:
            PolicyError: ``too-many-visits``, where nothing was trained yet.
        """
        if self._stopped_at is not None and (purpose == "train" or not last):
            return False
        over: tuple[int, ...] = ()
        if self.agreement.agreement.training_rule.privacy is not None:
            # A budget that is over costs the other owners nothing: all are asked first.
            spent = self._is_over(purpose, epoch, begins=False)
            over = self._rounds.hear_limits(over=spent)
        over = over or self._rounds.hear_limits(over=self._is_over(purpose, epoch))
        if not over:
            return True
        people = say_ranks(self.agreement.agreement)
        ranks = " and ".join(people[each] for each in over)
        noun = "rounds" if purpose == "train" else "passes"
        what = f"an owner's broker does not allow {ranks} any more {noun}"
        if purpose == "prepare" or not (purpose == "heldout" or self.trainer.steps):
            raise self._refused or PolicyError(what, code=VISITS_OVER, ranks=over)
        if purpose == "train":
            self._stopped_at = epoch
        emit(self.sink, "job.limited", purpose=purpose, epoch=epoch, line=what)
        return False

    def _is_over(self, purpose: Purpose, epoch: int, *, begins: bool = True) -> bool:
        """Whether an owner's side allows no more; any other refusal is the pass's error."""
        self._counted = self._refused = None
        try:
            self.leases.await_proven(self.keys.owners)
            self._count_pass(purpose, epoch, begins=begins)
        except SealiftError as error:
            self._refused = error
            return error.code in OVER
        self._counted = (purpose, epoch) if begins else None
        return False

    def _require_counted(self, purpose: Purpose, epoch: int) -> None:
        """Demand that this very pass was counted, before a row of it is read."""
        counted, self._counted = self._counted, None
        if counted != (purpose, epoch):
            raise self._refused or PolicyError(
                "the pass was not counted by its owner's side", code="release-refused"
            )

    def _count_pass(self, purpose: Purpose, epoch: int, *, begins: bool = True) -> None:
        """At each owner's own broker, whatever was begun or begun again before."""
        stops = stops_of(self.plans[self.rank], purpose, epoch)
        visits = Counter(stop.holder for stop in stops)
        self.keys.count_pass(purpose, visits, self._waits, begins=begins)

    def _waits(self, owner: str, away_s: float) -> bool:
        """For a broker that is away: as long as its keys live, or for whoever was lost."""
        lives = self.leases.lives(owner)
        if lives is None:
            lives = away_s < self.settings.run.rejoin_s
        return lives and not self.heartbeat.over  # this start of the group goes on

    @contextmanager
    def _lend_rows(self, stop: Stop) -> Iterator[SharedBuffer]:
        """Rows for one use, which ends with a scrub that is read back, and a receipt.

        Raises:
            JobError: ``bad-row``, before anybody uses them.
        """
        timer = PhaseTimer(time.monotonic, lambda phase: None)
        resource = self.agreement.resource(stop.resource)
        pool = CPUPool(stop.rows * resource.row_bytes, _NO_QUARANTINE)
        visit = VisitId.generate()
        loaded = None
        try:
            with timer.phase("load"):
                pool.buffer[:] = self.tables.read(stop)
                _demand_rows(LoadedCargo(stop, resource, pool.shared))
            loaded = LoadedVisit(0, 0)  # a file of its own: nothing crossed
            with timer.phase("train"):
                yield pool.shared
        finally:
            with timer.phase("scrub"):
                scrubbed = scrub(pool.regions())
            pool.close()
            if loaded is not None:  # whatever became of the work: rows were used
                seconds = timer.seconds
                receipt = self.handout.receipt_for(
                    visit, stop, loaded, seconds, scrubbed
                )
                self.receipts.keep(receipt)
                self._uses.append(Uses.of(receipt))

    def _begin(self, purpose: Purpose, epoch: int) -> None:
        """Recipes see everybody's rows of a pass from here on.

        Raises:
            PolicyError: ``too-many-visits``, the same on every rank.
        """
        for plan in self.plans:
            for stop in stops_of(plan, purpose, epoch):
                self.rules.begin(stop)

    def _count(self, purpose: Purpose, epoch: int) -> None:
        """A pass was worked on by everybody."""
        for plan in self.plans:
            for stop in stops_of(plan, purpose, epoch):
                self.rules.count(stop)

    def _tell_cut(self, purpose: Purpose, epoch: int) -> None:
        """Say how many numbers of all ranks were beyond the agreed bound."""
        if self._masked is None:
            return
        self._cut += self._rounds.cut
        total = f"{self._cut:,} numbers were cut to the bound"
        self.handout.collectives = f"{self._planned}; sums only: {total}"
        if self._rounds.cut:
            emit(
                self.sink,
                "sums.cut",
                purpose=purpose,
                epoch=epoch,
                numbers=self._rounds.cut,
                bound=self.settings.slices.sum_bound,
            )

    def _tell(
        self,
        purpose: Purpose,
        epoch: int,
        reports: Sequence[PassReport],
        seconds: float,
    ) -> None:
        """Rank 0 tells what all ranks' numbers come to."""
        rule, parts = self.agreement.agreement.output_rule, []
        for rank, report in enumerate(reports):
            # Of a sum nobody knows whose part of it is wrong.
            blamed = nullcontext() if self._masked else self._rounds.blaming(rank)
            with blamed:
                parts += [self._judge_numbers(part) for part in report.parts]
        if purpose == "heldout":
            for part in parts:
                self.handout.heldout.keep(part.stop, part.metrics)
        if self._stopped_at is not None:  # measured after the last round that there was
            epoch = self._stopped_at - 1
        rows = sum(part.stop.rows for part in parts)
        pairs = [(part.stop.rows, part.metrics) for part in parts]
        joint = joint_numbers(pairs, rule.digits, whole=purpose == "train")
        if purpose == "heldout" and self.settings.training.measure:
            self._choose(epoch, joint)
        if purpose == "heldout" and self._own:
            self._compare(epoch, joint)
        if self.rank:
            return
        self._tell_orchestrator(
            RoundEnded(
                purpose=purpose, epoch=epoch, rows=rows, seconds=seconds, metrics=joint
            )
        )

    def _choose(self, epoch: int, joint: Mapping[str, float]) -> None:
        """Keep the best state, and end training if it is not bettered any more."""
        best = self.trainer.best
        if best.take(epoch, joint, self.trainer.joint):
            self._best = self.handout.heldout.measured()
        planned = self.settings.training.epochs
        if best.is_over and self._stopped_at is None and epoch + 1 < planned:
            self._stopped_at = epoch + 1
            line = f"{self.settings.training.measure} was best after epoch {best.epoch + 1}"
            emit(self.sink, "job.stopped", epoch=epoch, line=line)

    def _take_best(self) -> None:
        """Hand out the best state, with what was measured of it."""
        if (state := self.trainer.best.state) is not None:
            self.trainer.join(state)
            self.handout.heldout.restore(self._best)

    def _judge_numbers(self, part: RankNumbers) -> RankNumbers:
        """What may leave of numbers that a rank told, by the same rule.

        Raises:
            JobError: code ``measure-not-agreed``, for another owner's baseline as well.
        """
        agreement = self.agreement.agreement
        own = f"{ALONE}.{part.stop.holder}."
        if any(
            n.startswith(f"{ALONE}.") and not n.startswith(own) for n in part.metrics
        ):
            raise JobError(
                "it reports a baseline of another owner", code="measure-not-agreed"
            )
        found = Measured(part.stop.rows, part.metrics)
        return RankNumbers.of(part.stop, found, agreement.output_rule)

    def _compare(self, epoch: int, joint: Mapping[str, float]) -> None:
        """Tell this owner its own numbers beside everybody's, and beside those of alone."""
        rule = self.agreement.agreement.output_rule
        found = joint_numbers(self._own, rule.digits)
        shared = joint_numbers(self._shared, rule.digits)
        own = {name: each for name, each in found.items() if "." not in name}
        alone = {
            name.rpartition(".")[2]: each for name, each in found.items() if "." in name
        }
        everybody = {name: each for name, each in joint.items() if "." not in name}
        numbers = {"own": own, "joint": everybody, "alone": alone}
        emit(
            self.sink,
            "rank.measured",
            purpose="heldout",
            epoch=epoch,
            holder=self.agreement.agreement.data_owners[self.rank],
            rows=sum(rows for rows, _metrics in self._own),
            withheld=", ".join(withheld_numbers(rule.metrics, shared)),
            **metric_fields(
                {
                    f"{whose}.{name}": value
                    for whose, each in numbers.items()
                    for name, value in each.items()
                }
            ),
        )

    def _note(self, position: int) -> None:
        if self.checkpoints is None or position > self._most_done:
            return
        self.checkpoints.note(
            position,
            self._progress,
            lambda: self.trainer.snapshot().to_parts(),
            now=self.settings.training.keep_state and position == self._most_done,
        )

    @property
    def _most_done(self) -> int:
        """After so many passes there may be a last checkpoint.

        Where a job with more epochs may go on from it, it comes before a last measurement
        that this longer job would not make.
        """
        training, visits = self.settings.training, self.settings.visits
        if training.keep_state or training.continues:
            return visits.passes_kept
        return len(list(visits.passes()))

    def _progress(self) -> JobProgress:
        return JobProgress(
            buffer_bytes=0,
            rules=self.rules.progress(),
            measured=self.handout.heldout.measured(),
            uses=PackedUses.of(self.handout.uses()),
            resumed=self.handout.resumed,
            best=self._best,
        )

    def _hand_out(self, accounts: tuple[SignedAccount, ...]) -> bytes:
        """Of rank 0: the model and the manifest, until they are kept; the run's receipt."""
        if self.rank:
            return b""
        if self.checkpoints is not None:
            self.handout.checkpoints = self.checkpoints.counted
        model = self.settings.training.epochs > 0
        receipt = self.handout.send(
            self.control, self.trainer, model=model, accounts=accounts
        )
        receive_message(self.control, OutputKept, timeout_s=KEPT_WAIT_S)
        if self.checkpoints is not None:
            if self.settings.training.keep_state:
                self.checkpoints.keep()
            else:
                self.checkpoints.finish()
        return receipt

    def _tell_orchestrator(self, message: object) -> None:
        send_message(self.control, message)


def _demand_rows(cargo: LoadedCargo) -> None:
    try:
        check_cargo_rows(cargo)
    except MalformedError as error:  # the job's error, which every rank is told
        raise JobError(str(error), code=error.code) from None


def _differs(what: str) -> PolicyError:
    return PolicyError(f"it signed {what}", code="account-differs")


@contextmanager
def as_lost() -> Iterator[None]:
    """Of a group that broke it is enough to know that: all ranks begin again, or none."""
    try:
        yield
    except PeerError as error:
        raise PeerError(
            error.what, why=error.why, code=LOST, ranks=error.ranks
        ) from None
