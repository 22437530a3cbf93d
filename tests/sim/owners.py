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
from typing import TypeVar

from sealift.attest.development import DevelopmentAttester
from sealift.attest.level import Level
from sealift.attest.policy import Appraiser, AttestationResult
from sealift.codec import decode, encode
from sealift.crypto.hpke import HpkePrivateKey, HpkePublicKey
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.errors import PeerError
from sealift.ids import Digest, Role
from sealift.release.broker.inforce import StatementsInForce
from sealift.release.broker.messages import BrokerAnswer, BrokerRequest
from sealift.release.broker.server import Broker
from sealift.release.log.auditlog import AuditLog
from sealift.release.vault.vault import Vault
from tests.worlds.consortium import Consortium

T = TypeVar("T")
NOW_S = 1_790_000_000.0


def now() -> float:
    """The clock of every party here."""
    return NOW_S


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
        statements=StatementsInForce(verified, statements, clock=clock),
    )


def ask(broker: Broker, side: BrokerSide, request: BrokerRequest) -> BrokerAnswer:
    """One question to a broker, through the codec both ways."""
    side.inbox.append(encode(request))
    broker.serve(side, accepted_at_s=time.monotonic())
    return decode(BrokerAnswer, side.outbox.popleft())


def each(boxes: dict[str, BrokerBox]) -> Iterator[BrokerBox]:
    yield from boxes.values()
