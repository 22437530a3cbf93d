"""A session that stands before another one and passes everything on: what attacks change.

Of a session it has what a visit uses; the rest belongs to the one behind it.
"""

from __future__ import annotations

from sealift.crypto.kdf import Label
from sealift.crypto.keys import SecretKey
from sealift.ids import Buffer
from sealift.session.session import Incoming, Session
from sealift.travel.lease import Lease


class PassingSession(Session):
    """Everything goes through as it is; an attack overrides one method.

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
        """A key of this visit; a copy of each stays here."""
        key = self.session.export(label, context)
        if label is Label.VISIT_FRAME:
            self.visit_key = copy_key(key)
        self.keys.append(copy_key(key))
        return key

    def close(self) -> None:
        """End the session."""
        self.session.close()


def copy_key(key: SecretKey) -> SecretKey:
    """A second object with the same key: the holder wipes its own."""
    return key.twin()
