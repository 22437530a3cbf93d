"""The process of a rank: what stays of it while connections and keys come and go.

A rank: an accelerator with a number, which trains one slice of a job beside others.

It dials the orchestrator, which is its relay, proves itself, collects the keys of its own
slice's tables from their owners' brokers, meets the other ranks, and goes through the
job's passes with them (``rounds``). Rows come from sealed files on its own disk. Rank 0
keeps the checkpoint and hands out the model; all ranks hold the same one. Whatever ends a
rank ends the group, and all of them begin again with fresh keys, or none does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from sealift.attest.evidence import Attester, measuring
from sealift.channel.cuda.bindings import ordinal_of
from sealift.channel.cuda.opening import open_cuda
from sealift.channel.device.device import SummingEngine
from sealift.collective.group import SealedGroup
from sealift.collective.meeting import Charter, GroupMeeting
from sealift.crypto.sign import PublicKey
from sealift.data.schedule.visits import BufferChoice
from sealift.errors import (
    JobError,
    PeerError,
    PolicyError,
    SealiftError,
    UnavailableError,
    UsageError,
    meaning,
)
from sealift.events import Sink, emit
from sealift.release.agreement import Agreement
from sealift.release.agreement.code import load_assets, load_bundle
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.agreement.training import RunTerms
from sealift.release.client import BrokerRefusedError
from sealift.release.files import make_folder
from sealift.release.receipt import prove_instance
from sealift.session.direct import PathDialler
from sealift.session.directhost import DirectHost
from sealift.session.endpoint import Endpoint
from sealift.session.relay.client import RelayClient
from sealift.session.relay.envelope import prover
from sealift.session.session import Session, connect
from sealift.train.job.checkpointfile import JobBinding
from sealift.train.job.checkpoints import CheckpointFolder, Checkpoints
from sealift.train.job.leasekeeping import LeaseKeeper, owners_leases
from sealift.train.job.releasedkeys import ReleasedKeys, enrol_where_missing
from sealift.train.job.rolesetup import RoleSetup
from sealift.train.job.runningjob import JobProgress, JobShapes, open_training
from sealift.train.job.settings import told_settings
from sealift.train.loop.faults import RecipeError
from sealift.train.loop.slices import resources_of_slice
from sealift.train.loop.stepsums import FAILED
from sealift.train.output.handout import Handout
from sealift.train.plans import PLANS
from sealift.train.plans.local import SealedTables, opened_tables
from sealift.train.ranks.endings import LOST, ON_AGAIN, group_ended
from sealift.train.ranks.rankedjob import RankedJob, as_lost
from sealift.train.sandbox import kernel as limits
from sealift.train.worker.executor import RecipeExecutor
from sealift.train.worker.taskprocess import TaskLimits
from sealift.travel.accelerator.rules import VisitRules
from sealift.travel.holder.jobs import Receipts
from sealift.travel.holder.watches import Watcher
from sealift.travel.peers import (
    ORCHESTRATOR,
    accelerator_names,
    expect_accelerator,
    expect_orchestrator,
    meet_broker,
    say_ranks,
)
from sealift.travel.settings import JobSettings, require_own_run, run_terms
from sealift.travel.visit.messages import (
    Alive,
    Failed,
    FailedError,
    Finished,
    StartJob,
    receive_message,
    send_message,
)
from sealift.travel.visit.state import Clock

ORCHESTRATOR_WAIT_S: Final = 20.0
BEAT_S: Final = 5.0
WORD_S: Final = 60.0  # it first waits for every rank's own word
UNHEARD: Final = "the connection to the host's machine was lost"
ON_HOST: Final = "If the host's command does not run any more, the host starts it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlaces:
    """What a rank has of its machine.

    Attributes:
        sealed: Folders with sealed files and cards.
        receipts: Gets one for each use of rows.
        state: Of the job's checkpoints, which rank 0 keeps.
        direct_host: Where later ranks may connect; None is the relay only.
        dialler: Which places of earlier ranks may be dialled.
    """

    sealed: Sequence[Path]
    receipts: Receipts
    state: CheckpointFolder
    direct_host: DirectHost | None
    dialler: PathDialler


class Rank:
    """Serves one job, over one connection.

    Args:
        relay: The connection to the orchestrator's port.
        endpoint: With the attester and a fresh instance key; its name says which rank.
        agreement: Verified; names the group.
        executor: Runs the recipe.
        places: What it has of its machine.
        clock: Seconds that also count while the machine sleeps.
        must_resume: Whether the job must not begin from the beginning.
        shapes: What jobs look like that this process began.
        run: What this rank's own job file sets.
        sink: Where events go.
    """

    def __init__(
        self,
        relay: RelayClient,
        endpoint: Endpoint,
        agreement: VerifiedAgreement,
        *,
        executor: RecipeExecutor,
        places: RankPlaces,
        clock: Clock,
        must_resume: bool,
        shapes: JobShapes,
        run: RunTerms,
        sink: Sink,
    ) -> None:
        self._relay = relay
        self._endpoint = endpoint
        self._agreement = agreement
        self._executor = executor
        self._places = places
        self._clock = clock
        self._must_resume = must_resume
        self._shapes, self._run = shapes, run
        self._sink = sink
        self._names = accelerator_names(agreement.agreement.ranks)
        self._number = self._names.index(endpoint.name)
        self._proof = prove_instance(endpoint, agreement)
        self._group: SealedGroup | None = None
        self._lost: SealiftError | None = None

    def serve(self, joined: Callable[[], None]) -> None:
        """Dial the orchestrator and do the job.

        Args:
            joined: Called when the orchestrator has let us in.

        Raises:
            PeerError: if the orchestrator, or another rank, is gone.
            JobError: if the recipe failed, here or on another rank.
        """
        circuit = self._relay.open(ORCHESTRATOR, wait_s=ORCHESTRATOR_WAIT_S)
        with connect(
            circuit, self._endpoint, expect_orchestrator(self._agreement)
        ) as control:
            joined()
            try:
                start = receive_message(control, StartJob, Finished, timeout_s=None)
            except PeerError as error:
                if error.code == "session-closed":  # with no word of an end: it is cut
                    error.code = "session-truncated"
                if isinstance(error, FailedError):  # nobody is waited for any more
                    raise self._hear_end(control, error) from None
                raise
            if isinstance(start, StartJob):
                self._serve(control, start)
            elif start.outcome != "finished":
                raise JobError(
                    "the host's machine ended the job",
                    why="it named no party",
                    fix=f"Ask the host what its screen says. {ON_AGAIN}",
                )

    def _serve(self, control: Session, start: StartJob) -> None:
        with ExitStack() as stack:
            heartbeat = Watcher(
                "heartbeat",
                partial(self._beat, control),
                broken=lambda error: self._leave(
                    PeerError(
                        "this rank cannot report to the orchestrator that it is alive",
                        why=error,
                    )
                ),
                sink=self._sink,
            )
            stack.callback(heartbeat.stop, BEAT_S)  # the next task is not its to cut
            heartbeat.start()
            try:
                settings = agreed_settings(
                    start, self._agreement.agreement, self._shapes, self._run
                )
                job = self._open(stack, control, heartbeat, start.job, settings)
                job.work()
            except SealiftError as error:
                error = self._lost or error
                if not isinstance(error, FailedError):
                    with suppress(SealiftError):
                        send_message(control, self._failure(error))
                # Whoever ended this start here has heard the last word already.
                raise self._lost or self._hear_end(control, error) from None

    def _hear_end(self, control: Session, error: SealiftError) -> SealiftError:
        """Of a group that broke: whom the orchestrator names, if it says so."""
        failed = None
        if isinstance(error, FailedError):
            failed = error.failed
        elif error.code == LOST:
            try:
                failed = receive_message(control, Failed, timeout_s=WORD_S)
            except SealiftError as gone:  # it ended itself, and with it all paths
                if isinstance(gone, PeerError) and gone.code != "peer-timeout":
                    error = PeerError(UNHEARD, why=gone, fix=ON_HOST, code=LOST)
        if failed is None:
            return error
        people = say_ranks(self._agreement.agreement)
        named = [people[n] for n in failed.ranks if 0 <= n < len(people)]
        ended = group_ended(PeerError, named, failed.code, ranks=failed.ranks)
        ended.what = f"the host's machine says that {ended.what}"  # which may be untrue
        return ended

    def _failure(self, error: SealiftError) -> Failed:
        """What the orchestrator hears: a name of the catalogue, and whom it is about.

        A recipe's line goes as well, where the agreement lets a recipe's text out.
        """
        code = error.code
        if isinstance(error, BrokerRefusedError):  # its own owner's: it knows the cause
            code = error.rule
        code = code if meaning(code) else FAILED
        text = self._agreement.agreement.output_rule.recipe_text
        line = str(error) if text and isinstance(error, RecipeError) else ""
        return Failed(code, line, error.ranks)

    def _beat(self, control: Session) -> float | None:
        """Say that we are alive; whoever cannot be told has ended the group."""
        try:
            send_message(control, Alive())
        except PeerError as error:
            gone = PeerError(UNHEARD, why=error, code=LOST)
            # Before its connection is cut: what the orchestrator said last is read.
            self._leave(self._hear_end(control, gone))
            return None
        return BEAT_S

    def _leave(self, error: SealiftError) -> None:
        """End this start of the group here; this process may begin the next one."""
        self._lost = error
        if self._group is not None:
            self._group.abort()
        else:  # nor wait for brokers, or for ranks that are still met
            self._relay.close()
        self._executor.cut()

    def _open(
        self,
        stack: ExitStack,
        control: Session,
        heartbeat: Watcher,
        job: str,
        settings: JobSettings,
    ) -> RankedJob:
        """What can be refused at home is refused before any key is asked for."""
        agreement, number = self._agreement.agreement, self._number
        self._executor.limits = TaskLimits(work_s=settings.run.work_s)
        self._executor.compute_on(settings.run.device, rank=number)
        device = self._open_device(stack, settings)
        training = open_training(
            agreement, self._executor, settings.training, number=number
        )
        resources = resources_of_slice(agreement, settings, number)
        owners = tuple(dict.fromkeys(each.owner for each in resources))
        keys = ReleasedKeys(
            self._relay,
            self._endpoint,
            self._agreement,
            clock=self._clock,
            sink=self._sink,
            owners=owners,
        )
        stack.callback(keys.forget)
        leases = stack.enter_context(closing(self._keep_leases(owners)))
        keys.collect(
            settings.run.brokers_s,
            held=leases.begin,
            run=run_terms(job, "ddp", settings),
        )
        self._require_keys(keys, owners)
        tables = self._tables(keys, stack)
        group, ranks = self._meet(stack, job, settings)
        if device is not None:
            group.use_device(device)
        rules = VisitRules(max_visits=agreement.output_rule.max_visits)
        handout = Handout(
            self._agreement,
            self._endpoint,
            job,
            rules,
            proof=self._proof,
            heads=keys.heads,
            plan="ddp",
            settings=settings,
            sandbox=self._executor.sandbox,
            device=self._executor.device,
            report=self._executor.report,
            ranks=ranks,
            released=lambda: keys.releases,
        )
        return RankedJob(
            rank=number,
            settings=settings,
            agreement=self._agreement,
            control=control,
            heartbeat=heartbeat,
            trainer=training,
            tables=tables,
            group=group,
            device=device,
            rules=rules,
            handout=handout,
            level=self._proof.level,
            keys=keys,
            leases=leases,
            receipts=self._places.receipts,
            checkpoints=self._checkpoints(job, settings, keys),
            sandbox=self._executor.sandbox,
            sink=self._sink,
        )

    def _open_device(
        self, stack: ExitStack, settings: JobSettings
    ) -> SummingEngine | None:
        """The recipe's GPU, where gradients are added up in every step and lie on one.

        It passed its self-test. Without it they are copied to this process, which adds
        them up, with the same bits; which of the two it is, is said.
        """
        gpu = self._executor.gpu
        if gpu is None or settings.slices.sync != "step":
            return None
        with ExitStack() as made:
            try:
                engine = open_cuda(ordinal_of(gpu.uuid), sink=self._sink)
                made.callback(engine.close)
                self._executor.try_sharing(engine)
            except UnavailableError as error:
                emit(self._sink, "gradients.summed", where=f"on the processor: {error}")
                return None
            made.callback(self._executor.dismiss)  # it may share memory with the engine
            stack.push(made.pop_all())
        emit(self._sink, "gradients.summed", where=f"on {engine.facts.name}")
        return engine

    def _require_keys(self, keys: ReleasedKeys, owners: Sequence[str]) -> None:
        """A rank without its rows cannot take part."""
        for owner, error in keys.departed.items():
            raise PolicyError(
                f"{owner} does not take part in this run", why=error, code=error.code
            )
        for owner in owners:
            if owner not in keys.owners:
                raise PeerError(
                    f"the broker of {owner} released no key", code="key-missing"
                )

    def _tables(self, keys: ReleasedKeys, stack: ExitStack) -> SealedTables:
        released = keys.released
        tables = opened_tables(
            self._agreement.agreement,
            self._places.sealed,
            {name: each.data_key for name, each in released.items()},
            [each.resource for each in released.values()],
        )
        return stack.enter_context(tables)

    def _meet(
        self, stack: ExitStack, job: str, settings: JobSettings
    ) -> tuple[SealedGroup, tuple[PublicKey, ...]]:
        meeting = GroupMeeting(
            Charter(
                agreement=self._agreement.digest,
                job=job,
                shape=settings.shape,
                names=self._names,
            ),
            self._endpoint,
            self._relay,
            partial(expect_accelerator, self._agreement),
            host=self._places.direct_host,
            dialler=self._places.dialler,
            timeout_s=settings.run.work_s,
        )
        with as_lost():
            self._group = meeting.meet()
        stack.push(self._group)
        if self._lost is not None:  # meanwhile
            raise self._lost
        demand_one_level(self._proof.level, meeting.levels)
        paths = " ".join(f"{name}: {path}" for name, path in meeting.paths.items())
        emit(self._sink, "group.met", ranks=len(self._names), paths=paths)
        return self._group, meeting.instances

    def _keep_leases(self, owners: Sequence[str]) -> LeaseKeeper:
        def left(owner: str, error: SealiftError) -> None:
            self._end(error)

        return LeaseKeeper(
            lambda owner: meet_broker(
                self._relay, self._endpoint, self._agreement, owner
            ),
            owners_leases(self._agreement.agreement, owners),
            clock=self._clock,
            lost=self._end,
            left=left,
            sink=self._sink,
        )

    def _end(self, error: SealiftError) -> None:
        """The rank's keys have ended: nothing here goes on, nor does the group."""
        self._lost = error
        if self._group is not None:
            self._group.abort()
        self._executor.interrupt()

    def _checkpoints(
        self, job: str, settings: JobSettings, keys: ReleasedKeys
    ) -> Checkpoints[JobProgress] | None:
        if self._number:
            return None
        first = settings.training.checkpoints_of(job)
        return Checkpoints(
            self._places.state,
            keys.ledger(first),
            binding=JobBinding(
                job=first,
                agreement=self._agreement.digest,
                settings=settings.checkpoint_shape,
            ),
            kind=JobProgress,
            every=settings.run.checkpoint_every,
            patience_s=settings.run.brokers_s,
            required=self._must_resume or bool(settings.training.continues),
            sink=self._sink,
        )


def agreed_settings(
    start: StartJob, agreement: Agreement, shapes: JobShapes, own: RunTerms
) -> JobSettings:
    """What the orchestrator asks for, which it is not trusted with (rules H8, N5).

    Args:
        start: Its word.
        agreement: Says what any job may set.
        shapes: Of the jobs that this process began.
        own: What the job file sets that this rank was started with: its owner allowed
            that run, and no other one that the agreement's ranges hold.

    Raises:
        MalformedError: if it makes no sense.
        PolicyError: if it is not agreed; ``other-shape``.
        JobError: ``another-run``.
        UsageError: if there is nothing to make of it.
    """
    settings = told_settings(start.settings)
    PLANS["ddp"].check_terms(settings, agreement)
    require_own_run(run_terms(start.job, "ddp", settings), own)
    choice = BufferChoice(settings.travel.asked_bytes, "the job sets this size")
    shapes.hold(start.job, settings.shape, choice)
    return settings


def demand_one_level(own: str, others: Sequence[str]) -> None:
    """Raises ``levels-differ`` unless the evidence of all others proves our level."""
    for level in others:
        if level != own:
            raise JobError(
                "the ranks have different assurance levels",
                why=f"this rank has {own}; another one has {level or 'none'}",
                code="levels-differ",
            )


def rank_of(setup: RoleSetup, said: int | None) -> int:
    """Which rank this process is.

    Args:
        setup: Of the role.
        said: By whoever starts it; where rows stay at home the identity says it.

    Raises:
        PolicyError: ``not-a-data-owner``.
        UsageError: ``bad-world``, if it is said wrongly, or not at all.
    """
    agreement = setup.agreement.agreement
    if agreement.rows_at_home:
        owner = setup.identity.name
        if owner not in agreement.data_owners:
            raise PolicyError(
                f"{owner} has no training rows in this agreement",
                code="not-a-data-owner",
            )
        own = agreement.data_owners.index(owner)
        if said is not None and said != own:
            raise UsageError(
                f"the accelerator of {owner} is rank {own}, not rank {said}",
                code="bad-world",
            )
        return own
    if said is None or not 0 <= said < agreement.ranks:
        raise UsageError(
            f"rank {said} is not one of the {agreement.ranks} ranks"
            if said is not None
            else "the rank of this process is not given",
            fix=f"Give --rank, from 0 to {agreement.ranks - 1}",
            code="bad-world",
        )
    return said


def torchrun_rank(setup: RoleSetup, environment: Mapping[str, str]) -> int:
    """Which rank this process is, of those that torchrun started.

    Where rows stay at home it is the owner's, whatever number torchrun gave to it.

    Raises:
        UsageError: ``bad-world``, if they are not as many as agreed; and see ``rank_of``.
    """
    agreement = setup.agreement.agreement
    said, size = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
    if not said.isdecimal() or not size.isdecimal():
        raise UsageError(
            "RANK and WORLD_SIZE are not numbers",
            fix="Start the ranks with torchrun -m sealift.train",
            code="bad-world",
        )
    if int(size) != agreement.ranks:
        raise UsageError(
            f"torchrun started {int(size)} ranks; the agreement names "
            f"{agreement.ranks}",
            code="bad-world",
        )
    return rank_of(setup, None if agreement.rows_at_home else int(said))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProcess:
    """What stays when a connection is lost; keys and states do not."""

    setup: RoleSetup
    rank: int
    attester: Attester
    executor: RecipeExecutor
    places: RankPlaces
    clock: Clock
    must_resume: bool
    shapes: JobShapes = field(default_factory=JobShapes)

    def serve(self, dial_s: float, joined: Callable[[], None]) -> None:
        """Serve the job over one connection, with an instance key of its own.

        Raises:
            See ``Rank.serve``.
        """
        setup, endpoint = self.setup, self._endpoint()
        prove = None
        if endpoint.identity is not None:
            prove = prover(endpoint.identity, setup.agreement.digest, endpoint.name)
        with RelayClient.dial(setup.address, endpoint.name, dial_s, prove) as relay:
            enrol_where_missing(
                relay,
                endpoint,
                setup.agreement,
                wait_s=setup.job.run.gather_s,
                sink=setup.sink,
            )
            Rank(
                relay,
                endpoint,
                setup.agreement,
                executor=self.executor,
                places=self.places,
                clock=self.clock,
                must_resume=self.must_resume,
                shapes=self.shapes,
                run=setup.run,
                sink=setup.sink,
            ).serve(joined)

    def _endpoint(self) -> Endpoint:
        """With its owner's identity, where that is part of the proof."""
        agreement = self.setup.agreement.agreement
        name = accelerator_names(agreement.ranks)[self.rank]
        endpoint = self.setup.attested(name, self.attester)
        if agreement.rows_at_home:
            return replace(endpoint, identity=self.setup.identity)
        return endpoint


@contextmanager
def open_rank(
    setup: RoleSetup,
    rank: int,
    attester: Attester,
    *,
    sealed: Sequence[Path],
    receipts: Path,
    state: Path,
    direct_host: DirectHost | None,
    dialler: PathDialler,
    clock: Clock,
    must_resume: bool,
    tell: Callable[[str], None],
) -> Iterator[RankProcess]:
    """A rank that is ready to dial.

    Args:
        setup: Of the role.
        rank: Its number.
        attester: Of its host.
        sealed: Folders with sealed files and cards.
        receipts: Folder that gets one for each use of rows.
        state: Folder of checkpoints, which rank 0 keeps.
        direct_host: Where later ranks may connect.
        dialler: Which places of earlier ranks may be dialled.
        clock: Seconds that also count while the machine sleeps.
        must_resume: Whether the job must not begin from the beginning.
        tell: Gets lines: what keeps recipes in, and where they compute.

    Raises:
        SealiftError: if anything of it cannot be had.
    """
    agreement = setup.agreement.agreement
    files = load_bundle(Path(setup.job.bundle), agreement.code)
    limits.hide_memory()
    make_folder(receipts)
    text = sys.stderr if agreement.output_rule.recipe_text else None
    with (
        CheckpointFolder(state / f"rank-{rank}") as folder,
        RecipeExecutor(
            files,
            agreement.code.entry,
            text=text,
            tell=tell,
            measure=measuring(attester),
            assets=load_assets(Path(setup.job.bundle), agreement.code.files),
        ) as executor,
    ):
        yield RankProcess(
            setup=setup,
            rank=rank,
            attester=attester,
            executor=executor,
            places=RankPlaces(
                sealed=sealed,
                receipts=Receipts(receipts),
                state=folder,
                direct_host=direct_host,
                dialler=dialler,
            ),
            clock=clock,
            must_resume=must_resume,
        )
