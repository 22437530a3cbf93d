"""Holders that are up to something: real ones, with something before their sessions.

``python -m sealift.demo.holders hostile|slow JOB ...`` is ``sealift join
--holder-only --relay-only JOB ...`` with a real party's identity and sealed files: the strongest position
from which another party can attack an accelerator, whose own side is untouched. A hostile
one attacks in its first three visits and behaves then; a slow one takes ``PACE_S`` for each
frame. No command of ``sealift`` reaches this module.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

from sealift.crypto.aead import TAG_BYTES
from sealift.crypto.keys import Label, SecretKey
from sealift.errors import require_value
from sealift.events import emit
from sealift.ids import Buffer, Handle
from sealift.release.receipt import SignedReceipt
from sealift.session.session import Incoming, Session
from sealift.train.job.roleprocesses import EventLines
from sealift.travel.holder.visit import Provisioning
from sealift.travel.visit.lease import (
    Lease,
    RecordTarget,
    SignedLease,
    frame_head,
    parse_frame,
)

MODULE: Final = "sealift.demo.holders"
REPLAY: Final = "replay"
BEYOND_LEASE: Final = "beyond-lease"
PREVIOUS_KEY: Final = "previous-key"
TRIES: Final = (REPLAY, BEYOND_LEASE, PREVIOUS_KEY)
PACE_S: Final = 0.25


class InterposedSession(Session):
    """A session before another one; everything goes through, an attack overrides one method.

    Args:
        session: The real one.
        lease: Of this visit.
    """

    def __init__(self, session: Session, lease: Lease) -> None:
        self.session = session
        self.lease = lease
        self.visit_key: SecretKey | None = None
        self.keys: list[SecretKey] = []

    def send(self, message: Buffer) -> None:
        """A sealed message."""
        self.session.send(message)

    def receive(self, timeout_s: float | None = None) -> bytes:
        """A sealed message."""
        return self.session.receive(timeout_s)

    def send_raw(self, frame: Buffer) -> None:
        """A visit frame."""
        self.session.send_raw(frame)

    def receive_any(self, timeout_s: float | None = None) -> Incoming:
        """A sealed message, or a visit frame."""
        return self.session.receive_any(timeout_s)

    def export(self, label: Label, context: bytes = b"") -> SecretKey:
        """A key of this visit; a copy of each stays here, for the holder wipes its own."""
        key = self.session.export(label, context)
        if label is Label.VISIT_FRAME:
            self.visit_key = key.twin()
        self.keys.append(key.twin())
        return key

    def close(self) -> None:
        """End the session."""
        self.session.close()


class SlowSession(InterposedSession):
    """Frames take their time: a cargo is under way when something happens to the host."""

    def send_raw(self, frame: Buffer) -> None:
        """A visit frame, after a while."""
        time.sleep(PACE_S)
        super().send_raw(frame)


class HostileSession(InterposedSession):
    """Spoils what an honest holder sends.

    Args:
        session: The real one.
        lease: Of this visit.
        attack: What to try; empty to behave.
        previous: The key of the visit before.
    """

    def __init__(
        self,
        session: Session,
        lease: Lease,
        *,
        attack: str,
        previous: SecretKey | None = None,
    ) -> None:
        super().__init__(session, lease)
        self._attack = attack
        self._previous = previous
        self._first: bytes | None = None

    def export(self, label: Label, context: bytes = b"") -> SecretKey:
        """This visit's key, or the key of the visit before."""
        key = super().export(label, context)
        if self._attack == PREVIOUS_KEY and self._previous is not None:
            return self._previous.twin()
        return key

    def send_raw(self, frame: Buffer) -> None:
        """The frame, or what the attack makes of it."""
        frame = bytes(frame)  # its memory is used again for the next one
        if self._attack == REPLAY and self._first is not None:
            frame = self._first
        elif self._attack == BEYOND_LEASE:
            frame = self._moved(frame)
        self._first = self._first or frame
        super().send_raw(frame)

    def _moved(self, raw: bytes) -> bytes:
        """The same record, properly authenticated, behind the end of the lease."""
        frame = parse_frame(raw)
        place = RecordTarget(
            sequence=frame.sequence,
            record=frame.record_index,
            offset=self.lease.offset + self.lease.max_bytes,
            length=frame.length,
            skip=0,
        )
        return build_frame(
            require_value(self.visit_key, "frames are built with it"),
            self.lease,
            place,
            frame.record,
        )


def build_frame(
    visit_key: SecretKey,
    lease: Lease,
    place: RecordTarget,
    record: Buffer,
    handle: Handle | None = None,
) -> bytes:
    """The frame around one sealed record; for another buffer than the lease's, if named."""
    tag = memoryview(record)[-TAG_BYTES:]
    named = handle or lease.handle
    return b"".join((frame_head(visit_key, lease.digest, named, place, tag), record))


class Attacker:
    """Puts a hostile session into each of the first visits, in the order of ``TRIES``."""

    def __init__(self) -> None:
        self._sink = EventLines(sys.stdout)
        self._left = list(TRIES)
        self._last: HostileSession | None = None

    def __call__(self, session: Session, signed: SignedLease) -> Session:
        """The session that the holder gets to see."""
        attack = self._left.pop(0) if self._left else ""
        previous = self._last.visit_key if self._last else None
        if attack:
            visit = signed.body.visit.to_text()
            emit(self._sink, "hostile.tries", attack=attack, visit=visit)
        self._last = HostileSession(
            session, signed.body, attack=attack, previous=previous
        )
        return self._last


def _interpose(between: Callable[[Session, SignedLease], Session]) -> None:
    """From now on every holder of this process gets its sessions through ``between``."""
    genuine = Provisioning.provision

    def provision(self: Provisioning, session: Session) -> SignedReceipt:
        return genuine(self, between(session, self._signed))

    Provisioning.provision = provision  # type: ignore[method-assign]


def main(behaviour: str, words: list[str]) -> int:
    """Attend a job; the exit code of ``sealift join``."""
    from sealift.cli.main import main as sealift

    if behaviour == "hostile":
        _interpose(Attacker())
    else:
        _interpose(lambda session, signed: SlowSession(session, signed.body))
    return sealift(["join", "--holder-only", "--relay-only", *words])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
