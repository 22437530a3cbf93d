"""Attacks on a visit: the lease (T1), reading (T2), the next key (T3), splicing (T4).

And what the visit leaves behind (T6), stalling (T8), other rows (T9).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from sealift.codec import encode
from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import SigningKey
from sealift.errors import AuthenticationError, MalformedError
from sealift.ids import Buffer, Digest, Handle
from sealift.lab.attacks.follower import (
    STEPS,
    Recorded,
    advance,
    follow,
    under_ratchet,
)
from sealift.lab.attacks.stage import (
    ADA,
    BERN,
    CANARY,
    LEASE_S,
    NOTHING_LEFT,
    Stage,
    refusal,
    train,
)
from sealift.lab.worlds.holders import (
    BEYOND_LEASE,
    REPLAY,
    HostileSession,
    InterposedSession,
)
from sealift.session.session import Session
from sealift.travel.visit.lease import Frame, Lease, Placement, build_frame, parse_frame
from sealift.travel.visit.memory import CPUPool, scrub
from sealift.travel.visit.messages import Present, parse_message

Spoil = Callable[[InterposedSession, Frame, bytes], bytes]
STALL_S: Final = 0.3


class SpoilingSession(InterposedSession):
    """Sends what ``spoil`` makes of each frame; nothing if that is empty."""

    def __init__(self, session: Session, lease: Lease, spoil: Spoil) -> None:
        super().__init__(session, lease)
        self._spoil = spoil

    def send_raw(self, frame: Buffer) -> None:
        """The spoiled frame."""
        whole = bytes(frame)  # its memory is used again for the next one
        spoiled = self._spoil(self, parse_frame(whole), whole)
        if spoiled:
            super().send_raw(spoiled)


class RecordingSession(InterposedSession):
    """Behaves, and keeps what crossed, and every key that the holder was given."""

    def __init__(self, session: Session, lease: Lease) -> None:
        super().__init__(session, lease)
        self.frames: list[bytes] = []
        self.header = b""

    def send(self, message: Buffer) -> None:
        """The message as it is."""
        super().send(message)
        with suppress(MalformedError):
            told = parse_message(bytes(message), (Present,))
            self.header = told.header if isinstance(told, Present) else b""

    def recorded(self) -> Recorded:
        """The visit, for an attack on it."""
        frames = map(parse_frame, self.frames)
        return Recorded(
            self.header, {each.record_index: bytes(each.record) for each in frames}
        )

    def send_raw(self, frame: Buffer) -> None:
        """The frame as it is."""
        self.frames.append(bytes(frame))
        super().send_raw(frame)


class AskingSession(InterposedSession):
    """Asks for memory where frames belong, and keeps what it is told."""

    def __init__(self, session: Session, lease: Lease) -> None:
        super().__init__(session, lease)
        self.told: list[bytes] = []

    def send_raw(self, _frame: Buffer) -> None:
        """A request, in a message."""
        plain = {"offset": 0, "length": 1 << 20}
        super().send(encode({"type": "read-memory", "body": plain}))

    def receive(self, timeout_s: float | None = None) -> bytes:
        """What it is told."""
        self.told.append(super().receive(timeout_s))
        return self.told[-1]


def honest(stage: Stage) -> bool:
    """The same visit without an attack ends in a receipt."""
    visited = stage.visit()
    return not visited.refusal and visited.receipt is not None


def next_holder(stage: Stage) -> bool:
    """The next holder is served."""
    return not stage.visit(BERN).refusal


# The lease (T1), and reading (T2).


def beyond_lease(stage: Stage) -> str:
    """An authenticated frame behind the end of the lease."""
    return _hostile(stage, BEYOND_LEASE)


def foreign_buffer(stage: Stage) -> str:
    """An authenticated frame for another buffer."""

    def spoil(session: InterposedSession, frame: Frame, _raw: bytes) -> bytes:
        return _rebuilt(session, frame, frame.record, handle=Handle.generate())

    return _spoiled(stage, spoil)


def restarted_accelerator(stage: Stage) -> str:
    """A lease for the instance key that the accelerator had before it restarted."""
    former = SigningKey.generate().public_key
    return stage.visit(lease=lambda lease: replace(lease, accelerator=former)).refusal


def asks_for_memory(stage: Stage) -> str:
    """A request for another owner's rows, in place of a frame; and what it is told."""
    stage.visit(BERN)
    asking: list[AskingSession] = []

    def between(session: Session, lease: Lease) -> Session:
        asking.append(AskingSession(session, lease))
        return asking[0]

    refused = stage.visit(between=between).refusal
    return "" if any(CANARY in told for told in asking[0].told) else refused


# The next key (T3), and splicing (T4).


def next_visit(stage: Stage) -> str:
    """The former holder's key, and what a public ratchet makes of it, on later frames."""
    former, later = _record(stage), _record(stage, BERN)
    assert former.visit_key is not None, "the visit was verified"
    key = former.visit_key.twin()
    for _ in range(STEPS + 1):
        if _authenticates(key, later):
            return ""
        key = advance(key)
    return AuthenticationError.default_code


def right_key(stage: Stage) -> bool:
    """The key of the visit itself authenticates its frames."""
    recorded = _record(stage, BERN)
    return recorded.visit_key is not None and _authenticates(
        recorded.visit_key, recorded
    )


def follow_records(stage: Stage) -> str:
    """A past holder's keys, ratcheted forward, on the records of the next visit."""
    former, later = _record(stage), _record(stage, BERN)
    read = follow(former.keys, later.recorded())
    return "" if read else AuthenticationError.default_code


def follow_ratchet(stage: Stage) -> bool:
    """Where keys are ratcheted forward, the same attack reads the next holder's rows."""
    former, later = _record(stage), _record(stage, BERN)
    data_key = stage.consortium.keys[train(BERN)]
    ratcheted = under_ratchet(later.recorded(), data_key, former.keys[-1])
    return CANARY in follow(former.keys, ratcheted)


def replayed(stage: Stage) -> str:
    """The first frame once more, in place of the second."""
    return _hostile(stage, REPLAY)


def swapped_record(stage: Stage) -> str:
    """Another owner's record in a frame that is authentic."""
    other = stage.held[train(BERN)].source

    def spoil(session: InterposedSession, frame: Frame, _raw: bytes) -> bytes:
        return _rebuilt(session, frame, other.record(frame.record_index))

    return _spoiled(stage, spoil)


def flipped_byte(stage: Stage) -> str:
    """One bit of a record changed on the way."""

    def spoil(_session: InterposedSession, _frame: Frame, raw: bytes) -> bytes:
        changed = bytearray(raw)
        changed[-20] ^= 1
        return bytes(changed)

    return _spoiled(stage, spoil)


# What is left (T6), stalling (T8), other rows than those committed to (T9).


def look_for_rows(stage: Stage) -> str:
    """Look for the rows in the visit's memory after it has ended."""
    visited = stage.visit()
    return "" if CANARY in visited.after or any(visited.after) else NOTHING_LEFT


def rows_are_found(stage: Stage) -> bool:
    """The same search finds them while the visit goes on."""
    return CANARY in stage.visit().inside


def idle_scrub(_stage: Stage) -> str:
    """A scrub that does not write is noticed when the memory is read back."""
    return _scrub_refusal(writes=False)


def scrub_works(_stage: Stage) -> bool:
    """The real one passes."""
    return not _scrub_refusal(writes=True)


def late_frames(stage: Stage) -> str:
    """Frames after the lease's seconds have passed, suspension included."""

    def spoil(_session: InterposedSession, frame: Frame, raw: bytes) -> bytes:
        if frame.sequence == 1:
            stage.added_s += LEASE_S
        return raw

    return _spoiled(stage, spoil)


def stalled(stage: Stage) -> str:
    """A holder that says nothing any more, with the lease in its hands."""

    def spoil(_session: InterposedSession, frame: Frame, raw: bytes) -> bytes:
        if frame.sequence == 0:
            return raw
        time.sleep(2 * STALL_S)
        return b""

    return _spoiled(stage, spoil, lambda lease: replace(lease, lease_s=STALL_S))


def changed_rows(stage: Stage) -> str:
    """Other rows than those committed to, properly sealed by the holder of the key."""
    agreed = stage.held[train(ADA)]
    stage.change_rows(ADA)
    try:
        return stage.visit().refusal
    finally:
        stage.held[train(ADA)] = agreed


@dataclass(frozen=True, slots=True)
class _Named:
    """A lease's digest with a handle that need not be its own."""

    handle: Handle
    digest: Digest


def _rebuilt(
    session: InterposedSession,
    frame: Frame,
    record: Buffer,
    handle: Handle | None = None,
) -> bytes:
    """The same frame with another record or handle and a MAC that fits."""
    assert session.visit_key is not None, "frames are built with it"
    place = Placement(
        frame.sequence, frame.record_index, frame.offset, frame.length, skip=0
    )
    lease = _Named(handle or frame.handle, session.lease.digest)
    return build_frame(session.visit_key, lease, place, record)


def _hostile(stage: Stage, attack: str) -> str:
    return stage.visit(
        between=lambda session, lease: HostileSession(session, lease, attack=attack)
    ).refusal


def _spoiled(
    stage: Stage, spoil: Spoil, lease: Callable[[Lease], Lease] = lambda lease: lease
) -> str:
    return stage.visit(
        between=lambda session, lease: SpoilingSession(session, lease, spoil),
        lease=lease,
    ).refusal


def _record(stage: Stage, owner: str = ADA) -> RecordingSession:
    found: list[RecordingSession] = []

    def between(session: Session, lease: Lease) -> Session:
        found.append(RecordingSession(session, lease))
        return found[0]

    stage.visit(owner, between=between)
    return found[0]


def _authenticates(key: SecretKey, recorded: RecordingSession) -> bool:
    """Whether a key authenticates any recorded frame."""
    for raw in recorded.frames:
        with suppress(AuthenticationError):
            parse_frame(raw).authenticate(key, recorded.lease.digest)
            return True
    return False


def _scrub_refusal(*, writes: bool) -> str:
    pool = CPUPool(len(CANARY), len(CANARY))
    pool.buffer[:] = CANARY
    try:
        if writes:
            return refusal(lambda: scrub(pool.regions()))
        return refusal(lambda: scrub(pool.regions(), write=lambda _region: None))
    finally:
        scrub(pool.regions())
        pool.close()
