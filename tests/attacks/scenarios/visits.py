"""Attacks on a visit: the lease (T1), reading (T2), splicing (T4), stalling (T8).

And on what it leaves behind (T6), other rows (T9), single rows (N5). The next visit's key
(T3): ``formerholder``.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from sealift.codec import encode
from sealift.crypto.sign import SigningKey
from sealift.data.schedule.visits import BufferChoice
from sealift.demo.holders import (
    BEYOND_LEASE,
    REPLAY,
    HostileSession,
    InterposedSession,
    build_frame,
)
from sealift.errors import require_value
from sealift.ids import Buffer, Digest, Handle
from sealift.session.session import Session
from sealift.train.job.runningjob import JobShapes
from sealift.travel.holder.visit import SERVED_NAME, ServedVisits, check_lease
from sealift.travel.visit.lease import Frame, Lease, RecordTarget, parse_frame
from sealift.travel.visit.memory import CPUPool, scrub
from tests.attacks.scenarios.world import (
    ADA,
    BERN,
    CANARY,
    CELL_ROWS,
    LEASE_S,
    NOTHING_LEFT,
    AttackWorld,
    refusal,
    train,
)
from tests.worlds.visits import ROW_BYTES

Spoil = Callable[[InterposedSession, Frame, bytes], bytes]
STALL_S: Final = 0.3
_CHOICE: Final = BufferChoice(1 << 20, "as the job began")


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


def honest(world: AttackWorld) -> bool:
    """The same visit without an attack ends in a receipt."""
    visited = world.visit()
    return not visited.refusal and visited.receipt is not None


def next_holder(world: AttackWorld) -> bool:
    """The next holder is served."""
    return not world.visit(BERN).refusal


# The lease (T1), and reading (T2).


def beyond_lease(world: AttackWorld) -> str:
    """An authenticated frame behind the end of the lease."""
    return _hostile(world, BEYOND_LEASE)


def foreign_buffer(world: AttackWorld) -> str:
    """An authenticated frame for another buffer."""

    def spoil(session: InterposedSession, frame: Frame, _raw: bytes) -> bytes:
        return _rebuilt(session, frame, frame.record, handle=Handle.generate())

    return _spoiled(world, spoil)


def restarted_accelerator(world: AttackWorld) -> str:
    """A lease for the instance key that the accelerator had before it restarted."""
    former = SigningKey.generate().public_key
    return world.visit(lease=lambda lease: replace(lease, accelerator=former)).refusal


def asks_for_memory(world: AttackWorld) -> str:
    """A request for another owner's rows, in place of a frame; and what it is told."""
    world.visit(BERN)
    asking: list[AskingSession] = []

    def between(session: Session, lease: Lease) -> Session:
        asking.append(AskingSession(session, lease))
        return asking[0]

    refused = world.visit(between=between).refusal
    return "" if any(CANARY in told for told in asking[0].told) else refused


# Splicing (T4).


def replayed(world: AttackWorld) -> str:
    """The first frame once more, in place of the second."""
    return _hostile(world, REPLAY)


def swapped_record(world: AttackWorld) -> str:
    """Another owner's record in a frame that is authentic."""
    other = world.held[train(BERN)].source

    def spoil(session: InterposedSession, frame: Frame, _raw: bytes) -> bytes:
        return _rebuilt(session, frame, other.record(frame.record_index))

    return _spoiled(world, spoil)


def flipped_byte(world: AttackWorld) -> str:
    """One bit of a record changed on the way."""

    def spoil(_session: InterposedSession, _frame: Frame, raw: bytes) -> bytes:
        changed = bytearray(raw)
        changed[-20] ^= 1
        return bytes(changed)

    return _spoiled(world, spoil)


# What is left (T6), stalling (T8), other rows than those committed to (T9).


def look_for_rows(world: AttackWorld) -> str:
    """Look for the rows in the visit's memory after it has ended."""
    visited = world.visit()
    return "" if CANARY in visited.after or any(visited.after) else NOTHING_LEFT


def rows_are_found(world: AttackWorld) -> bool:
    """The same search finds them while the visit goes on."""
    return CANARY in world.visit().inside


def idle_scrub(_world: AttackWorld) -> str:
    """A scrub that does not write is noticed when the memory is read back."""
    return _scrub_refusal(writes=False)


def scrub_works(_world: AttackWorld) -> bool:
    """The real one passes."""
    return not _scrub_refusal(writes=True)


def late_frames(world: AttackWorld) -> str:
    """Frames after the lease's seconds have passed, suspension included."""

    def spoil(_session: InterposedSession, frame: Frame, raw: bytes) -> bytes:
        if frame.sequence == 1:
            world.added_s += LEASE_S
        return raw

    return _spoiled(world, spoil)


def stalled(world: AttackWorld) -> str:
    """A holder that says nothing any more, with the lease in its hands."""

    def spoil(_session: InterposedSession, frame: Frame, raw: bytes) -> bytes:
        if frame.sequence == 0:
            return raw
        time.sleep(2 * STALL_S)
        return b""

    return _spoiled(world, spoil, lambda lease: replace(lease, lease_s=STALL_S))


def changed_rows(world: AttackWorld) -> str:
    """Other rows than those committed to, properly sealed by the holder of the key."""
    agreed = world.held[train(ADA)]
    world.change_rows(ADA)
    try:
        return world.visit().refusal
    finally:
        world.held[train(ADA)] = agreed


# Single rows (N5): an orchestrator that asks for other cuts, once more, after a restart.


def offered_cut(world: AttackWorld) -> str:
    """A cell and one row more, asked of the accelerator."""
    return refusal(lambda: world.visit(rows=CELL_ROWS + 1))


def whole_cell(world: AttackWorld) -> bool:
    """The cell alone."""
    return not world.visit(rows=CELL_ROWS).refusal


def leased_cut(world: AttackWorld) -> str:
    """The same, asked of the holder."""
    return refusal(lambda: _serve(world, CELL_ROWS + 1))


def leased_cell(world: AttackWorld) -> bool:
    """The cell alone."""
    return not refusal(lambda: _serve(world, CELL_ROWS))


def other_shape(_world: AttackWorld) -> str:
    """The job once more, with another buffer."""
    shapes = _begun()
    return refusal(lambda: shapes.hold("a job", Digest.of(b"another"), _CHOICE))


def same_shape(_world: AttackWorld) -> bool:
    """As it began, whatever memory is free by now."""
    later = BufferChoice(1 << 30, "half of the memory")
    return _begun().hold("a job", Digest.of(b"shape"), later) == _CHOICE


def visited_again(world: AttackWorld) -> str:
    """The last visit once more, after every process was started anew."""
    return _served(world, times=2)


def visited_once(world: AttackWorld) -> bool:
    """By a holder that served nothing yet."""
    return not _served(world, times=1)


def _serve(world: AttackWorld, rows: int) -> None:
    lease = replace(world.visit().lease, shape=(rows, ROW_BYTES))
    held = {train(ADA): world.held[train(ADA)]}
    check_lease(world.signed(lease), held, holder=ADA, terms=world.terms)


def _begun() -> JobShapes:
    shapes = JobShapes()
    shapes.hold("a job", Digest.of(b"shape"), _CHOICE)
    return shapes


def _served(world: AttackWorld, *, times: int) -> str:
    """What a holder says that serves a visit so often, each time in a new process."""
    lease = world.visit().lease
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / SERVED_NAME
        for _ in range(times - 1):
            ServedVisits(path).take(lease.job, lease, 1)
        return refusal(lambda: ServedVisits(path).take(lease.job, lease, 1))


def _rebuilt(
    session: InterposedSession,
    frame: Frame,
    record: Buffer,
    handle: Handle | None = None,
) -> bytes:
    """The same frame with another record or handle and a MAC that fits."""
    place = RecordTarget(
        frame.sequence, frame.record_index, frame.offset, frame.length, skip=0
    )
    handle = handle or frame.handle
    return build_frame(
        require_value(session.visit_key, "frames are built with it"),
        session.lease,
        place,
        record,
        handle,
    )


def _hostile(world: AttackWorld, attack: str) -> str:
    return world.visit(
        between=lambda session, lease: HostileSession(session, lease, attack=attack)
    ).refusal


def _spoiled(
    world: AttackWorld,
    spoil: Spoil,
    lease: Callable[[Lease], Lease] = lambda lease: lease,
) -> str:
    return world.visit(
        between=lambda session, lease: SpoilingSession(session, lease, spoil),
        lease=lease,
    ).refusal


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
