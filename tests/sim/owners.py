"""A consortium in memory: parties, sealed resources, an agreement, brokers, sessions.

Everything is real except the wire and the disk of the accelerator: keys, evidence,
signatures, vaults and logs are what production uses.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from sealift.attest.development import DevelopmentAttester
from sealift.attest.level import Level
from sealift.attest.policy import Appraiser, AttestationResult
from sealift.channel.record.commitment import key_commitment
from sealift.codec import decode, encode
from sealift.crypto.hpke import HpkePrivateKey, HpkePublicKey
from sealift.crypto.identity import Identity, create_identity
from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.errors import PeerError
from sealift.ids import Digest, Role
from sealift.release.agreement import (
    Agreement,
    CodeBundle,
    OutputRule,
    Party,
    References,
    Resource,
    TravelRule,
)
from sealift.release.agreement.code import measure_bundle
from sealift.release.agreement.signed import (
    SignedAgreement,
    VerifiedAgreement,
    add_signature,
    verify,
)
from sealift.release.agreement.successors import SignedLink
from sealift.release.broker.messages import BrokerAnswer, BrokerRequest
from sealift.release.broker.server import Broker
from sealift.release.broker.statements import StatementDesk
from sealift.release.log.auditlog import AuditLog
from sealift.release.vault.vault import Vault

T = TypeVar("T")
CODE = {
    "recipe.py": b"def build():\n    return None\n",
    "net/layers.py": b"WIDTH = 8\n",
}
NOW_S = 1_790_000_000.0


def now() -> float:
    """The clock of every party here."""
    return NOW_S


def code_bundle(files: dict[str, bytes] = CODE) -> CodeBundle:
    return measure_bundle(files, "recipe.py")


def make_resource(
    owner: str, part: str, data_key: SecretKey, rows: int = 40, cell_rows: int = 1
) -> Resource:
    name = f"{owner}-{part}"
    return Resource(
        name=name,
        owner=owner,
        part=part,  # type: ignore[arg-type]
        rows=rows,
        row_bytes=16,
        cell_rows=cell_rows,
        total_bytes=16 * rows,
        record_bytes=256,
        schema={"fields": [{"name": "x", "dtype": "float64", "shape": [2]}]},
        content=Digest.of(f"content of {name}".encode()),
        key=key_commitment(data_key, name),
    )


@dataclass
class Consortium:
    """Three owners; the last one also owns the model, the code and runs the machines."""

    identities: dict[str, Identity]
    keys: dict[str, SecretKey]
    attester: SigningKey
    agreement: Agreement
    before: tuple[SignedLink, ...] = ()

    def signed(self, *names: str) -> SignedAgreement:
        """The agreement, signed by these parties, or by all."""
        signed = SignedAgreement(self.agreement, before=self.before)
        for name in names or self.identities:
            signed = add_signature(signed, self.identities[name])
        return signed

    def verified(self) -> VerifiedAgreement:
        return verify(self.signed())

    def successor(self, **changes: Any) -> Consortium:
        """The same parties under the next agreement of the line."""
        after = replace(
            self.agreement,
            number=self.agreement.number + 1,
            predecessor=self.agreement.digest,
            **changes,
        )
        return replace(self, agreement=after, before=self.signed().line)


def make_consortium(
    owners: tuple[str, ...] = ("ada", "bern", "cleo"), *, cell_rows: int = 1
) -> Consortium:
    identities = {name: create_identity(name) for name in owners}
    keys = {
        f"{name}-{part}": SecretKey.generate()
        for name in owners
        for part in ("train", "heldout")
    }
    attester = SigningKey.generate()
    agreement = Agreement(
        about="train",
        name="joint-digits",
        number=1,
        predecessor=None,
        parties=tuple(_party(identity, owners[-1]) for identity in identities.values()),
        code=code_bundle(),
        accept=(Level.DEVELOPMENT,),
        references=References((attester.public_key,)),
        resources=tuple(
            make_resource(*name.rsplit("-", 1), data_key, cell_rows=cell_rows)
            for name, data_key in keys.items()
        ),
        model_owner=owners[-1],
        operator=owners[-1],
        output=OUTPUT,
        travel=TravelRule(1, 60.0),
    )
    return Consortium(identities, keys, attester, agreement)


OUTPUT = OutputRule(
    metrics=("loss", "accuracy"),
    digits=3,
    values_per_visit=8,
    metric_rows=1,
    audience="everyone",
    min_visits=1,
    max_visits=50,
    min_holders=2,
    min_rows=10,
    baseline_alone=True,
    recipe_text=False,
)


def _party(identity: Identity, main: str) -> Party:
    roles = ("data_owner", "model_owner", "code_owner", "operator")
    own = roles if identity.name == main else roles[:1]
    return Party(identity.name, own, identity.public_key, identity.card.hpke)  # type: ignore[arg-type]


@dataclass(frozen=True)
class SimPeer:
    """What a session proved, without the session."""

    role: Role
    name: str
    identity: PublicKey | None
    instance: PublicKey
    hpke: HpkePublicKey
    agreement: Digest
    result: AttestationResult | None


@dataclass(frozen=True)
class OwnHalf:
    hpke: HpkePrivateKey


def evidence_result(
    consortium: Consortium, *, role: Role = Role.ACCELERATOR, code: Digest | None = None
) -> AttestationResult:
    bundle = code or consortium.agreement.code.digest
    attester = DevelopmentAttester(consortium.attester, role=role, code_bundle=bundle)
    bound = secrets.token_bytes(32)
    references = replace(consortium.agreement.reference_values(), code_bundle=bundle)
    appraiser = Appraiser(accept=(Level.DEVELOPMENT,), references=references)
    return appraiser.appraise(attester.collect(bound), bound)


def accelerator_peer(consortium: Consortium, hpke: HpkePublicKey) -> SimPeer:
    return SimPeer(
        role=Role.ACCELERATOR,
        name="accelerator-0",
        identity=None,
        instance=SigningKey.generate().public_key,
        hpke=hpke,
        agreement=consortium.agreement.digest,
        result=evidence_result(consortium),
    )


def broker_peer(consortium: Consortium, owner: str) -> SimPeer:
    return SimPeer(
        role=Role.BROKER,
        name=owner,
        identity=consortium.identities[owner].public_key,
        instance=SigningKey.generate().public_key,
        hpke=HpkePrivateKey.generate().public,
        agreement=consortium.agreement.digest,
        result=None,
    )


@dataclass
class BrokerSide:
    """The broker's end of a session."""

    peer: SimPeer
    th2: bytes
    inbox: deque[bytes] = field(default_factory=deque)
    outbox: deque[bytes] = field(default_factory=deque)

    def send_message(self, message: object) -> None:
        self.outbox.append(encode(message))

    def receive_message(self, cls: type[T], timeout_s: float | None = None) -> T:
        if not self.inbox:
            raise PeerError("the peer closed the session", code="session-closed")
        return decode(cls, self.inbox.popleft())


@dataclass
class AcceleratorSide:
    """The accelerator's end; the broker answers when something is received."""

    peer: SimPeer
    th2: bytes
    established: OwnHalf
    broker: Broker
    other: BrokerSide

    def send_message(self, message: object) -> None:
        self.other.inbox.append(encode(message))

    def receive_message(self, cls: type[T], timeout_s: float | None = None) -> T:
        self.broker.serve(self.other, accepted_at_s=time.monotonic())
        return decode(cls, self.tamper(self.other.outbox.popleft()))

    def tamper(self, raw: bytes) -> bytes:
        """Replace on an instance to change answers on their way."""
        return raw


def session_pair(consortium: Consortium, broker: Broker, owner: str) -> AcceleratorSide:
    """A session between a fresh accelerator and the owner's broker."""
    hpke, th2 = HpkePrivateKey.generate(), secrets.token_bytes(32)
    return AcceleratorSide(
        peer=broker_peer(consortium, owner),
        th2=th2,
        established=OwnHalf(hpke),
        broker=broker,
        other=BrokerSide(accelerator_peer(consortium, hpke.public), th2),
    )


@dataclass
class BrokerBox:
    """One owner's broker with its files."""

    broker: Broker
    vault: Vault
    log: AuditLog

    def close(self) -> None:
        self.vault.close()
        self.log.close()


def make_broker(
    consortium: Consortium,
    owner: str,
    folder: Path,
    statements: Path | None = None,
    clock: Callable[[], float] = now,
) -> BrokerBox:
    identity = consortium.identities[owner]
    vault = Vault.create(folder / f"{owner}.vault", identity)
    for name, data_key in consortium.keys.items():
        if name.startswith(f"{owner}-"):
            vault.store(name, data_key)
    log = AuditLog.create(folder / f"{owner}.log", identity, lambda: NOW_S)
    try:
        broker = start_broker(consortium, owner, vault, log, statements, clock)
    except BaseException:
        vault.close()
        log.close()
        raise
    return BrokerBox(broker, vault, log)


def start_broker(
    consortium: Consortium,
    owner: str,
    vault: Vault,
    log: AuditLog,
    statements: Path | None = None,
    clock: Callable[[], float] = now,
) -> Broker:
    verified = consortium.verified()
    return Broker(
        verified,
        consortium.identities[owner],
        vault=vault,
        log=log,
        clock=clock,
        statements=StatementDesk(verified, statements, clock=clock),
    )


def ask(broker: Broker, side: BrokerSide, request: BrokerRequest) -> BrokerAnswer:
    """One question to a broker, through the codec both ways."""
    side.inbox.append(encode(request))
    broker.serve(side, accepted_at_s=time.monotonic())
    return decode(BrokerAnswer, side.outbox.popleft())


def each(boxes: dict[str, BrokerBox]) -> Iterator[BrokerBox]:
    yield from boxes.values()
