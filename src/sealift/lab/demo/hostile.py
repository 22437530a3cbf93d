"""A holder that attacks: its first three visits are attacks, then it behaves.

``python -m sealift.lab.demo.hostile`` runs it as a process of its own, with a real party's
identity and sealed files: the strongest position from which another party can attack an
accelerator. No command of ``sealift`` reaches this module. It is the ordinary holder
(``travel.attendance``) with a session in between that sends other frames than it was
given; the accelerator's side is untouched.
"""

from __future__ import annotations

import sys
from typing import Final

from sealift.crypto.kdf import Label
from sealift.crypto.keys import SecretKey
from sealift.events import Sink, emit
from sealift.ids import Buffer
from sealift.lab.demo.holding import attend
from sealift.lab.demo.passing import PassingSession, copy_key
from sealift.session.session import Session
from sealift.travel.frame import Placement, build_frame, parse_frame
from sealift.travel.lease import Lease, SignedLease

REPLAY: Final = "replay"
BEYOND_LEASE: Final = "beyond-lease"
PREVIOUS_KEY: Final = "previous-key"
TRIES: Final = (REPLAY, BEYOND_LEASE, PREVIOUS_KEY)


class HostileSession(PassingSession):
    """Stands between an honest holder and its session, and spoils what it sends.

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
            return copy_key(self._previous)
        return key

    def send_raw(self, frame: Buffer) -> None:
        """The frame, or what the attack makes of it."""
        frame = bytes(frame)  # its memory is used again for the next one
        if self._attack == REPLAY and self._first is not None:
            frame = self._first
        elif self._attack == BEYOND_LEASE:
            frame = self._move(frame)
        self._first = self._first or frame
        super().send_raw(frame)

    def _move(self, raw: bytes) -> bytes:
        """The same record, properly authenticated, behind the end of the lease."""
        assert self.visit_key is not None, "frames are built with it"
        frame = parse_frame(raw)
        place = Placement(
            sequence=frame.sequence,
            record=frame.record_index,
            offset=self.lease.offset + self.lease.max_bytes,
            length=frame.length,
            skip=0,
        )
        return build_frame(self.visit_key, self.lease, place, frame.record)


class Attacker:
    """Puts a hostile session into each of the first visits, in the order of ``TRIES``."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._left = list(TRIES)
        self._last: HostileSession | None = None

    def __call__(self, session: Session, signed: SignedLease) -> Session:
        """The session that the holder gets to see."""
        attack = self._left.pop(0) if self._left else ""
        previous = self._last.visit_key if self._last else None
        if attack:
            visit = signed.lease.visit.to_text()
            emit(self._sink, "hostile.tries", attack=attack, visit=visit)
        self._last = HostileSession(
            session, signed.lease, attack=attack, previous=previous
        )
        return self._last


def main() -> int:
    """Attend a job, attacking it first; the exit code."""
    return attend("sealift.lab.demo.hostile", Attacker)


if __name__ == "__main__":
    sys.exit(main())
