"""A past holder that follows the keys (T3): everything it has, tried on later records.

It keeps every key of its own visit, takes each some steps along a vendor's ratchet, and
with each tries to open the records of a later visit. Their stream header it is given,
though it crosses inside a session: an attack that fails with it fails without it.

The ratchet is that of the driver of today's GPUs, which rotates its transfer keys by a
public one-way function: whoever held one key computes every later one. ``under_ratchet``
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

from sealift.channel.record.opener import Place, RecordOpener, Slot
from sealift.channel.record.sealer import StreamSealer
from sealift.crypto.hash import sha256
from sealift.crypto.keys import TOKEN, SecretKey
from sealift.errors import AuthenticationError

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


def under_ratchet(target: Recorded, data_key: SecretKey, former: SecretKey) -> Recorded:
    """The same whole visit, sealed under the key that the ratchet makes of a former one."""
    plain = _opened(data_key, target)
    sealer = StreamSealer(
        advance(former),
        total_bytes=sum(map(len, plain)),
        record_bytes=len(plain[0]),
    )
    records = {index: sealer.seal(record) for index, record in enumerate(plain)}
    return Recorded(sealer.header_bytes, records)


def _opened(key: SecretKey, target: Recorded) -> list[bytes]:
    opener = RecordOpener(key, target.header)
    slot = Slot(opener.header.record_bytes)
    return [
        bytes(opener.open_in(slot, Place(at, at, opener.header.is_final(at)), record))
        for at, record in sorted(target.records.items())
    ]
