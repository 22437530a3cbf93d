"""Real brokers, vaults and logs of two owners, and every place where one may die.

``Faults`` counts the steps that a crash can fall between: a request lost, each write to
a vault or log, an answer lost. At the step that was asked for, somebody dies.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from sealift.codec import decode, encode
from sealift.crypto.hpke import HpkePrivateKey
from sealift.crypto.keys import TOKEN, SecretKey
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.errors import PeerError
from sealift.ids import Digest
from sealift.release import database
from sealift.release.checkpoint import CheckpointMark
from sealift.release.checkpointclient import CheckpointLedger, Shares
from sealift.release.log import auditlog
from sealift.release.log.auditlog import AuditLog
from sealift.release.log.entries import CheckpointEntry
from sealift.release.log.heads import ShownHeads, read_entries
from sealift.release.vault.vault import Vault
from tests.sim.owners import (
    NOW_S,
    BrokerBox,
    BrokerSide,
    OwnHalf,
    SimPeer,
    accelerator_peer,
    broker_peer,
    make_broker,
    start_broker,
)
from tests.worlds.consortium import Consortium

T = TypeVar("T")
JOB = "digits"
Victim = Literal["request", "broker", "answer", "accelerator"]


class Died(BaseException):
    """Somebody was killed at this step."""


@dataclass
class Faults:
    """Kills ``victim`` at step number ``at``; counts the steps."""

    at: int = -1
    victim: Victim = "broker"
    step: int = 0

    def pass_step(self, *victims: Victim) -> None:
        if self.victim in victims:
            self.step += 1
            if self.step - 1 == self.at:
                self.at = -1
                raise Died(self.victim)


@dataclass
class Wire:
    """An accelerator's end of a session with a broker that may die."""

    world: CheckpointWorld
    owner: str
    peer: SimPeer
    established: OwnHalf
    side: BrokerSide
    request: bytes = b""
    tamper: Callable[[bytes], bytes] = bytes

    @property
    def th2(self) -> bytes:
        return self.side.th2

    def send_message(self, message: object) -> None:
        self.request = encode(message)

    def receive_message(self, cls: type[T], timeout_s: float | None = None) -> T:
        with self.world.losses(self.owner):
            self.world.faults.pass_step("request", "accelerator")
            self.side.inbox.append(self.request)
            self.world.boxes[self.owner].broker.serve(
                self.side, accepted_at_s=time.monotonic()
            )
            self.world.faults.pass_step("answer", "accelerator")
        return decode(cls, self.tamper(self.side.outbox.popleft()))


@dataclass
class CheckpointWorld:
    """Brokers on a disk, what was sealed, and what accelerators are told."""

    consortium: Consortium
    owners: tuple[str, ...]
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp()))
    boxes: dict[str, BrokerBox] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)
    keys: dict[Digest, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for owner in self.owners:
            self.boxes[owner] = make_broker(self.consortium, owner, self.folder)

    def close(self) -> None:
        for box in self.boxes.values():
            box.close()
        shutil.rmtree(self.folder)

    def restart(self, owner: str) -> None:
        """The broker's process dies and is started again."""
        self.boxes[owner].close()
        self.open(owner)

    def open(self, owner: str) -> None:
        identity = self.consortium.identities[owner]
        vault = Vault.open(self.folder / f"{owner}.vault", identity)
        log = AuditLog.open(self.folder / f"{owner}.log", identity, lambda: NOW_S)
        broker = start_broker(self.consortium, owner, vault, log)
        self.boxes[owner] = BrokerBox(broker, vault, log)

    @contextmanager
    def losses(self, owner: str) -> Iterator[None]:
        """What a death looks like to the accelerator, if it lives."""
        try:
            yield
        except Died as death:
            victim = death.args[0]
            if victim == "accelerator":
                raise
            if victim == "broker":
                self.restart(owner)
            raise PeerError("gone", code="session-truncated") from None

    def ledger(
        self, instance: PublicKey | None = None, heads: ShownHeads | None = None
    ) -> CheckpointLedger:
        """What a fresh accelerator uses."""
        key = instance or SigningKey.generate().public_key
        for owner in self.owners:
            self.give_keys(owner, key)

        @contextmanager
        def reach(owner: str) -> Iterator[Shares]:
            yield self.shares(owner, key)

        return CheckpointLedger(self.owners, reach, (heads or ShownHeads()).show)

    def give_keys(self, owner: str, instance: PublicKey) -> None:
        """The owner's broker counted its keys for an accelerator, as it must have."""
        agreement, ledger = self.consortium.agreement, self.boxes[owner].vault.ledger
        for resource in agreement.resources_of(owner):
            if resource.name not in ledger.held(agreement.name, instance):
                ledger.debit(agreement.name, resource.name, 0, instance)

    def shares(self, owner: str, instance: PublicKey) -> Shares:
        return Shares(
            self.wire(owner, instance),
            self.consortium.verified(),
            owner,
            job=JOB,
            clock=lambda: 0.0,
        )

    def wire(self, owner: str, instance: PublicKey) -> Wire:
        hpke, th2 = HpkePrivateKey.generate(), secrets.token_bytes(32)
        peer = replace(
            accelerator_peer(self.consortium, hpke.public), instance=instance
        )
        return Wire(
            self,
            owner,
            broker_peer(self.consortium, owner),
            OwnHalf(hpke),
            BrokerSide(peer, th2),
        )

    def seal(self) -> tuple[Digest, SecretKey]:
        """A checkpoint's file, as far as brokers know of it: a digest and a key."""
        key, sealed = SecretKey.generate(), Digest(secrets.token_bytes(32))
        self.keys[sealed] = key.reveal(TOKEN)
        return sealed, key

    def entries(self, owner: str) -> list[CheckpointEntry]:
        """What an owner's log says about checkpoints."""
        found = read_entries(self.folder / f"{owner}.log")
        return [entry for entry in found if isinstance(entry, CheckpointEntry)]

    def held(self, owner: str) -> dict[str, int]:
        """Numbers of the shares in an owner's vault, by state."""
        rows = self.boxes[owner].vault._file.connection.execute(
            "SELECT state, number FROM shares WHERE wrapped != x''"
        )
        return dict(rows.fetchall())

    def opens(self, ledger: CheckpointLedger, mark: CheckpointMark) -> bool:
        """Whether the brokers' shares are the key that the file was sealed with."""
        return ledger.open_key(mark).reveal(TOKEN) == self.keys[mark.sealed]


@contextmanager
def deadly_writes(world: CheckpointWorld) -> Iterator[None]:
    """Let brokers die before and after each transaction on vault and log."""
    modules: list[Any] = [auditlog, database]
    honest = modules[0].transaction

    @contextmanager
    def transaction(*args: Any) -> Iterator[None]:
        world.faults.pass_step("broker")
        with honest(*args):
            yield
        world.faults.pass_step("broker")

    for module in modules:
        module.transaction = transaction
    try:
        yield
    finally:
        for module in modules:
            module.transaction = honest
