"""The accelerator's side of a visit: offer, load, hand to the work, scrub, receipt.

A visit has a pool and a state machine of its own, so that its scrub touches nothing of
another visit that loads meanwhile (rule H2). Loading and work are apart: what is loaded
waits for the orchestrator's word, and one group of visits is worked on at a time.
Whatever goes wrong ends in a revoked visit and a scrubbed pool. A scrub that does not
hold is not a failed visit: it ends the process.

The order of checks of a frame is that of spec/visit.md section Frame. Frames come through
the session, where a window of them is under way and credits open it, or over a direct
transport, whose slots or buffers do the same. A frame's payload is a record of the owner's
sealed file. One that lies wholly inside the lease is opened straight into its place: nobody
reads the buffer before the visit is sealed, and a visit that fails scrubs it. A record at
the lease's edge is opened in the quarantine slot, and the leased part of it placed. Content
is hashed by threads beside the opening, from the visit's private memory; nothing counts as
loaded before ``finish``.
"""

from __future__ import annotations

import os
import re
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Final

from sealift.channel.record.commitment import (
    LEAF_BYTES,
    ContentCommitment,
    VerifiedLeaves,
    verify_leaves,
)
from sealift.channel.record.layout import StreamHeader, count_records
from sealift.channel.record.opener import RecordOpener, RecordPosition, Slot
from sealift.channel.record.record import verify_description
from sealift.channel.transport.transport import SlotTransport
from sealift.crypto.keys import Label, SecretKey
from sealift.errors import (
    AuthenticationError,
    IntegrityError,
    MalformedError,
    PeerError,
    PolicyError,
    SealiftError,
    StaleError,
)
from sealift.events import emit
from sealift.release.agreement import part_for
from sealift.release.receipt import ScrubSummary
from sealift.session.direct import PathName
from sealift.session.directhost import DirectPlace
from sealift.session.session import Session
from sealift.travel.accelerator.setup import (
    GroupResult,
    HostSetup,
    LoadedCargo,
    LoadedVisit,
    PhaseTimer,
    ReleasedResource,
    StartOverError,
    Work,
)
from sealift.travel.visit.errors import gave_up, last_words
from sealift.travel.visit.lease import (
    Lease,
    RecordTarget,
    SignedLease,
    frame_bytes,
    parse_frame,
    verify_lease,
)
from sealift.travel.visit.memory import CPUPool, scrub
from sealift.travel.visit.messages import (
    LEAVES_PER_MESSAGE,
    BufferOffered,
    Cargo,
    Credit,
    Failed,
    FailedError,
    Leaves,
    OfferVisit,
    PathTaken,
    Present,
    Ready,
    Receipted,
    VisitEnded,
    VisitPhase,
    receive_message,
    send_message,
)
from sealift.travel.visit.state import Visit, VisitState

CODE: Final = re.compile(r"[a-z][a-z0-9-]{0,63}")


class HostedVisit:
    """One visit, from its offer to its end.

    Attributes:
        offer: What the orchestrator asked for.
        departed: Why its owner's rows may not be here any more, once they may not.
    """

    def __init__(self, offer: OfferVisit, setup: HostSetup) -> None:
        setup.rules.admit(offer)
        self.offer = offer
        self._setup = setup
        self._timer = PhaseTimer(setup.clock, self._tell_phase)
        self._released = self._find(offer)
        self._session: Session | None = None
        self._loader: CargoLoader | None = None
        self._lease: Lease | None = None
        self._loaded = LoadedVisit(0, 0)
        self._scrubbed: ScrubSummary | None = None
        self._ending = threading.RLock()  # a stop may come from another thread
        self.departed: Failed | None = None
        with self._timer.phase("offer"):
            resource = self._released.resource
            buffer_bytes = offer.rows * resource.row_bytes
            self._pool = setup.make_pool(buffer_bytes, resource.record_bytes)
        self._visit = Visit(
            offer.visit, self._pool.handle, buffer_bytes, clock=setup.clock
        )

    @property
    def state(self) -> VisitState:
        """Where the visit stands."""
        return self._visit.state

    def offered(self) -> BufferOffered:
        """The answer to the orchestrator."""
        return BufferOffered(
            self.offer.visit, self._pool.handle, self._visit.buffer_bytes
        )

    @property
    def cargo(self) -> LoadedCargo:
        """What the work gets to see."""
        return LoadedCargo(self.offer, self._released.resource, self._pool.shared)

    def load(self, signed: SignedLease) -> VisitEnded | None:
        """Meet the holder and load; how it ended, if nothing was loaded.

        Raises:
            StaleError: if it has ended.
            IntegrityError: if the scrub did not hold; the process must stop.
        """
        if self._scrubbed is not None:
            raise StaleError("this visit has already ended", code="visit-ended")
        try:
            self._load(signed)
        except SealiftError as error:
            return self.fail(_forget(error))
        except BaseException:  # a signal: scrub, then let it pass
            self.abandon("stopped")
            raise
        self._timer.begin("wait")
        return None

    def begin(self) -> VisitEnded | None:
        """The recipe sees the rows from here on; how it ended, if it may not."""
        try:
            self._visit.begin_training()
            self._setup.rules.begin(self.offer)
            self._setup.debit(self.offer)  # last: what was debited is used
        except SealiftError as error:
            return self.fail(_forget(error))
        if self.departed is not None:  # keys ended while the broker was asked
            return self.fail(self.departed)
        self._timer.end("wait")
        self._timer.begin("train")
        return None

    def finish(self, result: GroupResult) -> VisitEnded:
        """All rows were worked on: scrub, and only then the receipt.

        Raises:
            IntegrityError: if the scrub did not hold; the process must stop.
        """
        if self.departed is not None:
            return self.fail(self.departed)
        self._timer.end("train")
        self._setup.rules.count(self.offer)
        self._visit.begin_scrub()
        scrubbed = self._scrub()
        metrics = result.metrics.get(self.offer.resource, {})
        self._hand_receipt(scrubbed, metrics)
        return self._ended(scrubbed, metrics=dict(metrics), curve=result.curve)

    def fail(self, failure: Failed, *, fatal: bool = False) -> VisitEnded:
        """Revoke, scrub, tell the holder; the visit counts for nothing.

        Raises:
            IntegrityError: if the scrub did not hold; the process must stop.
        """
        failure = self.departed or failure
        for phase in ("wait", "train"):
            self._timer.end(phase)
        with self._ending:
            if self._scrubbed is None:
                self._visit.revoke(failure.code)
            scrubbed = self._scrub()
        if self._session is not None:
            with suppress(SealiftError), self._timer.phase("receipt"):
                send_message(self._session, failure)
            self.close_session()
        return self._ended(scrubbed, failure, fatal=fatal)

    def withdraw(self) -> VisitEnded:
        """The orchestrator grants nothing: the holder is gone."""
        return self.fail(Failed("holder-missing", "the holder is disconnected"))

    def depart(self, failure: Failed) -> None:
        """Its owner's keys have ended: no frame is admitted, nothing of it is worked on."""
        self.departed = failure
        self.revoke(failure.code)

    def revoke(self, reason: str) -> None:
        """No frame is admitted from here on; whoever loads notices. Never waits."""
        with self._ending:
            if self._scrubbed is None:
                self._visit.revoke(reason)

    def abandon(self, reason: str) -> ScrubSummary | None:
        """Revoke and scrub from any state; the last scrub. Safe to repeat."""
        with self._ending:
            if self._scrubbed is None:
                self._visit.revoke(reason)
                self._scrub()
        self.close_session()
        return self._scrubbed

    def close_session(self) -> None:
        """Hang up on the holder; a load that waits for it ends."""
        if self._loader is not None:
            self._loader.stop()
        if self._session is not None:
            self._session.close()

    def run(self, signed: SignedLease) -> VisitEnded:
        """A whole visit as a group of its own.

        Raises:
            IntegrityError: if the scrub did not hold; the process must stop.
        """
        ended = self.load(signed)
        if ended is not None:
            return ended
        try:
            ((_visit, ended),) = work_together([self], self._setup.work)
        except SealiftError:
            raise
        except BaseException:  # a signal: scrub, then let it pass
            self.abandon("stopped")
            raise
        return ended

    def _find(self, offer: OfferVisit) -> ReleasedResource:
        departed = self._setup.departed.get(offer.holder)
        if departed is not None:
            raise departed
        released = self._setup.released.get(offer.resource)
        if released is None or released.resource.owner != offer.holder:
            raise PolicyError(
                "the key for these rows was not released", code="no-such-resource"
            )
        resource = released.resource
        if part_for(offer.purpose) != resource.part:
            raise PolicyError(
                "the visit asks for rows that the table does not have", code="bad-rows"
            )
        resource.require_cells(offer.first_row, offer.rows)
        resource.require_purpose(offer.purpose)
        return released

    def _load(self, signed: SignedLease) -> None:
        lease = verify_lease(signed, self._setup.terms)
        self._check_against_offer(lease)
        self._visit.accept(lease, self._released.resource.record_bytes)
        self._lease = lease
        with self._timer.phase("handshake"):
            session = self._setup.meet(lease, self._visit.remaining_s())
            self._session = session
        with self._timer.phase("load"):
            self._loader = CargoLoader(
                self._visit, self._released, self._pool, self._setup
            )
            self._loaded = self._loader.load(session)
        with self._timer.phase("check"):
            self._setup.check(self.cargo)

    def _scrub(self) -> ScrubSummary:
        with self._ending:
            if self._scrubbed is None:
                with self._timer.phase("scrub"):
                    report = scrub(self._pool.regions())
                    self._visit.end()
                    self._pool.close()
                self._scrubbed = report
            return self._scrubbed

    def _hand_receipt(
        self, scrubbed: ScrubSummary, metrics: Mapping[str, float]
    ) -> None:
        """To the holder, which may be gone by now."""
        if self._session is None or self._lease is None:
            return
        with suppress(SealiftError), self._timer.phase("receipt"):
            receipt = self._setup.sign(
                self._lease, self._loaded, self._timer.seconds, scrubbed
            )
            send_message(self._session, Receipted(receipt, dict(metrics)))
        self.close_session()

    def _ended(
        self,
        scrubbed: ScrubSummary,
        failure: Failed | None = None,
        *,
        metrics: Mapping[str, float] | None = None,
        curve: tuple[float, ...] = (),
        fatal: bool = False,
    ) -> VisitEnded:
        return VisitEnded(
            visit=self.offer.visit,
            outcome="verified" if failure is None else "failed",
            reason=failure.code if failure else "",
            line=failure.line if failure else "",
            sealed_bytes=self._loaded.sealed_bytes,
            phases_s=dict(self._timer.seconds),
            metrics=dict(metrics or {}),
            scrubbed_bytes=scrubbed.scrubbed_bytes,
            fatal=fatal,
            curve=curve,
        )

    def _check_against_offer(self, lease: Lease) -> None:
        offer, resource = self.offer, self._released.resource
        names = ("visit", "holder", "resource", "purpose", "first_row")
        same = all(getattr(lease, name) == getattr(offer, name) for name in names)
        shape = (offer.rows, resource.row_bytes)
        if not same or (lease.shape, lease.content) != (shape, resource.content):
            raise PolicyError("the lease differs from the offer", code="foreign-lease")

    def _tell_phase(self, phase: str) -> None:
        message = VisitPhase(self.offer.visit, phase)
        self._setup.tell(message)
        # A holder whose visit was revoked waits for the refusal, not for progress.
        told = phase in ("train", "scrub") and not self._visit.revoked_for
        if told and self._session is not None:
            with suppress(SealiftError):
                send_message(self._session, message)


def work_together(
    visits: Sequence[HostedVisit], work: Work
) -> Iterator[tuple[HostedVisit, VisitEnded]]:
    """Work on loaded visits as one group; each visit with its end, as it ends.

    A signal passes; the caller abandons what is left.

    Raises:
        StartOverError: if the work cannot go on here; the caller abandons everything.
        IntegrityError: if a scrub did not hold; the process must stop.
    """
    begun = []
    for visit in visits:
        refused = visit.begin()
        if refused is None:
            begun.append(visit)
        else:
            yield visit, refused
    if not begun:
        return
    try:
        result = work([visit.cargo for visit in begun])
    except StartOverError:
        raise
    except SealiftError as error:
        failure = _forget(error)  # of no party: rows were checked, keys are here
        left = next((each.departed for each in begun if each.departed), None)
        for visit in begun:  # what was cut because somebody left is nobody's failure
            yield visit, visit.fail(left or failure, fatal=left is None)
    else:
        for visit in begun:
            yield visit, visit.finish(result)


def _forget(error: SealiftError) -> Failed:
    """Keep an error's name and line; let go of every frame that may hold rows."""
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None:
            waiting += [each.__context__, each.__cause__]
            traceback.clear_frames(each.__traceback__)
            each.__traceback__ = each.__context__ = each.__cause__ = None
    # Whoever refused says why; what is no name of an error stays ``peer-failed``.
    told = error.failed.code if isinstance(error, FailedError) else ""
    return Failed(told if CODE.fullmatch(told) else error.code, str(error))


MAX_HASHING_THREADS: Final = 3
MAX_QUEUED: Final = 2  # more would leave the cache before they are hashed


class CargoRows:
    """Records of the owner's sealed file, checked against the agreement's content.

    Args:
        opener: Of the file, with the data key; closed by ``close``.
        leaves: Lead to the content commitment.
        pool: This visit's memory.
        hashing_threads: Threads that hash beside the opening; 0 hashes in turn.
    """

    def __init__(
        self,
        opener: RecordOpener,
        leaves: VerifiedLeaves,
        pool: CPUPool,
        *,
        hashing_threads: int | None = None,
    ) -> None:
        self._opener = opener
        self._leaves = leaves
        self._buffer, self._quarantine = pool.buffer, pool.quarantine
        threads = spare_cores() if hashing_threads is None else hashing_threads
        self._hashing = Hashing(leaves, threads)

    def place(self, place: RecordTarget, payload: memoryview) -> None:
        """Open one record where its frame says, or its leased part."""
        header, record = self._opener.header, place.record
        where = RecordPosition(record, record, header.is_final(record))
        if place.length == header.plaintext_bytes(record):  # all of it is leased
            end = place.offset + place.length
            slot = Slot(self._buffer[place.offset : end])
            opened = self._opener.open_in(slot, where, payload, private=True)
            self._hashing.submit(record, opened)
        else:
            self._place_part(place, where, payload)

    def finish(self) -> None:
        """All of it is checked, or this raises; see ``Hashing``."""
        self._hashing.finish()

    def close(self) -> None:
        """Let go of the key; safe to repeat."""
        self._hashing.close()
        self._opener.close()

    def _place_part(
        self, place: RecordTarget, where: RecordPosition, payload: memoryview
    ) -> None:
        slot = Slot(self._quarantine)
        opened = self._opener.open_in(slot, where, payload, private=True)
        try:
            self._leaves.verify(place.record, opened)
            rows = opened[place.skip : place.skip + place.length]
            self._buffer[place.offset : place.offset + place.length] = rows
        finally:
            slot.scrub()


class Hashing:
    """Checks leaves in threads; the first failure is raised by the next call.

    Args:
        leaves: What the hashes must be.
        threads: How many, 0 for none; hashing lets go of the interpreter's lock.
    """

    def __init__(self, leaves: VerifiedLeaves, threads: int) -> None:
        self._leaves = leaves
        self._queue: SimpleQueue[tuple[int, memoryview] | None] = SimpleQueue()
        self._failure: BaseException | None = None
        self._dropping = False
        self._threads = [
            threading.Thread(target=self._hash, name="hashing", daemon=True)
            for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, record: int, plaintext: memoryview) -> None:
        """Check one record, some time before ``finish`` returns."""
        if self._failure is not None:
            raise self._failure
        if self._queue.qsize() < MAX_QUEUED * len(self._threads):
            self._queue.put((record, plaintext))
        else:  # whoever opens helps, rather than run ahead
            self._leaves.verify(record, plaintext)

    def finish(self) -> None:
        """Wait for every check.

        Raises:
            IntegrityError: if a record was not the agreed one.
        """
        self._join()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Drop what is queued, and end. Idempotent."""
        self._dropping = True
        self._join()

    def _join(self) -> None:
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _hash(self) -> None:
        while (each := self._queue.get()) is not None:
            if self._failure is None and not self._dropping:
                self._check(*each)
            del each  # no view of the buffer outlives its check

    def _check(self, record: int, plaintext: memoryview) -> None:
        try:
            self._leaves.verify(record, plaintext)
        except BaseException as error:  # a bug must not pass for a check that held
            self._failure = error


def spare_cores() -> int:
    """Threads worth having beside the one that opens."""
    return max(1, min(MAX_HASHING_THREADS, len(os.sched_getaffinity(0)) - 1))


WINDOW_FRAMES: Final = 16
CREDIT_EVERY: Final = 4  # a credit costs a sealed message, a window must outlast it
LAST_WORDS_S: Final = 1.0
Remaining = Callable[[], float]
CONNECT_S: Final = 5.0  # the holder said that it came; its connection is on the way


class RelayedSource:
    """Frames inside the session, acknowledged every few."""

    def __init__(self, session: Session, remaining_s: Remaining) -> None:
        self._session = session
        self._remaining_s = remaining_s
        self._taken = 0

    def frame(self) -> memoryview:
        """The next frame; what is not one ends the visit."""
        incoming = self._session.receive_any(self._remaining_s())
        if incoming.raw:
            return memoryview(incoming.payload)
        raise gave_up(incoming.payload)

    def took(self, *, last: bool) -> None:
        """Acknowledge every fourth frame and the last."""
        self._taken += 1
        if last or self._taken % CREDIT_EVERY == 0:
            # A holder that is gone may have said why: the next receive tells.
            with suppress(PeerError):
                send_message(self._session, Credit(self._taken))


class DirectSource:
    """Frames where they lie in the transport's memory."""

    def __init__(
        self, transport: SlotTransport, session: Session, remaining_s: Remaining
    ) -> None:
        self._transport = transport
        self._session = session
        self._remaining_s = remaining_s

    def frame(self) -> memoryview:
        """The next frame, borrowed."""
        with last_words(self._session, LAST_WORDS_S):
            return self._transport.borrow(self._remaining_s())

    def took(self, *, last: bool) -> None:
        """Give the slot back."""
        self._transport.give_back()


class CargoLoader:
    """Loads the cargo of one visit.

    Args:
        visit: The state machine, leased.
        released: The resource as the agreement binds it, and its key.
        pool: This visit's memory.
        setup: What every visit needs.
    """

    def __init__(
        self,
        visit: Visit,
        released: ReleasedResource,
        pool: CPUPool,
        setup: HostSetup,
    ) -> None:
        self._visit = visit
        self._resource, self._data_key = released.resource, released.data_key
        self._pool = pool
        self._setup = setup
        self._open_place: DirectPlace | None = None

    def stop(self) -> None:
        """End a direct path that a load in another thread waits on; safe to repeat."""
        place, direct_host = self._open_place, self._setup.direct_host
        if direct_host is not None and place is not None:
            direct_host.withdraw(place)

    def load(self, session: Session) -> LoadedVisit:
        """Take the cargo from a holder that presents this visit's lease.

        Raises:
            RefusedError: for any frame that is not exactly the next one.
            PeerError: if the holder is gone or too slow.
        """
        key = session.export(Label.VISIT_FRAME, self._visit.lease.digest.raw)
        try:
            return self._load(session, key)
        finally:
            key.wipe()

    def _load(self, session: Session, visit_key: SecretKey) -> LoadedVisit:
        left_s = self._visit.remaining_s()
        present = receive_message(session, Present, timeout_s=left_s)
        check_presented(present, self._visit.lease)
        leaves = self._receive_leaves(session, present)
        rows = self._make_rows(present, leaves)
        try:
            with self._path(session) as (source, path):
                sealed, expected = 0, self._visit.expected_frames
                for count in range(1, expected + 1):
                    sealed += self._place(source.frame(), visit_key, rows)
                    source.took(last=count == expected)
                left_s = self._visit.remaining_s()
                told = receive_message(session, Cargo, timeout_s=left_s)
                rows.finish()
                self._visit.seal(told.frames, told.cargo_bytes)
        finally:
            rows.close()
        return LoadedVisit(expected, sealed, path)

    def _receive_leaves(self, session: Session, present: Present) -> VerifiedLeaves:
        resource, leaves = self._resource, list[bytes]()
        expected = count_records(resource.total_bytes, resource.record_bytes)
        if present.num_leaves != expected:
            raise _wrong_content(
                f"it has {present.num_leaves} records; the agreement names {expected}"
            )
        while len(leaves) < expected:
            left_s = self._visit.remaining_s()
            batch = receive_message(session, Leaves, timeout_s=left_s)
            leaves.extend(split_leaves(batch.hashes))
        commitment = ContentCommitment(
            resource.content, resource.total_bytes, resource.record_bytes
        )
        return verify_leaves(leaves, commitment, data_key=self._data_key)

    def _make_rows(self, present: Present, leaves: VerifiedLeaves) -> CargoRows:
        header = StreamHeader.parse(present.header)
        told = (header.total_bytes, header.record_bytes)
        if told != (self._resource.total_bytes, self._resource.record_bytes):
            raise _wrong_content(
                "the sealed file has another size than the agreement names"
            )
        opener = RecordOpener(self._data_key, present.header)
        if header.is_described and self._setup.columns is not None:
            try:
                columns = self._setup.columns(self._resource)
                verify_description(self._data_key, header, columns)
            except AuthenticationError as error:
                raise _wrong_content("it was sealed with other columns") from error
        return CargoRows(opener, leaves, self._pool)

    @contextmanager
    def _path(
        self, session: Session
    ) -> Iterator[tuple[RelayedSource | DirectSource, PathName]]:
        """Say that we are ready, and hear which way the frames will come."""
        place, setup = None, self._setup
        if setup.direct_host is not None:
            key = session.export(Label.DIRECT_PATH, self._visit.lease.digest.raw)
            longest = frame_bytes(self._resource.record_bytes)
            place = self._open_place = setup.direct_host.offer(key, longest)
        try:
            offers = place.offers if place else ()
            send_message(session, Ready(WINDOW_FRAMES, setup.heads(), offers))
            left_s = self._visit.remaining_s()
            taken = receive_message(session, PathTaken, timeout_s=left_s)
            visit = self._visit.visit.to_text()
            emit(setup.sink, "visit.path", visit=visit, path=taken.path)
            yield self._source(session, taken.path, place), taken.path
        finally:
            self.stop()

    def _source(
        self, session: Session, path: PathName, place: DirectPlace | None
    ) -> RelayedSource | DirectSource:
        remaining_s = self._visit.remaining_s
        if path == "relay":
            return RelayedSource(session, remaining_s)
        if place is None or path not in {offer.kind for offer in place.offers}:
            raise MalformedError(
                "a connection path that was not offered", code="bad-message"
            )
        transport = place.transport(min(CONNECT_S, remaining_s()))
        return DirectSource(transport, session, remaining_s)

    def _place(self, raw: memoryview, visit_key: SecretKey, rows: CargoRows) -> int:
        frame = parse_frame(raw)
        frame.authenticate(visit_key, self._visit.lease.digest)
        rows.place(self._visit.admit(frame), frame.record)
        return len(frame.record)


def split_leaves(hashes: bytes) -> list[bytes]:
    """The leaves of one message.

    Raises:
        IntegrityError: if it has none, too many, or a part of one.
    """
    count, rest = divmod(len(hashes), LEAF_BYTES)
    if rest or not 0 < count <= LEAVES_PER_MESSAGE:
        raise _wrong_content(f"one message has {len(hashes)} bytes of leaf hashes")
    return [
        hashes[start : start + LEAF_BYTES]
        for start in range(0, len(hashes), LEAF_BYTES)
    ]


def _wrong_content(why: str) -> IntegrityError:
    return IntegrityError(
        "the holder's file is not the file that the agreement names",
        why=why,
        code="content-mismatch",
    )


def check_presented(present: Present, lease: Lease) -> None:
    """The holder must present the lease that this visit was granted.

    Raises:
        IntegrityError: if it presents another one.
    """
    if present.lease.body != lease:
        raise IntegrityError("the holder presented another lease", code="foreign-lease")
