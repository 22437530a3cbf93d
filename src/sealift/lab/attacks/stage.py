"""A small stage for attacks: two owners with sealed rows, one accelerator, no network.

Keys, evidence, sealed files, leases, sessions, visits and receipts are the real code.
In memory are the line between holder and accelerator and the work, which counts rows.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sealift.attest.development.attester import DevelopmentAttester
from sealift.attest.level import Level
from sealift.channel.record.commitment import key_commitment
from sealift.channel.record.rawfile import RawSealedFile
from sealift.channel.record.sealedfile import write_sealed_file
from sealift.channel.transport.memory import memory_pair
from sealift.channel.transport.transport import Transport
from sealift.crypto.identity import Identity, create_identity
from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.errors import SealiftError
from sealift.ids import Role, VisitId
from sealift.lab.attacks.office import RULE, Office
from sealift.release.agreement import (
    Agreement,
    Party,
    PartyRole,
    References,
    Resource,
    TravelRule,
)
from sealift.release.bundle import measure_bundle
from sealift.release.receipt import SignedReceipt
from sealift.release.signed import SignedAgreement, add_signature, verify
from sealift.session.endpoint import Endpoint
from sealift.session.session import Session, accept, connect
from sealift.train.receipts import ReceiptWriter, prove_instance
from sealift.travel.accelerator import HostedVisit
from sealift.travel.holder import HeldResource, Provisioning
from sealift.travel.hostsetup import (
    GroupResult,
    HostSetup,
    LoadedCargo,
    ReleasedResource,
)
from sealift.travel.lease import Lease, LeaseTerms, SignedLease, sign_lease
from sealift.travel.messages import OfferVisit, VisitEnded
from sealift.travel.peers import expect_accelerator, expect_holder
from sealift.travel.pool import CPUPool, Pool
from sealift.travel.rules import VisitRules
from sealift.travel.settings import TravelSettings

OWNERS: Final = ("ada", "bern")
ROWS: Final = 24
CELL_ROWS: Final = 4
ROW_BYTES: Final = 40
RECORD_BYTES: Final = 96  # ten records, whose edges fall between rows' edges
CANARY: Final = b"canary: these rows are private!!"
LEASE_S: Final = 30.0
Between = Callable[[Session, Lease], Session]


class KeptPool(CPUPool):
    """A visit's memory that is looked at once more when it is given back."""

    remains = b""

    def close(self) -> None:
        """Keep what is left in it, then give it back."""
        self.remains = b"".join(bytes(region) for region in self.regions().values())
        super().close()


class StageClock:
    """The accelerator's seconds: real ones, and those that an attack adds."""

    def __init__(self) -> None:
        self.added_s = 0.0

    def __call__(self) -> float:
        """Seconds."""
        return time.monotonic() + self.added_s


@dataclass(slots=True)
class Visited:
    """One visit, seen from both ends.

    Attributes:
        inside: The visit's memory while the work ran.
        after: The same memory when the visit had ended.
    """

    lease: Lease
    ended: VisitEnded | None = None
    receipt: SignedReceipt | None = None
    inside: bytes = b""
    after: bytes = b""

    @property
    def refusal(self) -> str:
        """Stable name of the refusal; empty if the visit was verified."""
        assert self.ended is not None, "the visit ran"
        return self.ended.reason


class Stage:
    """Everything that a visit needs.

    Args:
        folder: Gets the sealed files.
    """

    def __init__(self, folder: Path) -> None:
        self.clock = StageClock()
        self.attester_key = SigningKey.generate()
        self.identities = {name: create_identity(name) for name in OWNERS}
        self.folder = folder
        self._files = ExitStack()
        self._keys = {f"{name}-train": SecretKey.generate() for name in OWNERS}
        self.held = {name: self._seal(folder, name) for name in OWNERS}
        self.agreement = verify(self.agree(self._draft()))
        self.endpoint = self._start_accelerator()
        self._rules = VisitRules(max_visits=RULE.max_visits)
        self._memory = b""
        self._pools: list[KeptPool] = []
        self._office: Office | None = None
        self._offices = 0

    @property
    def office(self) -> Office:
        """Where keys are asked for; made when it is first needed."""
        if self._office is None:
            self._offices += 1
            folder = self.folder / f"o{self._offices}"
            self._office = Office(folder)
        return self._office

    def renew_office(self) -> None:
        """The next one finds a clean host."""
        if self._office is not None:
            self._office.close()
            self._office = None

    def close(self) -> None:
        """Switch off what was started."""
        self.renew_office()
        self._files.close()

    @property
    def instance(self) -> PublicKey:
        """The accelerator's instance key."""
        return self.endpoint.instance.public_key

    @property
    def terms(self) -> LeaseTerms:
        """What a lease must say here."""
        return LeaseTerms(
            orchestrator=self.identities[OWNERS[-1]].public_key,
            job="stage",
            agreement=self.agreement.digest,
            accelerator=self.endpoint.instance.public_key,
            longest_s=LEASE_S,
        )

    def sign(self, lease: Lease) -> SignedLease:
        """By the operator."""
        return sign_lease(lease, self.identities[OWNERS[-1]])

    def data_key(self, owner: str) -> SecretKey:
        """What opens an owner's sealed file."""
        return self._keys[f"{owner}-train"]

    def _start_accelerator(self) -> Endpoint:
        return Endpoint(
            role=Role.ACCELERATOR,
            name="accelerator",
            agreement=self.agreement.digest,
            attester=DevelopmentAttester(
                self.attester_key,
                role=Role.ACCELERATOR,
                code_bundle=self.agreement.agreement.code.digest,
            ),
        )

    def change_rows(self, owner: str) -> None:
        """Seal other rows under the same key, and show the leaves that were agreed."""
        held = self.held[owner]
        changed = self._seal(self.folder / "changed", owner)
        self.held[owner] = replace(held, source=changed.source)

    def visit(
        self,
        owner: str = OWNERS[0],
        *,
        between: Between = lambda session, _lease: session,
        lease: Callable[[Lease], Lease] = lambda lease: lease,
        lease_s: float = LEASE_S,
        rows: int = ROWS,
    ) -> Visited:
        """One visit: the accelerator here, the holder in another thread.

        Args:
            owner: Who is visited.
            between: What stands between holder and session.
            lease: Changes the lease before the orchestrator signs it.
            lease_s: Seconds of the lease.
            rows: How many are asked for, from the first one on.
        """
        theirs, ours = memory_pair()
        offer = self._offer(owner, rows)
        hosted = HostedVisit(offer, self._setup(ours))
        signed = self._grant(offer, hosted, lease, lease_s)
        visited = Visited(signed.lease)
        holder = threading.Thread(
            target=self._bring, args=(theirs, signed, between, visited), daemon=True
        )
        holder.start()
        visited.ended = hosted.run(signed)
        ours.close()
        holder.join(LEASE_S)
        visited.inside, self._memory = self._memory, b""
        visited.after = self._pools[-1].remains
        return visited

    def _bring(
        self, line: Transport, signed: SignedLease, between: Between, visited: Visited
    ) -> None:
        endpoint = Endpoint(
            role=Role.HOLDER,
            name=signed.lease.holder,
            agreement=self.agreement.digest,
            identity=self.identities[signed.lease.holder],
        )
        provisioning = Provisioning(
            self.held[signed.lease.holder],
            signed,
            clock=time.monotonic,
            check_heads=lambda _heads: None,
            require_allowed=lambda: None,
            receipt_wait_s=LEASE_S,
        )
        try:
            with connect(line, endpoint, expect_accelerator(self.agreement)) as session:
                visited.receipt = provisioning.provision(between(session, signed.lease))
        except SealiftError:
            return  # the accelerator's side says how it ended

    def _offer(self, owner: str, rows: int) -> OfferVisit:
        return OfferVisit(
            visit=VisitId.generate(),
            number=1,
            epoch=0,
            holder=owner,
            resource=f"{owner}-train",
            purpose="train",
            first_row=0,
            rows=rows,
        )

    def _grant(
        self,
        offer: OfferVisit,
        hosted: HostedVisit,
        change: Callable[[Lease], Lease],
        lease_s: float,
    ) -> SignedLease:
        offered = hosted.offered()
        lease = Lease(
            job="stage",
            visit=offer.visit,
            agreement=self.agreement.digest,
            accelerator=self.endpoint.instance.public_key,
            holder=offer.holder,
            resource=offer.resource,
            purpose="train",
            handle=offered.handle,
            offset=0,
            max_bytes=offered.buffer_bytes,
            dtype="uint8",
            shape=(offer.rows, ROW_BYTES),
            first_row=0,
            mode="write-only",
            lease_s=lease_s,
            content=self.held[offer.holder].resource.content,
        )
        return self.sign(change(lease))

    def _setup(self, line: Transport) -> HostSetup:
        def meet(lease: Lease, left_s: float) -> Session:
            policy = expect_holder(self.agreement, lease)
            return accept(line, self.endpoint, policy, left_s)

        return HostSetup(
            released={
                held.resource.name: ReleasedResource(
                    held.resource, self._keys[held.resource.name]
                )
                for held in self.held.values()
            },
            terms=self.terms,
            heads=tuple,
            rules=self._rules,
            meet=meet,
            check=lambda _cargo: None,
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
            tell=lambda _phase: None,
        )

    def _make_pool(self, buffer_bytes: int, record_bytes: int) -> Pool:
        self._pools.append(KeptPool(buffer_bytes, record_bytes))
        return self._pools[-1]

    def _work(self, cargo: Sequence[LoadedCargo]) -> GroupResult:
        self._memory = b"".join(bytes(each.view) for each in cargo)
        return GroupResult({each.resource.name: {"loss": 0.5} for each in cargo})

    def _seal(self, folder: Path, owner: str) -> HeldResource:
        folder.mkdir(exist_ok=True)
        name, rows = f"{owner}-train", secrets.token_bytes(ROWS * ROW_BYTES)
        plain = CANARY + rows[len(CANARY) :]
        card = write_sealed_file(
            folder / f"{name}.sealed",
            [plain],
            key=self._keys[name],
            total_bytes=len(plain),
            record_bytes=RECORD_BYTES,
        )
        resource = Resource(
            name=name,
            owner=owner,
            part="train",
            rows=ROWS,
            row_bytes=ROW_BYTES,
            cell_rows=CELL_ROWS,
            total_bytes=len(plain),
            record_bytes=RECORD_BYTES,
            schema={"fields": [{"name": "x", "dtype": "float64", "shape": [5]}]},
            content=card.content.digest,
            key=key_commitment(self._keys[name], name),
        )
        source = self._files.enter_context(RawSealedFile(card.path))
        return HeldResource(resource, source, card.leaves)

    def agree(self, agreement: Agreement) -> SignedAgreement:
        """The agreement, signed by everybody."""
        signed = SignedAgreement(agreement)
        for identity in self.identities.values():
            signed = add_signature(signed, identity)
        return signed

    def _draft(self) -> Agreement:
        return Agreement(
            about="train",
            name="stage",
            number=1,
            predecessor=None,
            parties=tuple(map(_party, self.identities.values())),
            code=measure_bundle({"recipe.py": b"def build(): ...\n"}, "recipe.py"),
            accept=(Level.DEVELOPMENT,),
            references=References((self.attester_key.public_key,)),
            resources=tuple(held.resource for held in self.held.values()),
            model_owner=OWNERS[-1],
            operator=OWNERS[-1],
            output=RULE,
            travel=TravelRule(1, LEASE_S),
        )


def _party(identity: Identity) -> Party:
    """Everybody owns data; the last one brings and runs all the rest."""
    roles: tuple[PartyRole, ...] = ("data_owner",)
    if identity.name == OWNERS[-1]:
        roles = ("data_owner", "model_owner", "code_owner", "operator")
    return Party(identity.name, roles, identity.public_key, identity.card.hpke)
