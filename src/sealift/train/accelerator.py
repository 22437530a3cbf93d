"""The accelerator: model, optimizer and cargo live in this process and nowhere else.

It dials out, proves itself, collects one key from each owner's broker, and then does
what the orchestrator asks, within what the agreement allows. Orders come one at a time:
a visit is over, scrubbed and read back before the next order is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import torch

from sealift.channel.transport import peer_timeout
from sealift.codec import decode
from sealift.errors import JobError, PeerError, SealiftError
from sealift.events import Sink, discard, emit
from sealift.ids import Role
from sealift.release.audit import SignedTreeHead
from sealift.release.collect import collect_release, request_head
from sealift.release.signed import VerifiedAgreement
from sealift.session.circuit import Circuit
from sealift.session.endpoint import Endpoint
from sealift.session.establish import accept, connect
from sealift.session.link import Link
from sealift.session.session import Session
from sealift.train.containment import Containment
from sealift.train.handout import Handout
from sealift.train.joint import Cargo, JointTraining
from sealift.train.messages import AcceleratorSettings
from sealift.train.output import let_out
from sealift.train.receipts import ReceiptWriter, prove_instance
from sealift.train.recipe import Recipe
from sealift.train.training import LoopSettings
from sealift.travel.accelerator import (
    HostedVisit,
    HostSetup,
    LoadedCargo,
    ReleasedResource,
)
from sealift.travel.capacity import free_memory_bytes
from sealift.travel.dock import Dock
from sealift.travel.lease import Lease, LeaseTerms
from sealift.travel.messages import (
    Failed,
    FinishJob,
    Granted,
    JobReady,
    OfferVisit,
    StartJob,
    VisitPhase,
    Withdrawn,
    receive_message,
    send_message,
)
from sealift.travel.peers import (
    ORCHESTRATOR,
    expect_broker,
    expect_holder,
    expect_orchestrator,
    link_name,
)
from sealift.travel.pool import CPUPool
from sealift.travel.rules import VisitRules, check_cargo
from sealift.travel.sizing import choose_buffer
from sealift.travel.state import Clock

ORCHESTRATOR_WAIT_S: Final = 20.0
GRANT_WAIT_S: Final = 120.0
TIMEOUT: Final = peer_timeout().code


class Accelerator:
    """Serves one job.

    Args:
        link: To the relay.
        endpoint: With the attester and a fresh instance key.
        agreement: Verified.
        files: The code bundle, measured against the agreement.
        clock: Seconds that also count while the machine sleeps.
        dock: Where holders may come alongside; None is the relay only.
        sink: Where events go.
    """

    def __init__(
        self,
        link: Link,
        endpoint: Endpoint,
        agreement: VerifiedAgreement,
        *,
        files: Mapping[str, bytes],
        clock: Clock,
        dock: Dock | None = None,
        sink: Sink = discard,
    ) -> None:
        self._link = link
        self._endpoint = endpoint
        self._agreement = agreement
        self._files = files
        self._clock = clock
        self._dock = dock
        self._sink = sink
        rule = agreement.agreement.output
        self._rules = VisitRules(max_visits=rule.max_visits)
        self._proof = prove_instance(endpoint, agreement)
        self._visit: HostedVisit | None = None

    def serve(self) -> None:
        """Dial the orchestrator and do the job.

        Raises:
            PeerError: if the orchestrator is gone.
            JobError: if the recipe does not load.
            IntegrityError: if a scrub did not hold.
        """
        circuit = self._link.open(ORCHESTRATOR, wait_s=ORCHESTRATOR_WAIT_S)
        policy = expect_orchestrator(self._agreement)
        with connect(circuit, self._endpoint, policy) as control:
            try:
                self._serve(control)
            finally:
                self._abandon()

    def _serve(self, control: Session) -> None:
        start = receive_message(control, StartJob, timeout_s=None)
        try:
            setup, training = self._prepare(start, control)
        except SealiftError as error:
            send_message(control, Failed(error.code, str(error)))
            raise
        send_message(control, self._ready(setup))
        handout = Handout(
            self._agreement,
            self._endpoint,
            start.job,
            self._rules,
            proof=self._proof,
            heads=setup.heads,
        )
        while True:
            order = receive_message(control, OfferVisit, FinishJob, timeout_s=None)
            if isinstance(order, FinishJob):
                handout.send(control, training)
                return
            self._run_visit(order, setup, control, handout)

    def _abandon(self) -> None:
        if self._visit is not None:
            scrubbed = self._visit.abandon("stopped")
            emit(
                self._sink,
                "visit.abandoned",
                scrubbed_bytes=scrubbed.scrubbed_bytes if scrubbed else 0,
                verified=scrubbed.verified if scrubbed else False,
            )

    def _prepare(
        self, start: StartJob, control: Session
    ) -> tuple[HostSetup, JointTraining]:
        settings = decode(AcceleratorSettings, start.settings)
        check_cargo(settings, self._agreement.agreement.travel)
        resources = self._agreement.agreement.resources
        self._choice = choose_buffer(resources, settings, free_memory_bytes())
        loop = LoopSettings(settings.seed, settings.batch_rows, settings.threads)
        agreement = self._agreement.agreement
        rule = agreement.output
        guard = Containment(self._files, text=rule.recipe_text)
        recipe = Recipe(self._files, agreement.code.entry, guard=guard)
        alone = agreement.data_owners if rule.baseline_alone else ()
        training = JointTraining(recipe, loop, alone=alone)
        released, heads = self._collect(settings.brokers_s)
        meet = Meeting(self._link, self._endpoint, self._agreement, self._clock)
        setup = HostSetup(
            released=released,
            terms=self._terms(start.job),
            heads=heads,
            rules=self._rules,
            meet=lambda lease, left_s: meet(lease, min(left_s, settings.meet_s)),
            work=self._work(training),
            sign=ReceiptWriter(self._endpoint.instance, self._proof, heads),
            make_pool=CPUPool,
            clock=self._clock,
            tell=lambda phase: _tell(control, phase),
            dock=self._dock,
            sink=self._sink,
        )
        return setup, training

    def _collect(
        self, within_s: float
    ) -> tuple[dict[str, ReleasedResource], tuple[SignedTreeHead, ...]]:
        """One release from each owner's broker; an owner that is away brings nothing."""
        released: dict[str, ReleasedResource] = {}
        heads: list[SignedTreeHead] = []
        deadline = self._clock() + within_s
        for owner in self._agreement.agreement.holders:
            wait_s = max(0.0, deadline - self._clock())
            try:
                heads.append(self._collect_from(owner, released, wait_s))
            except PeerError as error:
                emit(self._sink, "release.missing", owner=owner, line=str(error))
        return released, tuple(heads)

    def _collect_from(
        self, owner: str, released: dict[str, ReleasedResource], wait_s: float
    ) -> SignedTreeHead:
        circuit = self._link.open(link_name(Role.BROKER, owner), wait_s=wait_s)
        policy = expect_broker(self._agreement, owner)
        with connect(circuit, self._endpoint, policy) as session:
            for resource in self._agreement.agreement.resources_of(owner):
                key, _head = collect_release(
                    session, self._agreement, resource.name, clock=self._clock
                )
                released[resource.name] = ReleasedResource(resource, key)
                emit(self._sink, "release.collected", resource=resource.name)
            return request_head(session)  # covers every release of this session

    def _run_visit(
        self, offer: OfferVisit, setup: HostSetup, control: Session, handout: Handout
    ) -> None:
        try:
            visit = HostedVisit(offer, setup)
        except SealiftError as error:
            send_message(control, Failed(error.code, str(error)))
            return
        self._visit = visit
        send_message(control, visit.offered())
        granted = receive_message(control, Granted, Withdrawn, timeout_s=GRANT_WAIT_S)
        if isinstance(granted, Withdrawn):
            ended = visit.withdraw()
        else:
            ended = visit.run(granted.lease)
        self._visit = None
        send_message(control, handout.note(offer, ended))
        if ended.fatal:  # told already; no order can follow
            raise JobError("the job failed", why=ended.line, code=ended.reason)

    def _work(
        self, training: JointTraining
    ) -> Callable[[LoadedCargo], Mapping[str, float]]:
        rule = self._agreement.agreement.output

        def work(cargo: LoadedCargo) -> Mapping[str, float]:
            rows = torch.frombuffer(cargo.rows, dtype=torch.uint8)
            rows = rows.reshape(cargo.offer.rows, cargo.resource.row_bytes)
            offer = cargo.offer
            part = Cargo(cargo.resource, offer.epoch, offer.first_row, rows)
            return let_out(training.work(part), rule, rows=len(rows))

        return work

    def _terms(self, job: str) -> LeaseTerms:
        agreement = self._agreement.agreement
        return LeaseTerms(
            orchestrator=agreement.party(agreement.operator).sign,
            job=job,
            agreement=agreement.digest,
            accelerator=self._endpoint.instance.public_key,
            longest_s=agreement.travel.lease_s,
            modes=agreement.travel.modes,
        )

    def _ready(self, setup: HostSetup) -> JobReady:
        return JobReady(
            self._proof.level.value,
            len(setup.released),
            buffer_bytes=self._choice.buffer_bytes,
            why=self._choice.why,
        )


class Meeting:
    """Waits for the holder that a lease names, and turns everybody else away."""

    def __init__(
        self, link: Link, endpoint: Endpoint, agreement: VerifiedAgreement, clock: Clock
    ) -> None:
        self._link = link
        self._endpoint = endpoint
        self._agreement = agreement
        self._clock = clock

    def __call__(self, lease: Lease, timeout_s: float) -> Session:
        """A session with the lease's holder.

        Raises:
            PeerError: code ``holder-missing``, if it does not come in time.
        """
        deadline = self._clock() + timeout_s
        while (left_s := deadline - self._clock()) > 0:
            try:
                circuit = self._link.accept(left_s)
            except PeerError as error:
                if error.code != TIMEOUT:
                    raise
                break
            session = self._greet(circuit, lease, deadline)
            if session is not None:
                return session
        raise PeerError(
            f"{lease.holder} did not come within {timeout_s:g} s",
            fix="Check that it is running; it gets another visit if the job waits",
            code="holder-missing",
        )

    def _greet(self, circuit: Circuit, lease: Lease, deadline: float) -> Session | None:
        if circuit.peer_name != link_name(Role.HOLDER, lease.holder):
            circuit.close()  # late for its own visit, or early for another one
            return None
        policy = expect_holder(self._agreement, lease)
        left_s = max(0.001, deadline - self._clock())
        with suppress(SealiftError):  # somebody else, or a failed handshake: wait on
            return accept(circuit, self._endpoint, policy, left_s)
        return None


def _tell(control: Session, phase: VisitPhase) -> None:
    with suppress(SealiftError):
        send_message(control, phase)
