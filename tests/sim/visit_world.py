"""A small world for visits: an agreement, sealed files, an accelerator, three holders.

Keys, evidence, sealed files, leases, sessions and receipts are real. In memory are the
line between holder and accelerator, the clock, and the work: it keeps a copy of the rows
that it was shown. Tests attack by setting attributes (`faults`, `change_lease`).
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Self

from sealift.attest.development import DevelopmentAttester
from sealift.crypto.keys import SecretKey
from sealift.errors import SealiftError
from sealift.events import Event
from sealift.ids import Role, VisitId
from sealift.lab.worlds.memorytransport import Fault, MemoryTransport, memory_pair
from sealift.release.agreement import Resource
from sealift.session.direct.host import DirectHost
from sealift.session.endpoint import Endpoint
from sealift.session.frames import FrameKind
from sealift.session.session import Session, accept, connect
from sealift.train.receipts import ReceiptWriter, prove_instance
from sealift.travel.accelerator.load import Columns
from sealift.travel.accelerator.rules import VisitRules
from sealift.travel.accelerator.setup import (
    GroupResult,
    HostSetup,
    LoadedCargo,
    ReleasedResource,
)
from sealift.travel.accelerator.visit import HostedVisit
from sealift.travel.holder.visit import HeldResource
from sealift.travel.peers import expect_accelerator, expect_holder
from sealift.travel.settings import TravelSettings
from sealift.travel.visit.lease import Lease, LeaseTerms, SignedLease, sign_lease
from sealift.travel.visit.messages import BufferOffered, OfferVisit
from tests.sim.hands import Bring, Hand, honest
from tests.sim.outcome import Outcome
from tests.sim.owners import Consortium, make_consortium
from tests.sim.sealing import seal_resource
from tests.sim.visit_parts import FakeClock, GuardedPool, TappedTransport

ROW_BYTES = 40  # does not divide a record, so rows cross the edges of records
RECORD_BYTES = 96
OWNERS = ("ada", "bern", "cleo")
SCHEMA = {"fields": [{"name": "x", "dtype": "float64", "shape": [5]}]}


def described_by(schema: object) -> bytes:
    """What a file of this world says that it is."""
    return repr(schema).encode()


class VisitWorld:
    """Three owners with sealed rows, and one accelerator that visits them.

    Use as a context manager, or call `close`.
    """

    def __init__(
        self, folder: Path, *, rows: int = 20, cell_rows: int = 1, lease_s: float = 30.0
    ) -> None:
        self.folder, self.rows, self.lease_s = folder, rows, lease_s
        self.files = ExitStack()
        self.clock = FakeClock()
        self.plain: dict[str, bytes] = {}
        self.held: dict[str, HeldResource] = {}
        self.consortium = self._seal(make_consortium(OWNERS, cell_rows=cell_rows))
        self.agreement = self.consortium.verified()
        self.endpoint = self.start_accelerator()
        self.rules = VisitRules(max_visits=50)
        self.trained: list[tuple[VisitId, bytes]] = []
        self.pools: list[GuardedPool] = []
        self._model = secrets.token_bytes(256)
        self.model = bytearray(self._model)
        self.fails_in_work: Callable[[], None] = lambda: None
        self.checks: Callable[[LoadedCargo], None] = lambda cargo: None
        self.columns: Columns = lambda resource: described_by(resource.schema)
        self.faults: Sequence[Fault] = ()
        self.change_lease: Callable[[Lease], Lease] = lambda lease: lease
        self.visits = 0
        self.direct_host: DirectHost | None = None
        self.events: list[Event] = []

    def close(self) -> None:
        """Close the sealed files."""
        self.files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def raw_frames(self, outcome: Outcome) -> list[bytes]:
        """The visit frames of a visit, as they crossed the line."""
        return [frame[1:] for frame in outcome.wire if frame[0] == FrameKind.RAW]

    def untouched(self) -> bool:
        """Whether everything that no frame may touch is as it was."""
        intact = all(pool.intact for pool in self.pools)
        return intact and bytes(self.model) == self._model

    def start_accelerator(self) -> Endpoint:
        """A fresh process: another instance key."""
        agreement = self.consortium.agreement
        attester = DevelopmentAttester(
            self.consortium.attester,
            role=Role.ACCELERATOR,
            code_bundle=agreement.code.digest,
        )
        return Endpoint(
            role=Role.ACCELERATOR,
            name="accelerator-0",
            agreement=agreement.digest,
            attester=attester,
        )

    def offer(self, owner: str, first_row: int = 0, rows: int = 0) -> OfferVisit:
        """The orchestrator's wish."""
        self.visits += 1
        return OfferVisit(
            visit=VisitId.generate(),
            position=self.visits,
            number=self.visits,
            epoch=0,
            holder=owner,
            resource=f"{owner}-train",
            purpose="train",
            first_row=first_row,
            rows=rows or self.rows - first_row,
        )

    def host(self, offer: OfferVisit, meet: Callable[..., Session]) -> HostedVisit:
        """The accelerator's side."""
        return HostedVisit(offer, self._setup(meet))

    def grant(self, offer: OfferVisit, visit: HostedVisit) -> SignedLease:
        """The orchestrator's lease, after `change_lease`."""
        return self.sign(offer, visit.offered())

    def sign(self, offer: OfferVisit, offered: BufferOffered) -> SignedLease:
        """The same for a buffer that was offered."""
        lease = Lease(
            job="job",
            visit=offer.visit,
            agreement=self.agreement.digest,
            accelerator=self.endpoint.instance.public_key,
            holder=offer.holder,
            resource=offer.resource,
            purpose=offer.purpose,
            handle=offered.handle,
            offset=0,
            max_bytes=offered.buffer_bytes,
            dtype="uint8",
            shape=(offer.rows, ROW_BYTES),
            first_row=offer.first_row,
            mode="write-only",
            lease_s=self.lease_s,
            content=self.resource(offer.resource).content,
        )
        operator = self.consortium.identities[self.consortium.agreement.operator]
        return sign_lease(self.change_lease(lease), operator)

    def resource(self, name: str) -> Resource:
        """As the agreement binds it."""
        return self.consortium.agreement.resource(name)

    def visit(
        self,
        owner: str,
        bring: Bring = honest,
        *,
        offer: OfferVisit | None = None,
        signed: SignedLease | None = None,
    ) -> Outcome:
        """One whole visit: accelerator in this thread, holder in another."""
        offer = offer or self.offer(owner)
        stalled = threading.Event()
        wire: list[bytes] = []
        theirs, ours = memory_pair(self.faults)
        line = TappedTransport(ours, self.clock, stalled, wire)
        hosted = self.host(
            offer, lambda lease, left_s: self._accept(line, lease, left_s)
        )
        signed = signed or self.grant(offer, hosted)
        outcome = Outcome(offer, signed, wire=wire)
        thread = self.send_holder(theirs, outcome, bring, stalled)
        try:
            outcome.ended = hosted.run(signed)
        except BaseException as error:
            outcome.error = error
        finally:
            line.close()
            thread.join(300)
            assert not thread.is_alive()
        return outcome

    def send_holder(
        self,
        line: MemoryTransport,
        outcome: Outcome,
        bring: Bring,
        stalled: threading.Event,
    ) -> threading.Thread:
        """A holder in a thread, with its lease in its hand."""

        def provision() -> None:
            try:
                with self._connect(line, outcome.offer.holder) as session:
                    hand = Hand(
                        self.held[outcome.offer.resource],
                        outcome.lease,
                        session=session,
                        clock=self.clock,
                        stalled=stalled,
                    )
                    outcome.secrets, outcome.th2 = hand.secrets(), session.th2
                    outcome.receipt = bring(hand)
            except SealiftError as error:
                outcome.holder_error = error
            finally:
                line.close()

        thread = threading.Thread(target=provision, name=outcome.offer.holder)
        thread.start()
        return thread

    def _accept(self, line: TappedTransport, lease: Lease, left_s: float) -> Session:
        return accept(line, self.endpoint, expect_holder(self.agreement, lease), left_s)

    def _connect(self, line: object, owner: str) -> Session:
        endpoint = Endpoint(
            role=Role.HOLDER,
            name=owner,
            agreement=self.agreement.digest,
            identity=self.consortium.identities[owner],
        )
        return connect(
            line, endpoint, expect_accelerator(self.agreement, "accelerator-0")
        )  # type: ignore[arg-type]

    def _setup(self, meet: Callable[..., Session]) -> HostSetup:
        agreement = self.consortium.agreement
        return HostSetup(
            released={
                resource.name: ReleasedResource(
                    resource, self.consortium.keys[resource.name]
                )
                for resource in agreement.resources
            },
            terms=LeaseTerms(
                orchestrator=agreement.party(agreement.operator).sign,
                job="job",
                agreement=agreement.digest,
                accelerator=self.endpoint.instance.public_key,
                longest_s=agreement.travel.lease_s,
            ),
            heads=tuple,
            rules=self.rules,
            meet=meet,
            check=self._check,
            work=self._work,
            sign=ReceiptWriter(
                self.endpoint.instance,
                prove_instance(self.endpoint, self.agreement),
                tuple,
                TravelSettings(),
                "none",
            ),
            make_pool=self._make_pool,
            clock=self.clock,
            tell=lambda phase: None,
            direct_host=self.direct_host,
            sink=self.events.append,
            columns=self.columns,
        )

    def _work(self, cargo: Sequence[LoadedCargo]) -> GroupResult:
        self.trained += [(each.offer.visit, bytes(each.view)) for each in cargo]
        self.fails_in_work()
        return GroupResult({each.resource.name: {"loss": 0.5} for each in cargo})

    def _check(self, cargo: LoadedCargo) -> None:
        self.checks(cargo)

    def _make_pool(self, buffer_bytes: int, record_bytes: int) -> GuardedPool:
        self.pools.append(GuardedPool(buffer_bytes, record_bytes))
        return self.pools[-1]

    def _seal(self, consortium: Consortium) -> Consortium:
        resources = tuple(
            self._seal_one(resource, consortium.keys[resource.name])
            for resource in consortium.agreement.resources
        )
        agreement = replace(consortium.agreement, resources=resources)
        return replace(consortium, agreement=agreement)

    def _seal_one(self, resource: Resource, key: SecretKey) -> Resource:
        name = resource.name
        self.plain[name] = secrets.token_bytes(self.rows * ROW_BYTES)
        self.held[name] = seal_resource(
            resource,
            self.plain[name],
            key=key,
            folder=self.folder,
            files=self.files,
            row_bytes=ROW_BYTES,
            record_bytes=RECORD_BYTES,
            schema=SCHEMA,
            description=described_by(SCHEMA),
        )
        return self.held[name].resource
