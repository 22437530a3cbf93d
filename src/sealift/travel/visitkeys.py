"""The keys of one visit: one makes the MACs of its frames, one seals its records anew.

In the modes ``at-rest`` and ``visit`` they come from the visit's own session and say
nothing about any other visit. In mode ``ratchet`` they come from the ratchet's key, which
every holder before can compute (weakness W1), and as with the vendor nothing of the
visit is bound into the ciphertext (weakness W4).
Source: spec/visit.md section Modes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from sealift.channel.opener import RecordOpener
from sealift.channel.record import DEFAULT_OPTIONS, StreamOptions
from sealift.crypto.kdf import Label, derive
from sealift.crypto.keys import SecretKey
from sealift.ids import Buffer
from sealift.travel.lease import Lease

VENDOR_OPTIONS: Final = StreamOptions(random_bytes=bytes)  # no salt: zeros


class Exporting(Protocol):
    """The part of a session that keys come from."""

    def export(self, label: Label, context: bytes = b"") -> SecretKey:
        """A key that both ends of the session derive."""
        ...


@dataclass(frozen=True, slots=True)
class VisitKeys:
    """What the two ends of one visit share.

    Attributes:
        frame: Of the frames' MACs.
        record: Of records that are sealed again; None where they stay as they are.
        context: Bound into every record that is sealed again.
        options: Where the fresh parts of its header come from.
    """

    frame: SecretKey
    record: SecretKey | None = None
    context: bytes = b""
    options: StreamOptions = DEFAULT_OPTIONS

    def wipe(self) -> None:
        """Forget them."""
        self.frame.wipe()
        if self.record is not None:
            self.record.wipe()

    def opener(self, header: Buffer, data_key: SecretKey) -> RecordOpener:
        """What opens this visit's records.

        Raises:
            AuthenticationError: if the header belongs to another key.
        """
        if self.record is None:
            return RecordOpener(data_key, header)
        return RecordOpener(self.record, header, context=self.context)


def keys_of_session(session: Exporting, lease: Lease) -> VisitKeys:
    """Keys that only the two ends of this visit have."""
    context = lease.digest.raw
    frame = session.export(Label.VISIT_FRAME, context)
    if lease.crossing == "at-rest":
        return VisitKeys(frame)
    return VisitKeys(frame, session.export(Label.VISIT_RECORD, context), context)


def keys_of_ratchet(key: SecretKey, lease: Lease) -> VisitKeys:
    """Keys that everybody has who once had a key of this chain."""
    frame = derive(key, Label.VISIT_FRAME, lease.digest.raw)
    return VisitKeys(frame, derive(key, Label.VISIT_RECORD), options=VENDOR_OPTIONS)
