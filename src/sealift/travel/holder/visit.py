"""One visit from its holder's side: sealed records go to the accelerator, and no key.

The records stay as they were sealed at home. The holder checks every log's head against
the last one that it kept, stops sending when its own count of the lease has run out, and
keeps the signed receipt. What it served is counted where a restart forgets nothing
(rules N5, H8): the accelerator counts as well, but anew with each process, and the
orchestrator may end that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealift.channel.record.rawfile import RawSealedFile
from sealift.channel.transport.transport import SlotTransport
from sealift.crypto.aead import TAG_BYTES
from sealift.crypto.keys import Label, SecretKey
from sealift.errors import PolicyError, SealiftError, StaleError, UsageError
from sealift.events import Sink, discard, emit, metric_fields
from sealift.release.agreement import Resource, part_for
from sealift.release.database import create_database, open_database, transaction
from sealift.release.decision import require_visits
from sealift.release.log.entries import SignedTreeHead
from sealift.release.receipt import Receipt, SignedReceipt, verify_receipt
from sealift.session.direct import PathDialler
from sealift.session.session import Session
from sealift.travel.visit.errors import last_words
from sealift.travel.visit.lease import (
    HEADER_BYTES,
    Lease,
    LeaseTerms,
    RecordTarget,
    SignedLease,
    frame_bytes,
    frame_head,
    placement,
    record_range,
    verify_lease,
)
from sealift.travel.visit.messages import (
    LEAVES_PER_MESSAGE,
    Cargo,
    Credit,
    Failed,
    FailedError,
    Leaves,
    PathTaken,
    Present,
    Ready,
    Receipted,
    VisitPhase,
    receive_message,
    send_message,
)
from sealift.travel.visit.state import Clock

DEFAULT_RECEIPT_WAIT_S: Final = 3600.0
Remaining = Callable[[], float]
SCRUB_S: Final = 10.0  # an accelerator scrubs before it says why it took no more


class RelayedSink:
    """Frames inside the session; at most ``window`` are not acknowledged.

    Args:
        remaining_s: What is left of the lease; raises when nothing is.
    """

    def __init__(self, session: Session, window: int, remaining_s: Remaining) -> None:
        self._session = session
        self._window = window
        self._remaining_s = remaining_s
        self._memory = bytearray()
        self._room = memoryview(b"")
        self._sent = self._acknowledged = 0

    def room(self, frame_bytes: int) -> memoryview:
        """Wait for credit; the memory is used again for every frame."""
        while self._sent - self._acknowledged >= self._window:
            self._credit()
        if len(self._memory) < frame_bytes:
            self._memory = bytearray(frame_bytes)
        self._room = memoryview(self._memory)[:frame_bytes]
        return self._room

    def send(self) -> None:
        """Send what was built."""
        self._session.send_raw(self._room)
        self._sent += 1

    def finish(self) -> None:
        """Wait until every frame is acknowledged."""
        while self._acknowledged < self._sent:
            self._credit()

    def _credit(self) -> None:
        credit = receive_message(self._session, Credit, timeout_s=self._remaining_s())
        self._acknowledged = credit.frames


class DirectSink:
    """Frames built in the transport's own memory."""

    def __init__(
        self, transport: SlotTransport, session: Session, remaining_s: Remaining
    ) -> None:
        self._transport = transport
        self._session = session
        self._remaining_s = remaining_s

    def room(self, frame_bytes: int) -> memoryview:
        """The transport's next slot."""
        with last_words(self._session, SCRUB_S):
            return self._transport.reserve(frame_bytes, self._remaining_s())

    def send(self) -> None:
        """Send what was built."""
        with last_words(self._session, SCRUB_S):
            self._transport.commit()

    def finish(self) -> None:
        """Nothing to wait for: the session's next message says that it was all."""


@dataclass(frozen=True, slots=True)
class HeldResource:
    """A resource as its holder has it.

    Attributes:
        resource: As the agreement binds it.
        source: The sealed file.
        leaves: Keyed hashes of its plaintext records, from ``data seal``.
    """

    resource: Resource
    source: RawSealedFile
    leaves: tuple[bytes, ...]


class Provisioning:
    """One visit from the holder's side.

    Args:
        held: The resource that the lease names.
        signed: The lease, checked by ``check_lease``.
        clock: Monotonic seconds.
        check_heads: Raises unless the heads show every log that the holder must see,
            each a continuation of the last one kept.
        receipt_wait_s: How long to wait for the receipt after the cargo.
        dialler: Chooses the way of the frames; the relay only, if there is none.
        require_allowed: Raises unless rows may leave now; asked before each frame.
        count: Takes note, on the disk, that rows leave; raises if they may not.
        sink: Where events go.
    """

    def __init__(
        self,
        held: HeldResource,
        signed: SignedLease,
        *,
        clock: Clock,
        check_heads: Callable[[tuple[SignedTreeHead, ...]], None],
        receipt_wait_s: float = DEFAULT_RECEIPT_WAIT_S,
        dialler: PathDialler | None = None,
        require_allowed: Callable[[], None],
        count: Callable[[], None] = lambda: None,
        sink: Sink = discard,
    ) -> None:
        self._held = held
        self._signed = signed
        self._lease = signed.body
        self._clock = clock
        self._deadline = clock() + signed.body.lease_s
        self._check_heads = check_heads
        self._receipt_wait_s = receipt_wait_s
        self._dialler = dialler or PathDialler(local=False)
        self._require_allowed = require_allowed
        self._count = count
        self._sink = sink

    def provision(self, session: Session) -> SignedReceipt:
        """Bring the cargo and return the verified receipt.

        Raises:
            RefusedError: if a head, the lease or the receipt does not hold.
            PeerError: if the accelerator is gone or refuses.
        """
        try:
            self._bring(session)
        except FailedError:
            raise
        except SealiftError as error:
            # The accelerator need not guess why; the line may name files of this machine.
            with suppress(SealiftError):
                send_message(session, Failed(error.code, ""))
            raise
        return self._receive_receipt(session)

    def _bring(self, session: Session) -> None:
        with ExitStack() as stack:
            visit_key = session.export(Label.VISIT_FRAME, self._lease.digest.raw)
            stack.callback(visit_key.wipe)
            self._require_allowed()
            self._introduce(session)
            ready = receive_message(session, Ready, timeout_s=self._remaining_s())
            self._check_heads(ready.heads)
            self._count()
            sink = self._way(session, ready, stack)
            frames = self._send_frames(sink, visit_key)
            self._held.source.check_unchanged()
            # The accelerator waits for this; to unmap a ring takes milliseconds.
            send_message(session, Cargo(frames, self._lease.cargo_bytes))

    def _introduce(self, session: Session) -> None:
        leaves = self._held.leaves
        self._held.source.check_unchanged()
        header = self._held.source.header_bytes
        send_message(session, Present(self._signed, header, len(leaves)))
        for start in range(0, len(leaves), LEAVES_PER_MESSAGE):
            batch = Leaves(b"".join(leaves[start : start + LEAVES_PER_MESSAGE]))
            send_message(session, batch)

    def _way(
        self, session: Session, ready: Ready, stack: ExitStack
    ) -> RelayedSink | DirectSink:
        """Choose the way of the frames, and say which."""
        longest = frame_bytes(self._held.resource.record_bytes)
        key = session.export(Label.DIRECT_PATH, self._lease.digest.raw)
        try:
            taken = self._dialler.take(ready.direct, key, longest)
        finally:
            key.wipe()
        if taken.transport is not None:
            stack.callback(taken.transport.close)
        send_message(session, PathTaken(taken.name))
        visit = self._lease.visit.to_text()
        emit(self._sink, "visit.path", visit=visit, path=taken.name, why=taken.why)
        if taken.transport is None:
            return RelayedSink(session, ready.window, self._remaining_s)
        return DirectSink(taken.transport, session, self._remaining_s)

    def _send_frames(self, sink: RelayedSink | DirectSink, visit_key: SecretKey) -> int:
        record_bytes = self._held.resource.record_bytes
        total = len(record_range(self._lease, record_bytes))
        for sequence in range(total):
            place = placement(self._lease, sequence, record_bytes)
            length = self._build(sink, place, visit_key)
            sink.send()
            emit(self._sink, "holder.frame", sealed_bytes=length)
        sink.finish()
        return total

    def _build(
        self, sink: RelayedSink | DirectSink, place: RecordTarget, visit_key: SecretKey
    ) -> int:
        """One frame, read from the file straight to where it is sent from."""
        source = self._held.source
        length = source.record_length(place.record)
        room = sink.room(HEADER_BYTES + length)
        self._remaining_s()  # to wait for room may take long; memory there may be shared
        source.record_into(place.record, room[HEADER_BYTES:])
        lease, tag = self._lease, room[-TAG_BYTES:]
        head = frame_head(visit_key, lease.digest, lease.handle, place, tag)
        room[:HEADER_BYTES] = head
        return length

    def _receive_receipt(self, session: Session) -> SignedReceipt:
        while True:
            answer = receive_message(
                session, Receipted, VisitPhase, timeout_s=self._receipt_wait_s
            )
            if isinstance(answer, Receipted):
                self._check_receipt(verify_receipt(answer.receipt))
                self._tell_numbers(answer.metrics)
                return answer.receipt
            emit(self._sink, "holder.phase", phase=answer.phase)

    def _tell_numbers(self, metrics: Mapping[str, float]) -> None:
        """What was measured on this owner's rows: the accelerator's word."""
        lease = self._lease
        emit(
            self._sink,
            "holder.measured",
            visit=lease.visit.to_text(),
            purpose=lease.purpose,
            resource=lease.resource,
            first_row=lease.first_row,
            rows=lease.shape[0],
            **metric_fields(metrics),
        )

    def _check_receipt(self, receipt: Receipt) -> None:
        lease = self._lease
        names = ("job", "visit", "content", "agreement")
        same = all(getattr(receipt, name) == getattr(lease, name) for name in names)
        same = same and receipt.instance == lease.accelerator
        if not same or receipt.cargo_bytes != lease.cargo_bytes:
            raise PolicyError(
                "the receipt belongs to another visit", code="foreign-receipt"
            )

    def _remaining_s(self) -> float:
        self._require_allowed()
        left = self._deadline - self._clock()
        if left <= 0:
            raise StaleError("the lease has expired", code="lease-expired")
        return left


def check_lease(
    signed: SignedLease,
    held: Mapping[str, HeldResource],
    *,
    holder: str,
    terms: LeaseTerms,
) -> HeldResource:
    """The resource that a lease asks for, if the lease is ours to serve.

    The instance key in ``terms`` is the lease's own: the handshake that follows demands
    evidence that binds this very key.

    Raises:
        PolicyError: if it names another holder, resource, content or size.
        AuthenticationError: if the orchestrator did not sign it.
    """
    lease = verify_lease(signed, terms)
    if lease.holder != holder or lease.resource not in held:
        raise PolicyError("the lease belongs to another holder", code="foreign-lease")
    resource = held[lease.resource].resource
    if (lease.content, part_for(lease.purpose)) != (resource.content, resource.part):
        raise PolicyError("the lease belongs to other content", code="foreign-lease")
    rows, row_bytes = lease.shape
    if row_bytes != resource.row_bytes:
        raise PolicyError(
            "the lease asks for rows that the table does not have", code="bad-rows"
        )
    resource.require_cells(lease.first_row, rows)
    return held[lease.resource]


SERVED_NAME: Final = "visits.db"  # beside the heads that the holder keeps
_APPLICATION: Final = 0x5345_4C56
_SCHEMA: Final = """
CREATE TABLE served (
  line TEXT, job TEXT, resource TEXT, purpose TEXT, first_row INTEGER, rows INTEGER,
  visits INTEGER NOT NULL,
  PRIMARY KEY (line, job, resource, purpose, first_row, rows)
) STRICT, WITHOUT ROWID
"""
_COUNT: Final = """
SELECT coalesce(sum(visits), 0) FROM served WHERE line = ? AND purpose = ?
"""
_TAKE: Final = """
INSERT INTO served VALUES (?, ?, ?, ?, ?, ?, 1) ON CONFLICT DO UPDATE SET visits = visits + 1
"""


class ServedVisits:
    """The visits that this holder served, by line of agreements, job and range.

    Args:
        path: A file of several processes; made if it is not there.

    Raises:
        UnavailableError: if it cannot be written: no row is sent then.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with suppress(UsageError):  # it is there, or another process makes it
            create_database(path, _SCHEMA, _APPLICATION).close()

    def take(self, line: str, lease: Lease, most: int) -> None:
        """Count a visit, on the disk, before any of its rows leaves.

        Args:
            line: Name of the line of agreements: successors, other jobs and other
                settings go on counting.
            lease: Of the visit.
            most: ``max_visits`` of the agreement; sums, training and held-out rows are
                counted apart.

        Raises:
            PolicyError: ``too-many-visits``.
            UnavailableError: if it cannot be written.
        """
        with (
            closing(open_database(self._path, _APPLICATION)) as found,
            transaction(found, self._path),
        ):
            (served,) = found.execute(_COUNT, (line, lease.purpose)).fetchone()
            require_visits(served + 1, most, lease.holder)
            rows = (lease.first_row, lease.shape[0])
            served_now = (line, lease.job, lease.resource, lease.purpose, *rows)
            found.execute(_TAKE, served_now)
