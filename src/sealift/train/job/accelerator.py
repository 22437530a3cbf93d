"""The accelerator: keys, leases, cargo and states are this process's alone.

It dials out, proves itself, collects one key from each owner's broker, and then does
what the orchestrator asks, within what the agreement allows. Visits load beside the
work; work is done here, one group at a time and in order. However this ends, every
visit's memory is scrubbed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import replace
from functools import partial
from typing import Final

from sealift.data.schedule.memory import free_memory_bytes
from sealift.data.schedule.visits import Stop, choose_buffer, plan_job
from sealift.errors import PeerError, PolicyError, SealiftError
from sealift.events import Sink, discard, emit
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.agreement.statements import SignedStatement, require_timely
from sealift.release.agreement.successors import find_speaker
from sealift.release.client import obey
from sealift.release.receipt import prove_instance
from sealift.session.directhost import DirectHost
from sealift.session.endpoint import Endpoint
from sealift.session.relay.client import RelayClient
from sealift.session.session import Session, connect
from sealift.train.job.checkpointfile import JobBinding
from sealift.train.job.checkpoints import CheckpointFolder, Checkpoints
from sealift.train.job.leasekeeping import LeaseKeeper, owners_leases
from sealift.train.job.releasedkeys import ReleasedKeys
from sealift.train.job.runningjob import (
    JobProgress,
    JobShapes,
    Restarts,
    RunningJob,
    check_cargo_rows,
    columns_of,
    open_training,
)
from sealift.train.job.settings import told_settings
from sealift.train.job.shareservers import ShareServers, demand_lasting
from sealift.train.loop.privacy import require_whole_tables
from sealift.train.output.handout import Handout
from sealift.train.plans import PlanName, require_planned
from sealift.train.worker.executor import RecipeExecutor
from sealift.train.worker.taskprocess import TaskLimits
from sealift.travel.accelerator.rules import VisitRules, check_cargo
from sealift.travel.accelerator.setup import (
    HostSetup,
    StartOverError,
)
from sealift.travel.accelerator.visits import HolderArrivals, HostedVisits, Orders
from sealift.travel.peers import ORCHESTRATOR, expect_orchestrator, meet_broker
from sealift.travel.settings import JobSettings, run_terms
from sealift.travel.visit.errors import SERVER_GONE
from sealift.travel.visit.lease import LeaseTerms
from sealift.travel.visit.memory import CPUPool
from sealift.travel.visit.messages import (
    Failed,
    Finished,
    FinishJob,
    OutputKept,
    StartJob,
    WorkVisits,
    receive_message,
    send_message,
)
from sealift.travel.visit.state import Clock

ORCHESTRATOR_WAIT_S: Final = 20.0
KEPT_WAIT_S: Final = 60.0  # for the orchestrator to have synced the output


def _nothing() -> None:
    """For a caller who need not know."""


_NEVER: Final = Restarts()


class Accelerator:
    """Serves one job.

    Args:
        relay: The connection to it.
        endpoint: With the attester and a fresh instance key.
        agreement: Verified.
        plan: Of the job.
        executor: Runs the recipe; started early, since torch takes its time.
        clock: Seconds that also count while the machine sleeps.
        direct_host: Where holders may connect; None is the relay only.
        sink: Where events go.
        state: The folder of the job's checkpoints; None keeps none.
        must_resume: Whether the job must not begin from the beginning.
        restarts: How often a job is taken up again whose state was found changed.
        shapes: What jobs look like that this process began.
    """

    def __init__(
        self,
        relay: RelayClient,
        endpoint: Endpoint,
        agreement: VerifiedAgreement,
        *,
        plan: PlanName,
        executor: RecipeExecutor,
        clock: Clock,
        direct_host: DirectHost | None = None,
        sink: Sink = discard,
        state: CheckpointFolder | None = None,
        must_resume: bool = False,
        restarts: Restarts = _NEVER,
        shapes: JobShapes | None = None,
    ) -> None:
        self._relay = relay
        self._endpoint = endpoint
        self._agreement = agreement
        self._plan = plan
        self._executor = executor
        self._clock = clock
        self._direct_host = direct_host
        self._sink = sink
        self._state = state
        self._must_resume = must_resume
        self._restarts = restarts
        self._shapes = shapes or JobShapes()
        self._lost: SealiftError | None = None
        self._lose: Callable[[SealiftError], None] = lambda error: None
        self._leases: LeaseKeeper | None = None
        self._hosting: HostedVisits | None = None
        self._dropping = threading.RLock()
        self._rules = VisitRules(max_visits=agreement.agreement.output_rule.max_visits)
        self._proof = prove_instance(endpoint, agreement)
        folder = state.path if state else None
        self._shares = ShareServers(endpoint, agreement, sink, folder)
        self._keys = ReleasedKeys(relay, endpoint, agreement, clock=clock, sink=sink)

    def serve(self, joined: Callable[[], None] = _nothing) -> None:
        """Dial the orchestrator and do the job.

        Args:
            joined: Called when the orchestrator has let us in.

        Raises:
            PeerError: if the orchestrator is gone.
            JobError: if the recipe does not load, or fails.
            IntegrityError: if a scrub did not hold.
        """
        circuit = self._relay.open(ORCHESTRATOR, wait_s=ORCHESTRATOR_WAIT_S)
        policy = expect_orchestrator(self._agreement)
        with connect(circuit, self._endpoint, policy) as control:
            joined()
            start = receive_message(control, StartJob, Finished, timeout_s=None)
            if isinstance(start, StartJob):
                try:
                    self._serve(control, start)
                finally:  # whoever dials again collects them again
                    self._keys.forget()
                    self._shares.close()

    def _serve(self, control: Session, start: StartJob) -> None:
        orders = Orders(control)
        with closing(self._keep_leases(orders)) as self._leases:
            try:
                job = self._open(start, self._leases, partial(_tell, control))
            except SealiftError as error:
                if isinstance(error, PeerError) and error.code != SERVER_GONE:
                    raise  # a broker went away: whoever comes next may find it
                send_message(control, Failed(error.code, str(error)))
                raise
            hosting = self._host(job, control, orders)
            try:
                send_message(control, job.ready())
                self._open_to_departures(hosting)
                orders.start(hosting)
                finish = self._work(job, control, hosting, orders)
            finally:
                with self._dropping:
                    self._hosting = None
                self._abandon(hosting)
        job.verify()
        try:
            job.hand_out(control, model=finish.model)
        except PolicyError:  # nothing will be done about it: the job begins again
            job.end()
            raise
        while not isinstance(orders.next_turn(KEPT_WAIT_S), OutputKept):
            pass
        job.end()

    def _open_to_departures(self, hosting: HostedVisits) -> None:
        """From here on the orchestrator is told who left; first, who has already."""
        with self._dropping:
            self._hosting = hosting
            for owner, error in self._keys.departed.items():
                hosting.drop(owner, error)

    def _work(
        self, job: RunningJob, control: Session, hosting: HostedVisits, orders: Orders
    ) -> FinishJob:
        while not isinstance(turn := orders.next_turn(), FinishJob):
            if not isinstance(turn, WorkVisits):
                continue
            try:
                if self._leases is not None:
                    self._leases.await_proven(hosting.owners(turn))
                hosting.work(turn)
                job.note(turn.position + 1)
            except StartOverError:
                raise
            except SealiftError as error:
                # What ended the worker tells less than the lease that was lost.
                error = self._lost or error
                with suppress(SealiftError):
                    send_message(control, Failed(error.code, str(error)))
                raise error from None
        return turn

    def _keep_leases(self, orders: Orders) -> LeaseKeeper:
        self._lose = partial(self._end_all, orders)
        agreement = self._agreement.agreement
        return LeaseKeeper(
            self._reach_broker,
            owners_leases(agreement, agreement.holders),
            clock=self._clock,
            lost=self._lose,
            left=self._drop,
            sink=self._sink,
        )

    def _end_all(self, orders: Orders, error: SealiftError) -> None:
        """Nothing here may go on: every key is forgotten, and the work stops."""
        self._lost = error
        orders.stop(error)
        self._keys.forget()
        self._executor.interrupt()

    def _drop(self, owner: str, error: SealiftError) -> None:
        """One owner's keys have ended: its rows are overwritten, and no more come."""
        with self._dropping:
            if owner in self._keys.departed:
                return
            self._keys.drop(owner, error)
            if self._leases is not None:
                self._leases.drop(owner)
            if self._hosting is not None:
                try:
                    self._hosting.drop(owner, error)
                except SealiftError as failure:  # a scrub did not hold
                    self._lose(failure)

    def _hear(self, signed: SignedStatement) -> None:
        """What a data owner came to say; raises if it counts for nothing here."""
        find_speaker(signed, self._agreement.line)
        require_timely(signed.body, self._agreement.equipment.clock())
        try:
            after = obey(self._agreement, (signed,))
        except PolicyError as error:  # the agreement has ended
            self._lose(error)
            return
        self._agreement = after
        for owner in after.backing.left & set(self._keys.owners):
            try:
                after.require_owner_signed(owner)
            except PolicyError as error:
                self._drop(owner, error)

    def _reach_broker(self, owner: str) -> AbstractContextManager[Session]:
        return meet_broker(self._relay, self._endpoint, self._agreement, owner)

    def _abandon(self, hosting: HostedVisits) -> None:
        given_up = hosting.abandon("stopped")
        if given_up.visits:
            emit(
                self._sink,
                "visit.abandoned",
                visits=given_up.visits,
                scrubbed_bytes=given_up.scrubbed_bytes,
                verified=given_up.verified,
            )

    def _open(
        self, start: StartJob, leases: LeaseKeeper, tell: Callable[[object], None]
    ) -> RunningJob:
        """What can be refused at home is refused before any key is asked for."""
        settings = told_settings(start.settings)
        agreement = self._agreement.agreement
        run = run_terms(start.job, self._plan, settings)
        agreement.training_rule.require(run)
        check_cargo(settings.travel, agreement.travel_rule)
        free = free_memory_bytes()
        choice = choose_buffer(agreement.resources, settings.visits, free)
        choice = self._shapes.hold(start.job, settings.shape, choice)
        travel = replace(settings.travel, buffer_bytes=choice.buffer_bytes)
        require_planned(replace(settings, travel=travel), agreement)
        if self._plan == "outsource":
            demand_lasting(choice, settings, agreement.resources)
        self._executor.limits = TaskLimits(work_s=settings.run.work_s)
        self._executor.compute_on(settings.run.device)
        training = open_training(
            agreement,
            self._executor,
            settings.training,
            products=self._shares.outsourced(settings, self._plan),
        )
        visits = plan_job(agreement.resources, settings.visits, choice.buffer_bytes)
        require_whole_tables(agreement, visits)
        training.rehearse(visits, agreement)
        keys = self._keys
        keys.collect(settings.run.brokers_s, held=leases.begin, run=run)
        job = RunningJob(
            name=start.job,
            settings=settings,
            level=self._proof.level,
            choice=choice,
            keys=keys,
            rule=agreement.output_rule,
            sandbox=self._executor.sandbox,
            training=training,
            handout=Handout(
                self._agreement,
                self._endpoint,
                start.job,
                self._rules,
                proof=self._proof,
                heads=keys.heads,
                plan=self._plan,
                settings=settings,
                sandbox=self._executor.sandbox,
                device=self._executor.device,
                report=self._executor.report,
                released=lambda: keys.releases,
            ),
            rules=self._rules,
            checkpoints=self._checkpoints(start.job, settings),
            restarts=self._restarts,
            tell=tell,
        )
        job.restore(agreement.resources)
        return job

    def _checkpoints(
        self, job: str, settings: JobSettings
    ) -> Checkpoints[JobProgress] | None:
        if self._state is None:
            return None
        return Checkpoints(
            self._state,
            self._keys.ledger(job),
            binding=JobBinding(
                job=job, agreement=self._agreement.digest, settings=settings.shape
            ),
            kind=JobProgress,
            every=settings.run.checkpoint_every,
            patience_s=settings.run.brokers_s,
            required=self._must_resume,
            sink=self._sink,
        )

    def _debit(self, wait_s: float, stop: Stop) -> None:
        """Have a private visit's cost debited by its owner's broker, on its disk.

        Raises:
            PolicyError: ``privacy-budget-spent``, ``too-many-visits``.
            PeerError: if the broker stays away.
        """
        budgets = self._agreement.agreement.budgets_of(stop.holder)
        if not budgets or stop.purpose != "train":
            return
        try:
            self._keys.count_pass(
                "train", {stop.holder: 1}, lambda _owner, away_s: away_s < wait_s
            )
        except PolicyError as error:  # what other jobs spent is for no orchestrator
            refused = PolicyError(error.what, fix=None, code=error.code)
        else:
            return
        raise refused

    def _host(self, job: RunningJob, control: Session, orders: Orders) -> HostedVisits:
        settings = job.settings
        meet = HolderArrivals(
            self._relay, self._endpoint, self._agreement, self._clock, heard=self._hear
        )
        setup = HostSetup(
            released=job.keys.released,
            terms=LeaseTerms.under(
                self._agreement.agreement,
                self._endpoint.instance.public_key,
                run_terms(job.name, self._plan, settings),
            ),
            heads=job.keys.heads,
            rules=self._rules,
            meet=lambda lease, left_s: meet(lease, min(left_s, settings.run.meet_s)),
            check=check_cargo_rows,
            work=job.work,
            sign=job.handout.receipt,
            make_pool=CPUPool,
            clock=self._clock,
            tell=job.tell,
            direct_host=self._direct_host,
            sink=self._sink,
            columns=columns_of,
            departed=job.keys.departed,
            cut=self._executor.cut,
            debit=partial(self._debit, settings.run.wait_s),
        )
        meet.start()
        # A group is worked on, another comes in, or a holder beside it is waited for:
        # no loaded cargo waits longer.
        idle_s = settings.run.work_s + settings.run.wait_s + setup.terms.longest_s
        return HostedVisits(
            setup,
            settings.travel,
            idle_s=idle_s,
            planned=job.planned(self._agreement.agreement.resources),
            send=lambda message: send_message(control, message),
            note=job.handout.note,
            stop=orders.stop,
        )


def _tell(control: Session, message: object) -> None:
    with suppress(SealiftError):
        send_message(control, message)
