"""A past holder that follows the keys (T3): everything it has, tried on later frames.

It keeps every key of its own visit, takes each some steps along the vendor's ratchet, and
with each tries to open the recorded frames of a later visit as records. Lease and stream
header of that visit it is given, though they cross inside a session: an attack that
fails with them fails without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sealift.channel.opener import Place, RecordOpener
from sealift.channel.quarantine import Slot
from sealift.channel.record import make_header
from sealift.crypto.kdf import Label, derive
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError
from sealift.release.agreement import Resource
from sealift.travel.frame import parse_frame
from sealift.travel.lease import Lease
from sealift.travel.ratchet import advance
from sealift.travel.visitkeys import VENDOR_OPTIONS

STEPS: Final = 3


@dataclass(frozen=True, slots=True)
class Recorded:
    """A visit as the line shows it, and what its attacker is given besides.

    Attributes:
        resource: As the agreement has it: sizes are public.
        frames: Raw.
        header: The stream header that the holder presented.
    """

    lease: Lease
    resource: Resource
    frames: tuple[bytes, ...]
    header: bytes


def follow(keys: Iterable[SecretKey], target: Recorded) -> bytes:
    """The rows that these keys, or what the ratchet makes of them, open; or nothing."""
    for key in keys:
        for _ in range(STEPS):
            for opener in _openers(key, target):
                with suppress(AuthenticationError):
                    return _open_all(opener, target)
            key = advance(key)
    return b""


def _openers(key: SecretKey, target: Recorded) -> Iterator[RecordOpener]:
    """What this key may open, in every mode; a header commits to its key."""
    lease = target.lease.digest.raw
    for base in (key, derive(key, Label.VISIT_RECORD, lease)):
        for context in (lease, b""):
            with suppress(AuthenticationError):
                yield RecordOpener(base, target.header, context=context)
    yield _vendor_opener(derive(key, Label.VISIT_RECORD), target)


def _vendor_opener(key: SecretKey, target: Recorded) -> RecordOpener:
    """In mode ``ratchet`` everybody can compute the header."""
    header = make_header(
        key,
        total_bytes=target.resource.total_bytes,
        record_bytes=target.resource.record_bytes,
        options=VENDOR_OPTIONS,
    )
    return RecordOpener(key, header.encode())


def _open_all(opener: RecordOpener, target: Recorded) -> bytes:
    records = [_open_one(opener, raw) for raw in target.frames]
    first = parse_frame(target.frames[0]).record_index * target.resource.record_bytes
    start = target.lease.start_byte - first
    return b"".join(records)[start : start + target.lease.cargo_bytes]


def _open_one(opener: RecordOpener, raw: bytes) -> bytes:
    frame = parse_frame(raw)
    index = frame.record_index
    where = Place(index, index, opener.header.is_final(index))
    slot = Slot(opener.header.record_bytes)
    return bytes(opener.open_in(slot, where, bytes(frame.record)))
