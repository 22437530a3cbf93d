"""Owners with sealed rows and one accelerator that visits them, in one process.

Keys, evidence, sealed files, leases, sessions, visits and receipts are the real code. In
memory are the line between holder and accelerator, and the work, which trains nothing.
The caller plays the orchestrator: it offers, signs and hosts. A world that wants something
otherwise extends ``VisitWorld``: it sets ``checks`` or ``change_lease``, or overrides ``rows_of``,
``make_pool``, ``work``, ``setup``::

    with VisitWorld(folder, make_consortium()) as world:
        theirs, ours = memory_pair()
        offer = world.offer("ada")
        hosted = world.host(offer, lambda lease, left_s: world.accept(ours, lease, left_s))
        signed = world.grant(offer, hosted)
        threading.Thread(target=world.bring, args=(theirs, signed)).start()
        ended = hosted.run(signed)
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

from sealift.channel.record.commitment import key_commitment
from sealift.channel.record.sealedfile import RawSealedFile, write_sealed_file
from sealift.channel.transport.transport import Transport
from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import sign_document
from sealift.ids import Role, VisitId
from sealift.release.agreement import Purpose, Resource
from sealift.release.receipt import SignedReceipt, prove_instance
from sealift.session.session import Session, accept, connect
from sealift.train.output.handout import Handout
from sealift.travel.accelerator.rules import VisitRules
from sealift.travel.accelerator.setup import (
    GroupResult,
    HostSetup,
    LoadedCargo,
    ReleasedResource,
)
from sealift.travel.accelerator.visit import HostedVisit
from sealift.travel.holder.visit import HeldResource, Provisioning
from sealift.travel.peers import expect_accelerator, expect_holder
from sealift.travel.settings import JobSettings
from sealift.travel.visit.lease import Lease, LeaseTerms, SignedLease
from sealift.travel.visit.memory import CPUPool
from sealift.travel.visit.messages import BufferOffered, OfferVisit
from sealift.travel.visit.state import Clock
from tests.worlds.consortium import RUN, Consortium

ROW_BYTES: Final = 40  # does not divide a record, so rows cross the edges of records
RECORD_BYTES: Final = 96
SCHEMA: Final = {"fields": [{"name": "x", "dtype": "float64", "shape": [5]}]}
JOB: Final = "job"


def seal_resource(
    resource: Resource,
    plain: bytes,
    *,
    key: SecretKey,
    folder: Path,
    files: ExitStack,
    row_bytes: int = ROW_BYTES,
    record_bytes: int = RECORD_BYTES,
    schema: dict[str, Any] = SCHEMA,
    description: bytes | None = None,
) -> HeldResource:
    """The resource as its sealed file makes it, and the file as its holder has it.

    Args:
        files: Closes that file.
    """
    card = write_sealed_file(
        folder / f"{resource.name}.sealed",
        [plain],
        key=key,
        total_bytes=len(plain),
        record_bytes=record_bytes,
        description=description,
    )
    sealed = replace(
        resource,
        rows=len(plain) // row_bytes,
        row_bytes=row_bytes,
        total_bytes=len(plain),
        record_bytes=record_bytes,
        schema=schema,
        content=card.content.digest,
        key=key_commitment(key, resource.name),
    )
    source = files.enter_context(RawSealedFile(card.path))
    return HeldResource(sealed, source, card.leaves)


class VisitWorld:
    """Everything that visits need. Use as a context manager, or call ``close``.

    Args:
        folder: Gets the sealed files.
        consortium: Its resources are sealed here, each with rows of its own.
        rows: Of each.
        lease_s: Seconds of a lease.
        clock: Seconds, as accelerator and holders count them.

    Attributes:
        change_lease: What becomes of a lease before the orchestrator signs it.
        checks: Whether a cargo may be worked on; raises if not.
    """

    def __init__(
        self,
        folder: Path,
        consortium: Consortium,
        *,
        rows: int = 20,
        lease_s: float = 30.0,
        clock: Clock = time.monotonic,
    ) -> None:
        self.folder, self.rows, self.lease_s = folder, rows, lease_s
        self.clock = clock
        self.change_lease: Callable[[Lease], Lease] = lambda lease: lease
        self.checks: Callable[[LoadedCargo], None] = lambda _cargo: None
        self.files = ExitStack()
        self.plain: dict[str, bytes] = {}
        self.held: dict[str, HeldResource] = {}
        self.visits = 0
        sealed = [
            self.seal(each, consortium) for each in consortium.agreement.resources
        ]
        self.consortium = consortium.changed(resources=tuple(sealed))
        self.agreement = self.consortium.verified()
        self.endpoint = self.consortium.accelerator()
        self.rules = VisitRules(max_visits=50)

    def close(self) -> None:
        """Close the sealed files."""
        self.files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # What a world may want otherwise.

    def rows_of(self, _resource: Resource) -> bytes:
        """The rows that its owner brings."""
        return secrets.token_bytes(self.rows * ROW_BYTES)

    def describe(self, _schema: object) -> bytes | None:
        """What a sealed file says that it is."""
        return None

    def make_pool(self, buffer_bytes: int, record_bytes: int) -> CPUPool:
        """A visit's memory."""
        return CPUPool(buffer_bytes, record_bytes)

    def work(self, cargo: Sequence[LoadedCargo]) -> GroupResult:
        """The work on a group of cargo."""
        return GroupResult({each.resource.name: {"loss": 0.5} for each in cargo})

    # What it does.

    def seal(self, resource: Resource, consortium: Consortium) -> Resource:
        """Seal rows for a resource; the resource that they make."""
        name = resource.name
        self.plain[name] = self.rows_of(resource)
        self.held[name] = seal_resource(
            resource,
            self.plain[name],
            key=consortium.keys[name],
            folder=self.folder,
            files=self.files,
            description=self.describe(SCHEMA),
        )
        return self.held[name].resource

    def resource(self, name: str) -> Resource:
        """As the agreement binds it."""
        return self.consortium.agreement.resource(name)

    @property
    def terms(self) -> LeaseTerms:
        """What a lease must say here."""
        instance = self.endpoint.instance.public_key
        return LeaseTerms.under(
            self.consortium.agreement, instance, replace(RUN, job=JOB)
        )

    def offer(
        self,
        owner: str,
        first_row: int = 0,
        rows: int = 0,
        *,
        purpose: Purpose = "train",
        position: int | None = None,
    ) -> OfferVisit:
        """The orchestrator's wish; all rows from the first one on, if not said."""
        self.visits += 1
        part = "heldout" if purpose == "heldout" else "train"
        resource = self.resource(f"{owner}-{part}")
        return OfferVisit(
            visit=VisitId.generate(),
            position=self.visits if position is None else position,
            number=self.visits,
            epoch=0,
            holder=owner,
            resource=resource.name,
            purpose=purpose,
            first_row=first_row,
            rows=rows or resource.rows - first_row,
        )

    def host(
        self, offer: OfferVisit, meet: Callable[[Lease, float], Session]
    ) -> HostedVisit:
        """The accelerator's side of a visit."""
        return HostedVisit(offer, self.setup(meet))

    def grant(self, offer: OfferVisit, hosted: HostedVisit) -> SignedLease:
        """The orchestrator's lease of the buffer that a visit offers."""
        return self.sign(offer, hosted.offered())

    def sign(self, offer: OfferVisit, offered: BufferOffered) -> SignedLease:
        """The same for a buffer that was offered."""
        lease = Lease(
            job=JOB,
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
            shape=(offer.rows, self.resource(offer.resource).row_bytes),
            first_row=offer.first_row,
            mode="write-only",
            lease_s=self.lease_s,
            content=self.resource(offer.resource).content,
            run=RUN,
        )
        return self.signed(self.change_lease(lease))

    def signed(self, lease: Lease) -> SignedLease:
        """A lease, signed by the operator."""
        operator = self.consortium.identities[self.consortium.agreement.operator]
        return sign_document(lease, operator)

    def accept(self, line: Transport, lease: Lease, left_s: float) -> Session:
        """The accelerator's end of a visit's session."""
        return accept(line, self.endpoint, expect_holder(self.agreement, lease), left_s)

    def connect(self, line: Transport, owner: str) -> Session:
        """The holder's end."""
        endpoint = self.consortium.endpoint(Role.HOLDER, owner)
        return connect(
            line, endpoint, expect_accelerator(self.agreement, "accelerator-0")
        )

    def provision(self, session: Session, signed: SignedLease) -> SignedReceipt:
        """What an honest holder does in a session."""
        provisioning = Provisioning(
            self.held[signed.body.resource],
            signed,
            clock=self.clock,
            check_heads=lambda _heads: None,
            require_allowed=lambda: None,
        )
        return provisioning.provision(session)

    def bring(self, line: Transport, signed: SignedLease) -> SignedReceipt:
        """What an honest holder does on a line."""
        with self.connect(line, signed.body.holder) as session:
            return self.provision(session, signed)

    def setup(self, meet: Callable[[Lease, float], Session]) -> HostSetup:
        """What the accelerator's side is made of."""
        resources = self.consortium.agreement.resources
        return HostSetup(
            released={
                each.name: ReleasedResource(each, self.consortium.keys[each.name])
                for each in resources
            },
            terms=self.terms,
            heads=tuple,
            rules=self.rules,
            meet=meet,
            check=self._check,
            work=self.work,
            sign=Handout(
                self.agreement,
                self.endpoint,
                JOB,
                self.rules,
                proof=prove_instance(self.endpoint, self.agreement),
                heads=tuple,
                plan="travel",
                settings=JobSettings(),
                sandbox="none",
                device=lambda: "cpu",
            ).receipt,
            make_pool=self.make_pool,
            clock=self.clock,
            tell=lambda _phase: None,
        )

    def _check(self, cargo: LoadedCargo) -> None:
        self.checks(cargo)
