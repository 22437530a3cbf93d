"""Load one visit's cargo: frames in, verified rows in the buffer (accelerator's side).

The order of checks is that of spec/visit.md section Frame. Plaintext exists in the
visit's pool only: a record is opened into the pool's quarantine slot, its keyed hash is
compared with the leaf that leads to the agreement's content commitment, and only then
are its bytes placed. Whatever fails raises; the caller revokes and scrubs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from sealift.channel.commitment import (
    ContentCommitment,
    VerifiedLeaves,
    verify_leaves,
)
from sealift.channel.header import StreamHeader, count_records
from sealift.channel.opener import Place, RecordOpener
from sealift.channel.quarantine import Slot
from sealift.crypto.kdf import Label
from sealift.crypto.keys import TOKEN, SecretKey
from sealift.errors import IntegrityError
from sealift.release.agreement import Resource
from sealift.release.audit import SignedTreeHead
from sealift.travel.frame import parse_frame
from sealift.travel.lease import Lease
from sealift.travel.messages import (
    LEAVES_PER_MESSAGE,
    Cargo,
    Credit,
    Leaves,
    MessageSession,
    Present,
    RatchetKey,
    Ready,
    receive_message,
    send_message,
)
from sealift.travel.pool import Pool
from sealift.travel.ratchet import Ratchet
from sealift.travel.state import Visit
from sealift.travel.visitkeys import VisitKeys, keys_of_ratchet, keys_of_session

WINDOW_FRAMES: Final = 16
CREDIT_EVERY: Final = 4  # a credit costs a sealed message, a window must outlast it


class VisitSession(MessageSession, Protocol):
    """The part of a session that a visit needs."""

    def receive_raw(self, timeout_s: float | None = None) -> bytes:
        """A frame that authenticates itself."""
        ...

    def send_raw(self, frame: bytes) -> None:
        """Send a frame that authenticates itself."""
        ...

    def export(self, label: Label, context: bytes = b"") -> SecretKey:
        """A key that both ends of the session derive."""
        ...

    def close(self) -> None:
        """End the session."""
        ...


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was loaded: frames and ciphertext bytes."""

    frames: int
    sealed_bytes: int


class CargoLoader:
    """Loads the cargo of one visit.

    Args:
        visit: The state machine, leased.
        resource: The resource as the agreement binds it.
        data_key: Released by the owner's broker.
        pool: This visit's memory.
        heads: Signed tree heads to show to the holder.
        ratchet: Keys of mode ``ratchet``.
    """

    def __init__(
        self,
        visit: Visit,
        resource: Resource,
        data_key: SecretKey,
        *,
        pool: Pool,
        heads: tuple[SignedTreeHead, ...],
        ratchet: Ratchet | None = None,
    ) -> None:
        self._visit = visit
        self._resource = resource
        self._data_key = data_key
        self._pool = pool
        self._heads = heads
        self._ratchet = ratchet or Ratchet()

    def load(self, session: VisitSession) -> Loaded:
        """Take the cargo from a holder that presents this visit's lease.

        Raises:
            RefusedError: for any frame that is not exactly the next one.
            PeerError: if the holder is gone or too slow.
        """
        keys = self._keys(session)
        try:
            return self._load(session, keys)
        finally:
            keys.wipe()

    def _load(self, session: VisitSession, keys: VisitKeys) -> Loaded:
        present = receive_message(session, Present, timeout_s=self._visit.remaining_s())
        check_presented(present, self._visit.lease)
        leaves = self._receive_leaves(session, present)
        opener = self._opener(present, keys)
        try:
            send_message(session, Ready(WINDOW_FRAMES, self._heads))
            sealed_bytes = 0
            expected = self._visit.expected_frames
            for count in range(1, expected + 1):
                raw = session.receive_raw(self._visit.remaining_s())
                sealed_bytes += self._place(raw, keys.frame, opener, leaves)
                if count % CREDIT_EVERY == 0 or count == expected:
                    send_message(session, Credit(count))
            self._seal(session)
        finally:
            opener.close()
        return Loaded(expected, sealed_bytes)

    def _keys(self, session: VisitSession) -> VisitKeys:
        lease = self._visit.lease
        if lease.crossing != "ratchet":
            return keys_of_session(session, lease)
        key = self._ratchet.take()
        try:
            send_message(session, RatchetKey(key.reveal(TOKEN)))
            return keys_of_ratchet(key, lease)
        finally:
            key.wipe()

    def _receive_leaves(
        self, session: VisitSession, present: Present
    ) -> VerifiedLeaves:
        resource, leaves = self._resource, list[bytes]()
        expected = count_records(resource.total_bytes, resource.record_bytes)
        if present.num_leaves != expected:
            raise _wrong_content(f"{present.num_leaves} records, {expected} agreed")
        while len(leaves) < expected:
            left_s = self._visit.remaining_s()
            batch = receive_message(session, Leaves, timeout_s=left_s)
            if not 0 < len(batch.hashes) <= LEAVES_PER_MESSAGE:
                raise _wrong_content("an empty or overlong list of leaves")
            leaves.extend(batch.hashes)
        commitment = ContentCommitment(
            resource.content, resource.total_bytes, resource.record_bytes
        )
        return verify_leaves(leaves, commitment, data_key=self._data_key)

    def _opener(self, present: Present, keys: VisitKeys) -> RecordOpener:
        header = StreamHeader.parse(present.header)
        told = (header.total_bytes, header.record_bytes)
        if told != (self._resource.total_bytes, self._resource.record_bytes):
            raise _wrong_content("the sealed file has another size")
        return keys.opener(present.header, self._data_key)

    def _place(
        self,
        raw: bytes,
        visit_key: SecretKey,
        opener: RecordOpener,
        leaves: VerifiedLeaves,
    ) -> int:
        frame = parse_frame(raw)
        frame.authenticate(visit_key, self._visit.lease.digest)
        place = self._visit.admit(frame)
        slot = Slot(self._pool.quarantine)
        where = Place(place.record, place.record, opener.header.is_final(place.record))
        # Private: `raw` is this process's own receive buffer.
        plaintext = opener.open_in(slot, where, frame.record, private=True)
        try:
            leaves.verify(place.record, plaintext)
            end = place.offset + place.length
            rows = plaintext[place.skip : place.skip + place.length]
            self._pool.buffer[place.offset : end] = rows
        finally:
            slot.scrub()
        return len(frame.record)

    def _seal(self, session: VisitSession) -> None:
        told = receive_message(session, Cargo, timeout_s=self._visit.remaining_s())
        self._visit.seal(told.frames, told.cargo_bytes)


def _wrong_content(why: str) -> IntegrityError:
    return IntegrityError(
        "the holder's file is not the one agreed on",
        why=why,
        fix="Use the file that the agreement was made with, or make a successor",
        code="content-mismatch",
    )


def check_presented(present: Present, lease: Lease) -> None:
    """The holder must present the lease that this visit was granted.

    Raises:
        IntegrityError: if it presents another one.
    """
    if present.lease.lease != lease:
        raise IntegrityError("another lease was presented", code="foreign-lease")
