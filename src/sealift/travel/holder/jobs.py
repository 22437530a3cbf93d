"""A holder's process: waits for leases, brings cargo, keeps receipts, until the job ends.

A visit that fails is reported and over; the holder waits for the next lease. It never
learns more than that its own rows were asked for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from sealift.channel.transport.transport import peer_timeout
from sealift.codec import encode
from sealift.crypto.sign import PublicKey
from sealift.errors import PeerError, PolicyError, SealiftError, require_value
from sealift.events import Sink, discard, emit
from sealift.ids import check_name
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.agreement.training import RunTerms
from sealift.release.broker.inforce import StatementsInForce
from sealift.release.client import request_consistency
from sealift.release.decision import decide
from sealift.release.facts import Owner, ReleaseKind, ReleaseQuestion, ReleaseState
from sealift.release.files import append_line, write_whole
from sealift.release.log.entries import SignedTreeHead
from sealift.release.log.heads import HeadStore, log_owner
from sealift.release.receipt import RECEIPTS_SUFFIX, SignedReceipt, verify_receipt
from sealift.session.direct import PathDialler
from sealift.session.endpoint import Endpoint, VerifiedPeer
from sealift.session.relay.client import RelayClient
from sealift.session.session import Session, connect
from sealift.travel.holder.visit import (
    DEFAULT_RECEIPT_WAIT_S,
    HeldResource,
    Provisioning,
    ServedVisits,
    check_lease,
)
from sealift.travel.holder.watches import PartyWatch
from sealift.travel.peers import (
    ORCHESTRATOR,
    accelerator_names,
    expect_accelerator,
    expect_orchestrator,
    meet_broker,
)
from sealift.travel.settings import require_own_run
from sealift.travel.visit.lease import Lease, LeaseTerms, SignedLease
from sealift.travel.visit.messages import (
    RUN_RECEIPT_NAME,
    Finished,
    Granted,
    receive_message,
    receive_receipt,
)
from sealift.travel.visit.state import Clock

ORCHESTRATOR_WAIT_S: Final = 60.0
BROKER_WAIT_S: Final = 5.0
LAST_RECEIPTS_S: Final = 5.0
MAX_VISITS: Final = 64  # at one time; an accelerator has far fewer
TIMEOUT: Final = peer_timeout().code


class Receipts:
    """The folder of a holder's receipts, a file for each job, and what became of its visits.

    One for all jobs of a process: a visit's receipt may come after the
    orchestrator was lost and another one has begun.

    Args:
        folder: That gets them.

    Attributes:
        kept: Receipts of this process.
        failed: Visits that came to nothing.
        folder: That gets them.
        lost: Of these, such as had a receipt that could not be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._counting = threading.Lock()
        self.kept = 0
        self.failed = 0
        self.lost = 0

    def keep(self, receipt: SignedReceipt) -> str:
        """Add one to those of its job, synced to the disk; the name of their file.

        Raises:
            MalformedError: code ``bad-name``: its job is no name; it counts as lost.
            UnavailableError: ``disk-full`` or ``cannot-write``; it counts as lost.
        """
        with self._counting:
            try:
                # Else an accelerator would choose where this owner's disk is written.
                job = check_name(receipt.body.job, what="job name")
                name = f"{job}{RECEIPTS_SUFFIX}"
                append_line(self.folder / name, encode(receipt))
            except BaseException:
                self.lost += 1
                raise
            self.kept += 1
        return name

    def fail(self) -> None:
        """A visit came to nothing."""
        with self._counting:
            self.failed += 1


def keep_run(folder: Path, receipt: bytes) -> tuple[Path, bool]:
    """Write the receipt of a whole run, beside those of others: its file, and if it is new.

    Raises:
        UnavailableError: ``disk-full`` or ``cannot-write``.
    """
    number, path = 1, folder / RUN_RECEIPT_NAME
    while path.exists() and path.read_bytes() != receipt:
        number += 1
        path = folder / f"receipt-{number}.json"
    new = not path.exists()  # a broker beside may have kept it
    if new:
        write_whole(path, receipt)
    return path, new


class HolderJob:
    """One holder in one job.

    Args:
        relay: The connection to it, under the holder's name.
        endpoint: With the party's identity.
        agreement: Verified.
        held: The party's sealed files, by resource.
        heads: What this party remembers of every log.
        served: What was served, counted on the disk.
        receipts: Gets the receipts, and counts.
        run: What this party's own job file sets; leases must be of that run.
        mode: How records cross, by this party's own copy of the job; no lease may say
            otherwise.
        receipt_wait_s: How long to wait for the receipt after the cargo.
        clock: Monotonic seconds.
        dialler: Chooses the way of the frames; the relay only, if there is none.
        sink: Where events go.
        statements: What parties say of the agreement meanwhile.
        keep_run: Checks the run's receipt and keeps it.
    """

    def __init__(
        self,
        relay: RelayClient,
        endpoint: Endpoint,
        agreement: VerifiedAgreement,
        *,
        held: Mapping[str, HeldResource],
        heads: HeadStore,
        served: ServedVisits,
        receipts: Receipts,
        run: RunTerms,
        clock: Clock,
        receipt_wait_s: float = DEFAULT_RECEIPT_WAIT_S,
        dialler: PathDialler | None = None,
        sink: Sink = discard,
        statements: StatementsInForce | None = None,
        keep_run: Callable[[bytes], object] = lambda receipt: None,
    ) -> None:
        self._keep_run = keep_run
        self._relay = relay
        self._endpoint = endpoint
        self._agreement = agreement
        self._held = held
        self._heads = heads
        self._served = served
        self._receipts = receipts
        self._run = run
        self._receipt_wait_s = receipt_wait_s
        self._clock = clock
        self._dialler = dialler
        self._sink = sink
        self._statements = statements or StatementsInForce(
            agreement, clock=agreement.equipment.clock
        )
        self._own = PartyWatch(
            endpoint.name,
            agreement,
            self._statements,
            meet_broker=partial(self._meet_broker, endpoint.name),
            clock=clock,
            sink=sink,
        )
        self._visits: list[threading.Thread] = []

    def serve(self, joined: Callable[[], None] = lambda: None) -> Finished:
        """Attend until the orchestrator says that the job has ended.

        Args:
            joined: Called when the orchestrator has let us in.

        Raises:
            PeerError: if the orchestrator is gone.
            PolicyError: ``owner-left``, ``agreement-vetoed``, ``agreement-cancelled``:
                our own side was told so.
            JobError: ``another-run``.
        """
        circuit = self._relay.open(ORCHESTRATOR, wait_s=ORCHESTRATOR_WAIT_S)
        policy = expect_orchestrator(self._agreement)
        try:
            with (
                self._own.watched(),
                self._own.open(circuit),
                connect(circuit, self._endpoint, policy) as control,
            ):
                return self._attend_to(control, joined)
        except PeerError:
            if self._own.ended is None:
                raise
            raise self._own.ended from None

    def _attend_to(self, control: Session, joined: Callable[[], None]) -> Finished:
        joined()
        emit(self._sink, "holder.ready", holder=self._endpoint.name)
        while True:
            order = _newest_order(control)
            if isinstance(order, Finished):  # receipts may still be on their way
                deadline = time.monotonic() + LAST_RECEIPTS_S
                for visit in self._visits:
                    visit.join(max(0.0, deadline - time.monotonic()))
                if receipt := receive_receipt(control, order, LAST_RECEIPTS_S):
                    self._keep_run(receipt)
                return order
            require_own_run(order.lease.body.run, self._run)
            self._begin(order.lease)

    def _begin(self, signed: SignedLease) -> None:
        """A visit waits for its receipt while the next one loads."""
        self._visits = [each for each in self._visits if each.is_alive()]
        if len(self._visits) < MAX_VISITS:
            visit = threading.Thread(target=self._attend, args=(signed,), daemon=True)
            self._visits.append(visit)
            visit.start()

    def _attend(self, signed: SignedLease) -> None:
        try:
            name = self._receipts.keep(self._provision(signed))
        except SealiftError as error:
            self._receipts.fail()
            emit(self._sink, "holder.failed", reason=error.code, line=str(error))
            return
        emit(self._sink, "holder.receipt", name=name, rows=signed.body.shape[0])

    def _provision(self, signed: SignedLease) -> SignedReceipt:
        agreement, instance = self._agreement.agreement, signed.body.accelerator
        terms = LeaseTerms.under(agreement, instance, self._run)
        me = self._endpoint.name
        held = check_lease(signed, self._held, holder=me, terms=terms)
        (name,) = accelerator_names()
        circuit = self._relay.open(name)
        policy = expect_accelerator(self._agreement, name, instance)
        with (
            self._own.visit(instance, circuit) as refusal,
            connect(circuit, self._endpoint, policy) as session,
        ):
            peer = session.peer

            def require() -> None:
                self._require_allowed(signed.body, peer, refusal())

            provisioning = self._provisioning(held, signed, require)
            receipt = provisioning.provision(session)
        verify_receipt(receipt, self._agreement)
        return receipt

    def _require_allowed(self, lease: Lease, peer: VerifiedPeer, revoked: str) -> None:
        """Before each frame: what our own rule says of rows, and of who gets them."""
        identity = require_value(self._endpoint.identity)
        verified, ended = self._statements.judged()
        state = ReleaseState(
            owner=Owner(self._endpoint.name, identity.public_key),
            verified=verified,
            at_s=self._agreement.equipment.clock(),
            ended=ended,
            revoked=revoked,
        )
        asked = ReleaseQuestion(
            kind=ReleaseKind.ROWS, peer=peer, resource=lease.resource, purpose=lease.purpose,
            run=lease.run,
        )  # fmt: skip
        decide(asked, state)

    def _provisioning(
        self,
        held: HeldResource,
        signed: SignedLease,
        require_allowed: Callable[[], None],
    ) -> Provisioning:
        most = self._agreement.agreement.output_rule.max_visits
        return Provisioning(
            held,
            signed,
            clock=self._clock,
            check_heads=self._check_heads,
            receipt_wait_s=self._receipt_wait_s,
            dialler=self._dialler,
            require_allowed=require_allowed,
            count=partial(
                self._served.take, self._agreement.agreement.name, signed.body, most
            ),
            sink=self._sink,
        )

    def _meet_broker(self, owner: str) -> Session:
        return meet_broker(
            self._relay, self._endpoint, self._agreement, owner, wait_s=BROKER_WAIT_S
        )

    def _check_heads(self, heads: tuple[SignedTreeHead, ...]) -> None:
        """No rows leave before the log of our own broker was shown (rule H6).

        Logs of other owners are shown if they released a key to this accelerator.
        """
        owners = [log_owner(head, self._agreement).name for head in heads]
        if self._endpoint.name not in owners:
            raise PolicyError(
                "the accelerator sent no head of this owner's log",
                why="the key was not released by this owner's broker",
                code="head-missing",
            )
        for head, owner in zip(heads, owners, strict=True):
            self._heads.admit(head, partial(self._prove, owner))

    def _prove(
        self, owner: str, log: PublicKey, first: int, second: int
    ) -> tuple[bytes, ...]:
        """Ask the log's own broker for the proof that it only grew."""
        try:
            session = self._meet_broker(owner)
        except PeerError as error:
            raise PeerError(
                f"the broker of {owner} sent no consistency proof",
                why=str(error),
                code="no-consistency-proof",
            ) from None
        with session:
            return request_consistency(session, first, second)


def _newest_order(control: Session) -> Granted | Finished:
    """The next order, or what came after it: after a stall, older leases are over.

    The orchestrator grants the next lease when the cargo of the one before was loaded
    or given up; to present an old one would only cost the visit that is under way.
    """
    order = receive_message(control, Granted, Finished, timeout_s=None)
    while isinstance(order, Granted):
        try:
            order = receive_message(control, Granted, Finished, timeout_s=0.0)
        except PeerError as error:
            if error.code != TIMEOUT:
                raise
            break
    return order
