"""Where attacks are tried: a world of visits, and a broker that is asked for keys.

Two owners with sealed rows and one accelerator, without a network; and an owner's broker
with a host that proves what it runs, made when an attack first needs it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sealift.attest.evidence import Attester
from sealift.attest.level import Level
from sealift.attest.policy import Appraiser
from sealift.attest.runtimelog import CODE_BUNDLE, RuntimeEvent
from sealift.channel.transport.transport import Transport
from sealift.crypto.keys import KEY_BYTES, SecretKey
from sealift.errors import SealiftError, require_value
from sealift.release.agreement import References, ReleaseRule, Resource
from sealift.release.client import collect_release, enrol
from sealift.release.receipt import SignedReceipt
from sealift.session.endpoint import Endpoint
from sealift.session.session import Session
from sealift.travel.accelerator.setup import GroupResult, LoadedCargo
from sealift.travel.peers import expect_at_broker
from sealift.travel.visit.lease import Lease, SignedLease
from sealift.travel.visit.memory import CPUPool
from sealift.travel.visit.messages import VisitEnded
from tests.worlds.brokers import open_broker
from tests.worlds.consortium import (
    ONE_HOLDER,
    RUN,
    make_consortium,
    make_resource,
)
from tests.worlds.memorytransport import memory_pair
from tests.worlds.softwarehost import software_host
from tests.worlds.visits import ROW_BYTES, VisitWorld

OWNERS: Final = ("ada", "bern")
ADA, BERN = OWNERS
ROWS: Final = 24
CELL_ROWS: Final = 4
NOTHING_LEFT: Final = "nothing-left"
CANARY: Final = b"canary: these rows are private!!"
LEASE_S: Final = 30.0
HEARTBEAT_S: Final = 30.0
PROGRAMS: Final = (
    ("/usr/bin/python3.11", b"interpreter"),
    ("/usr/bin/agent", b"agent"),
)
Between = Callable[[Session, Lease], Session]
Change = Callable[[Appraiser], Appraiser]


def train(owner: str) -> str:
    """The name of an owner's rows."""
    return f"{owner}-train"


def refusal(step: Callable[[], object]) -> str:
    """The stable name of what refuses a step; empty if nothing does."""
    try:
        step()
    except SealiftError as error:
        return error.code
    return ""


class KeptPool(CPUPool):
    """A visit's memory that is looked at once more when it is given back."""

    remains = b""

    def close(self) -> None:
        """Keep what is left in it, then give it back."""
        self.remains = b"".join(bytes(region) for region in self.regions().values())
        super().close()


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
        return require_value(self.ended, "the visit ran").reason


class AttackWorld(VisitWorld):
    """Two owners' visits, and an owner's broker.

    Args:
        folder: Gets everything; its path must be short.
    """

    def __init__(self, folder: Path) -> None:
        consortium = make_consortium(
            OWNERS, ("train",), cell_rows=CELL_ROWS, output=ONE_HOLDER
        )
        self.added_s = 0.0  # which an attack adds to the accelerator's seconds
        super().__init__(
            folder,
            consortium,
            rows=ROWS,
            lease_s=LEASE_S,
            clock=lambda: time.monotonic() + self.added_s,
        )
        self.identities = self.consortium.identities
        self._memory = b""
        self._pools: list[KeptPool] = []
        self._broker: BrokerWorld | None = None
        self._brokers = 0

    @property
    def broker(self) -> BrokerWorld:
        """Where keys are asked for; made when it is first needed."""
        if self._broker is None:
            self._brokers += 1
            self._broker = BrokerWorld(self.folder / f"o{self._brokers}")
        return self._broker

    def renew_broker(self) -> None:
        """The next one finds a clean host."""
        if self._broker is not None:
            self._broker.close()
            self._broker = None

    def close(self) -> None:
        """Switch off what was started."""
        self.renew_broker()
        super().close()

    def rows_of(self, _resource: Resource) -> bytes:
        """Random rows behind a canary."""
        return CANARY + secrets.token_bytes(ROWS * ROW_BYTES - len(CANARY))

    def make_pool(self, buffer_bytes: int, record_bytes: int) -> CPUPool:
        """Memory that is looked at afterwards."""
        self._pools.append(KeptPool(buffer_bytes, record_bytes))
        return self._pools[-1]

    def work(self, cargo: Sequence[LoadedCargo]) -> GroupResult:
        """Keep what work can see."""
        self._memory = b"".join(bytes(each.memory.view) for each in cargo)
        return super().work(cargo)

    def change_rows(self, owner: str) -> None:
        """Seal other rows under the same key, and show the leaves that were agreed."""
        name, agreed = train(owner), self.held[train(owner)]
        self.folder, home = self.folder / "changed", self.folder
        self.folder.mkdir(exist_ok=True)
        self.seal(agreed.resource, self.consortium)
        self.folder = home
        self.held[name] = replace(agreed, source=self.held[name].source)

    def visit(
        self,
        owner: str = ADA,
        *,
        between: Between = lambda session, _lease: session,
        lease: Callable[[Lease], Lease] = lambda lease: lease,
        rows: int = ROWS,
    ) -> Visited:
        """One visit: the accelerator here, the holder in another thread.

        Args:
            owner: Who is visited.
            between: What stands between holder and session.
            lease: Changes the lease before the orchestrator signs it.
            rows: How many are asked for, from the first one on.
        """
        theirs, ours = memory_pair()
        hosted = self.host(
            offer := self.offer(owner, rows=rows),
            lambda lease, left_s: self.accept(ours, lease, left_s),
        )
        signed = self.signed(lease(self.grant(offer, hosted).body))
        visited = Visited(signed.body)
        holder = threading.Thread(
            target=self._attend, args=(theirs, signed, between, visited), daemon=True
        )
        holder.start()
        visited.ended = hosted.run(signed)
        ours.close()
        holder.join(LEASE_S)
        visited.inside, self._memory = self._memory, b""
        visited.after = self._pools[-1].remains
        return visited

    def _attend(
        self, line: Transport, signed: SignedLease, between: Between, visited: Visited
    ) -> None:
        try:
            with self.connect(line, signed.body.holder) as session:
                told = self.provision(between(session, signed.body), signed)
                visited.receipt = told
        except SealiftError:
            return  # the accelerator's side says how it ended


class BrokerWorld:
    """One owner's broker and one host, whose kernel measures what it is told.

    Args:
        folder: Gets vault, log and the software TPM.

    Raises:
        UnavailableError: ``guest-tpm``, without swtpm.
    """

    def __init__(self, folder: Path) -> None:
        self._stack = ExitStack()
        self.folder = folder
        (folder / "host").mkdir(parents=True)
        self.host = self._stack.enter_context(software_host(folder / "host", PROGRAMS))
        self.material = secrets.token_bytes(KEY_BYTES)
        self.key = SecretKey(self.material)
        parties = make_consortium(OWNERS, ("train",))
        parties.keys[train(ADA)] = self.key
        self.identity = parties.identities[ADA]
        rule = ReleaseRule(lease_s=600.0, heartbeat_s=HEARTBEAT_S)
        self.consortium = parties.changed(
            rehearse=Level.ATTESTED_HOST,
            references=References(
                (), enrollers=(self.identity.public_key,), tpm=self.host.references()
            ),
            resources=tuple(
                make_resource(owner, key=parties.keys[train(owner)], rule=rule)
                for owner in OWNERS
            ),
            output=ONE_HOLDER,
        )
        self.box = self._stack.enter_context(open_broker(self.consortium, ADA, folder))
        self.agreement = self.box.agreement
        bundle = self.agreement.agreement.code.digest
        self.host.attester.measure(RuntimeEvent(CODE_BUNDLE, bundle.raw))
        with self.box.session(self.host_endpoint(None)) as session:
            enrol(session, self.host.attester, self.identity.public_key)

    def ask(
        self, attester: Attester | None = None, change: Change | None = None
    ) -> str:
        """Ask for the key: why it was refused, or nothing if it came.

        Args:
            attester: Whose evidence is shown, if not the host's.
            change: What the agreement says otherwise.
        """
        shown = self.host_endpoint(attester or self.host.attester)
        policy = expect_at_broker(self.agreement, "accelerator-0")
        if change is not None:
            policy = replace(policy, appraiser=change(require_value(policy.appraiser)))
        try:
            with self.box.session(shown, policy) as session:
                self.collect(session)
        except SealiftError as error:
            return self.box.refused or error.code
        return ""

    def host_endpoint(self, attester: Attester | None) -> Endpoint:
        """A fresh accelerator on the host, which shows this evidence."""
        return self.consortium.accelerator(attester=attester)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """The host's session with the broker."""
        with self.box.session(self.host_endpoint(self.host.attester)) as session:
            yield session

    def collect(self, session: Session) -> None:
        """The key of the one resource, verified and forgotten."""
        key, _ = collect_release(
            session, self.agreement, train(ADA), clock=time.monotonic, run=RUN
        )
        key.wipe()

    def close(self) -> None:
        """Switch the host off, close vault and log."""
        self._stack.close()

    def __enter__(self) -> BrokerWorld:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
