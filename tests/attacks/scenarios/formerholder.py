"""A past holder that follows the keys (T3): everything it has, tried on later records.

It keeps every key of its own visit, takes each some steps along a vendor's ratchet, and
with each tries to open the records of a later visit. Their stream header it is given,
though it crosses inside a session: an attack that fails with it fails without it.

The ratchet is that of the driver of today's GPUs, which rotates its transfer keys by a
public one-way function: whoever held one key computes every later one. ``_under_ratchet``
is a visit whose records were sealed so; on it the same attack reads the rows.
Source: ``confComputeKeyStoreUpdateKey`` of the open GPU kernel modules:
key' = HKDF-Expand(SHA-256(key), label).
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sealift.channel.record.opener import RecordOpener, RecordPosition, Slot
from sealift.channel.record.sealer import StreamSealer
from sealift.crypto.hash import sha256
from sealift.crypto.keys import TOKEN, SecretKey
from sealift.demo.holders import InterposedSession
from sealift.errors import AuthenticationError, MalformedError, require_value
from sealift.ids import Buffer
from sealift.session.session import Session
from sealift.travel.visit.lease import Lease, parse_frame
from sealift.travel.visit.messages import Present, parse_message
from tests.attacks.scenarios.world import ADA, BERN, CANARY, AttackWorld, train

STEPS: Final = 3
_BLOCK: Final = b"sealift v1 vendor ratchet\x01"  # HKDF-Expand of one block


@dataclass(frozen=True, slots=True)
class Recorded:
    """What crossed in a visit: sealed records by index, and their stream's header."""

    header: bytes
    records: Mapping[int, bytes]


def advance(key: SecretKey) -> SecretKey:
    """The ratchet's next key; anybody who has this one can do it."""
    step = sha256(key.reveal(TOKEN))
    return SecretKey.from_bytes(hmac.digest(step, _BLOCK, "sha256"))


def follow(keys: Iterable[SecretKey], target: Recorded) -> bytes:
    """The rows that these keys, or what the ratchet makes of them, open; or nothing."""
    for key in keys:
        for _ in range(STEPS):
            with suppress(AuthenticationError):
                return b"".join(_opened(key, target))
            key = advance(key)
    return b""


def _under_ratchet(
    target: Recorded, data_key: SecretKey, former: SecretKey
) -> Recorded:
    """The same whole visit, sealed under the key that the ratchet makes of a former one."""
    plain = _opened(data_key, target)
    sealer = StreamSealer(
        advance(former),
        total_bytes=sum(map(len, plain)),
        record_bytes=len(plain[0]),
    )
    records = {index: sealer.seal(record) for index, record in enumerate(plain)}
    return Recorded(sealer.header_bytes, records)


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


def next_visit(world: AttackWorld) -> str:
    """The former holder's key, and what a public ratchet makes of it, on later frames."""
    former, later = _record(world), _record(world, BERN)
    key = require_value(former.visit_key, "the visit was verified").twin()
    for _ in range(STEPS + 1):
        if _authenticates(key, later):
            return ""
        key = advance(key)
    return AuthenticationError.default_code


def right_key(world: AttackWorld) -> bool:
    """The key of the visit itself authenticates its frames."""
    recorded = _record(world, BERN)
    return recorded.visit_key is not None and _authenticates(
        recorded.visit_key, recorded
    )


def follow_records(world: AttackWorld) -> str:
    """A past holder's keys, ratcheted forward, on the records of the next visit."""
    former, later = _record(world), _record(world, BERN)
    read = follow(former.keys, later.recorded())
    return "" if read else AuthenticationError.default_code


def follow_ratchet(world: AttackWorld) -> bool:
    """Where keys are ratcheted forward, the same attack reads the next holder's rows."""
    former, later = _record(world), _record(world, BERN)
    data_key = world.consortium.keys[train(BERN)]
    ratcheted = _under_ratchet(later.recorded(), data_key, former.keys[-1])
    return CANARY in follow(former.keys, ratcheted)


def _record(world: AttackWorld, owner: str = ADA) -> RecordingSession:
    found: list[RecordingSession] = []

    def between(session: Session, lease: Lease) -> Session:
        found.append(RecordingSession(session, lease))
        return found[0]

    world.visit(owner, between=between)
    return found[0]


def _authenticates(key: SecretKey, recorded: RecordingSession) -> bool:
    """Whether a key authenticates any recorded frame."""
    for raw in recorded.frames:
        with suppress(AuthenticationError):
            parse_frame(raw).authenticate(key, recorded.lease.digest)
            return True
    return False


def _opened(key: SecretKey, target: Recorded) -> list[bytes]:
    opener = RecordOpener(key, target.header)
    slot = Slot(opener.header.record_bytes)
    return [
        bytes(
            opener.open_in(
                slot, RecordPosition(at, at, opener.header.is_final(at)), record
            )
        )
        for at, record in sorted(target.records.items())
    ]
