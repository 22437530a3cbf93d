"""An accelerator process among real parties: relay, brokers and holders live here.

The test plays the orchestrator by hand, so that it can stop between two orders and look
at the process, or leave a holder out.
"""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeVar

from sealift.codec import encode
from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import SigningKey, sign_document
from sealift.errors import PeerError, SealiftError
from sealift.ids import Role, VisitId
from sealift.release.agreement import References, ReleaseRule
from sealift.release.agreement.code import measure_bundle
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.agreement.training import RunTerms
from sealift.release.broker.server import Broker
from sealift.release.receipt import SignedReceipt
from sealift.session.endpoint import Endpoint
from sealift.session.relay.client import RelayClient
from sealift.session.relay.server import Relay
from sealift.session.session import Session, accept, connect
from sealift.travel.broker import BrokerService
from sealift.travel.holder.visit import HeldResource, Provisioning
from sealift.travel.peers import expect_accelerator
from sealift.travel.settings import run_terms
from sealift.travel.visit.lease import Lease, SignedLease
from sealift.travel.visit.messages import (
    BufferOffered,
    Granted,
    JobReady,
    OfferVisit,
    StartJob,
    VisitEnded,
    VisitLoaded,
    VisitPhase,
    WorkVisits,
    parse_message,
    receive_message,
    send_message,
)
from tests.sim.owners import make_broker
from tests.sim.process import start, stop
from tests.sim.settings import job_settings
from tests.worlds.consortium import Consortium, make_consortium
from tests.worlds.visits import seal_resource

ROOT = Path(__file__).parents[2]
JOB = "job"
WAIT_S = 300.0
LEASE_S = 30.0  # an agreement lets none be much longer
OWNERS = ("ada", "bern")
EPOCHS = 1000  # more than any test asks for
T = TypeVar("T")


@dataclass
class LiveJob:
    """A started job: the accelerator waits for orders."""

    consortium: Consortium
    agreement: VerifiedAgreement
    held: Mapping[str, HeldResource]
    relay: Relay
    links: Mapping[str, RelayClient]
    control: Session
    process: subprocess.Popen[str]
    run: RunTerms
    brokers: Mapping[str, Broker] = field(default_factory=dict)
    works: bool = True
    positions: Iterator[int] = field(default_factory=count)
    told: queue.SimpleQueue[BufferOffered | VisitLoaded | VisitEnded | None] = field(
        default_factory=queue.SimpleQueue
    )
    offers: dict[VisitId, OfferVisit] = field(default_factory=dict)

    def listen(self) -> None:
        """Take what the accelerator tells; ask for work on what was loaded, if asked to."""
        kinds = (BufferOffered, VisitPhase, VisitLoaded, VisitEnded)
        with suppress(SealiftError):
            while True:
                told = parse_message(self.control.receive(None), kinds)
                if isinstance(told, VisitLoaded) and self.works:
                    self.work(told.visit)
                if isinstance(told, (BufferOffered, VisitLoaded, VisitEnded)):
                    self.told.put(told)
        self.told.put(None)

    def work(self, *visits: VisitId) -> None:
        """Ask for work on a group that was loaded."""
        position = self.offers[visits[0]].position
        send_message(self.control, WorkVisits(position, visits))

    def wait_for(self, kind: type[T]) -> T:
        """The next thing of this kind that the accelerator tells.

        Raises:
            PeerError: if it is gone.
        """
        while True:
            told = self.told.get(timeout=WAIT_S)
            if told is None:
                self.told.put(None)
                raise PeerError("the accelerator is gone")
            if isinstance(told, kind):
                return told

    def offer(self, owner: str) -> OfferVisit:
        """The next offer of all training rows of an owner that the plan has."""
        resource = self.held[f"{owner}-train"].resource
        place = OWNERS.index(owner)
        position = next(p for p in self.positions if p % len(OWNERS) == place)
        return OfferVisit(
            visit=VisitId.generate(),
            position=position,
            number=position + 1,
            epoch=position // len(OWNERS),
            holder=owner,
            resource=resource.name,
            purpose="train",
            first_row=0,
            rows=resource.rows,
        )

    def grant(self, owner: str, lease_s: float = LEASE_S) -> SignedLease:
        """Offer, sign, tell the accelerator."""
        offer = self.offer(owner)
        self.offers[offer.visit] = offer
        send_message(self.control, offer)
        offered = self.wait_for(BufferOffered)
        resource = self.held[offer.resource].resource
        lease = Lease(
            job=JOB,
            visit=offer.visit,
            agreement=self.agreement.digest,
            accelerator=self.control.peer.instance,
            holder=owner,
            resource=offer.resource,
            purpose="train",
            handle=offered.handle,
            offset=0,
            max_bytes=offered.buffer_bytes,
            dtype="uint8",
            shape=(resource.rows, resource.row_bytes),
            first_row=0,
            mode="write-only",
            lease_s=lease_s,
            content=resource.content,
            run=self.run,
        )
        operator = self.consortium.identities[self.agreement.agreement.operator]
        signed = sign_document(lease, operator)
        send_message(self.control, Granted(signed))
        return signed

    def meet(self, signed: SignedLease) -> Session:
        """The holder's session with the accelerator."""
        owner = signed.body.holder
        endpoint = Endpoint(
            role=Role.HOLDER,
            name=owner,
            agreement=self.agreement.digest,
            identity=self.consortium.identities[owner],
        )
        circuit = self.links[f"holder-{owner}"].open("accelerator-0", wait_s=WAIT_S)
        return connect(
            circuit, endpoint, expect_accelerator(self.agreement, "accelerator-0")
        )

    def provision(self, signed: SignedLease) -> SignedReceipt:
        """The honest holder."""
        with self.meet(signed) as session:
            return Provisioning(
                self.held[signed.body.resource],
                signed,
                clock=lambda: 0.0,
                check_heads=lambda heads: None,
                require_allowed=lambda: None,
                receipt_wait_s=WAIT_S,
            ).provision(session)

    def ended(self) -> VisitEnded:
        """What the accelerator says about the visit."""
        return self.wait_for(VisitEnded)


@contextmanager
def live_job(
    folder: Path,
    rows_of: Callable[[str], bytes],
    *,
    row_bytes: int,
    schema: dict[str, Any],
    recipe: bytes,
    batch_rows: int = 8,
    threads: int = 1,
    buffers: Literal[1, 2] = 1,
    rule: ReleaseRule = ReleaseRule(),  # noqa: B008 - frozen
    mutant: str = "none",
    environment: Mapping[str, str] = os.environ,
) -> Iterator[LiveJob]:
    """Start everything for two owners; ends everything."""
    attester = SecretKey.generate()
    files = ExitStack()
    consortium, held = _agree(
        folder, files, rows_of, row_bytes, schema, recipe, attester
    )
    consortium = replace(
        consortium,
        agreement=replace(
            consortium.agreement,
            travel=replace(consortium.agreement.travel, buffers=buffers),
            output=replace(consortium.agreement.output, max_visits=EPOCHS),
            resources=tuple(
                replace(each, rule=rule) for each in consortium.agreement.resources
            ),
        ),
    )
    agreement = consortium.verified()
    (folder / "agreement").write_bytes(encode(consortium.signed()))
    (folder / "recipe.py").write_bytes(recipe)
    with files, ExitStack() as stack:
        relay = stack.enter_context(Relay.listen())
        orchestrator = stack.enter_context(relay.local_client())
        links, brokers = {}, {}
        for owner in consortium.identities:
            brokers[owner] = _start_broker(stack, relay, consortium, owner, folder)
            name = f"holder-{owner}"
            links[name] = stack.enter_context(relay.local_client(name))
        process = start(relay.address[1], folder, mutant, attester, environment)
        stack.callback(stop, process)
        control = _greet(orchestrator, consortium, agreement)
        stack.enter_context(control)
        settings = job_settings(
            epochs=EPOCHS,
            buffers=buffers,
            batch_rows=batch_rows,
            threads=threads,
            meet_s=WAIT_S,
            rejoin_s=0.0,
            checkpoint_every=0,
        )
        send_message(control, StartJob(JOB, encode(settings)))
        receive_message(control, JobReady, timeout_s=WAIT_S)
        job = LiveJob(
            consortium, agreement, held, relay, links, control, process,
            run_terms(JOB, "travel", settings), brokers,
        )  # fmt: skip
        threading.Thread(target=job.listen, daemon=True).start()
        yield job


def _agree(
    folder: Path,
    files: ExitStack,
    rows_of: Callable[[str], bytes],
    row_bytes: int,
    schema: dict[str, Any],
    recipe: bytes,
    attester: SecretKey,
) -> tuple[Consortium, dict[str, HeldResource]]:
    consortium = make_consortium(OWNERS)
    held = {
        resource.name: seal_resource(
            resource,
            rows_of(resource.name),
            key=consortium.keys[resource.name],
            folder=folder,
            files=files,
            row_bytes=row_bytes,
            record_bytes=1024,
            schema=schema,
        )
        for resource in consortium.agreement.resources
    }
    agreement = replace(
        consortium.agreement,
        resources=tuple(entry.resource for entry in held.values()),
        code=measure_bundle({"recipe.py": recipe}, "recipe.py"),
        references=References((SigningKey(attester).public_key,)),
    )
    return replace(consortium, agreement=agreement), held


def _start_broker(
    stack: ExitStack, relay: Relay, consortium: Consortium, owner: str, folder: Path
) -> Broker:
    box = make_broker(consortium, owner, folder)
    stack.callback(box.close)
    ended = threading.Event()
    stack.callback(ended.wait, WAIT_S)
    link = stack.enter_context(relay.local_client(f"broker-{owner}"))
    endpoint = Endpoint(
        role=Role.BROKER,
        name=owner,
        agreement=consortium.agreement.digest,
        identity=consortium.identities[owner],
    )
    broker_service = BrokerService(
        link, endpoint, consortium.verified(), broker=box.broker
    )

    def serve() -> None:
        with suppress(SealiftError):
            broker_service.serve()
        ended.set()

    threading.Thread(target=serve, daemon=True).start()
    return box.broker


def _greet(
    link: RelayClient, consortium: Consortium, agreement: VerifiedAgreement
) -> Session:
    endpoint = Endpoint(
        role=Role.ORCHESTRATOR,
        name=agreement.agreement.operator,
        agreement=agreement.digest,
        identity=consortium.identities[agreement.agreement.operator],
    )
    circuit = link.accept(WAIT_S)
    return accept(
        circuit, endpoint, expect_accelerator(agreement, "accelerator-0"), WAIT_S
    )
