"""An invitation: what one party needs to find the host, know it, and prove it was asked.

A line of text to mail. Whoever reads it can come in the party's place, once, and is seen:
the first key that it is used with is the party's (``book``). It never goes into a log.
Format: spec/meeting.md section 1.

How each side of a meeting shows the other that it has the invitation's secret.

Inside the session, over its th2, the name, the identity key and the card of whoever
proves: a proof is worth nothing in another session, for another key or another card, and
the secret itself never crosses. Source: spec/meeting.md section 3.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sealift.codec import encode
from sealift.crypto.hash import HASH_BYTES, hmac_sha256, labelled, sha256, verify_equal
from sealift.crypto.identity import Card
from sealift.crypto.keys import KEY_BYTES, TOKEN, Label, SecretKey, derive
from sealift.crypto.sign import PublicKey
from sealift.errors import MalformedError, RefusedError
from sealift.ids import Digest, check_name

VERSION: Final = 1
PREFIX: Final = "sealift-invitation-"
MEETING_BYTES: Final = 16
MAX_ADDRESSES: Final = 4
MAX_TEXT: Final = 2048
HOST: Final = "host"  # the host's name at its meeting, which no party has
_CHECKSUM_BYTES: Final = 4
_FIXED_BYTES: Final = 1 + MEETING_BYTES + 8 + KEY_BYTES + KEY_BYTES
_ADDRESS = re.compile(r"[\x21-\x7e]{1,250}:[0-9]{1,5}")


PROOF_BYTES: Final = 32


class Prover(StrEnum):
    """Who proves: the two directions have keys of their own."""

    GUEST = "guest"
    HOST = "host"


_LABELS: Final = {
    Prover.GUEST: Label.MEETING_GUEST,
    Prover.HOST: Label.MEETING_HOST,
}


def prove_invited(secret: SecretKey, prover: Prover, th2: bytes, card: Card) -> bytes:
    """The proof of one side.

    Args:
        secret: Of the invitation.
        prover: Which side it is.
        th2: Of the session that it is sent in.
        card: Of whoever proves.
    """
    key = derive(secret, _LABELS[prover])
    message = labelled(
        _LABELS[prover], th2, card.name.encode(), card.sign.raw, encode(card)
    )
    return hmac_sha256(key, message)


def verify_invited(
    proof: bytes, secret: SecretKey, prover: Prover, th2: bytes, card: Card
) -> None:
    """Refuse a proof that the other side did not make for this session.

    Raises:
        AuthenticationError: without detail.
    """
    verify_equal(prove_invited(secret, prover, th2, card), proof)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """What the host prints for one party.

    Attributes:
        meeting: 16 random bytes, the same for all parties.
        name: The party that is invited.
        host: The host's identity key.
        secret: 32 random bytes, of this invitation alone.
        expires_s: Seconds since 1970 after which nobody comes in with it.
        addresses: ``HOST:PORT``, to be tried in this order.
    """

    meeting: bytes
    name: str
    host: PublicKey
    secret: SecretKey = field(repr=False)
    expires_s: int
    addresses: tuple[str, ...]

    def __post_init__(self) -> None:
        check_name(self.name, what="party name")
        if self.name == HOST or len(self.meeting) != MEETING_BYTES:
            raise _mistyped("the party or the meeting in it is not valid")
        if not 0 < len(self.addresses) <= MAX_ADDRESSES:
            raise _mistyped(f"it must have 1 to {MAX_ADDRESSES} addresses")
        if not all(map(_ADDRESS.fullmatch, self.addresses)):
            raise _mistyped("an address in it is not HOST:PORT")

    def to_text(self) -> str:
        """The line to mail. It is a secret."""
        raw = b"".join(
            (
                bytes([VERSION]),
                self.meeting,
                self.expires_s.to_bytes(8, "big"),
                self.host.raw,
                self.secret.reveal(TOKEN),
                _text(self.name),
                *map(_text, self.addresses),
            )
        )
        return _packed(raw + sha256(raw)[:_CHECKSUM_BYTES])

    def require_in_time(self, now_s: float) -> None:
        """Refuse it once it is over.

        Raises:
            RefusedError: code ``invitation-expired``.
        """
        if now_s >= self.expires_s:
            raise RefusedError("the invitation has expired", code="invitation-expired")


def parse_invitation(text: str) -> Invitation:
    """Read an invitation as it was mailed, broken over lines or not, behind a name or not.

    Raises:
        MalformedError: code ``bad-invitation``; it says nothing of what stands in it.
    """
    packed = "".join(text.split())
    packed = packed[
        max(0, packed.find(PREFIX)) :
    ]  # `sealift host` prints a name before
    if len(packed) > MAX_TEXT or not packed.startswith(PREFIX):
        raise _mistyped(f"nothing in it begins with {PREFIX}, or it is too long")
    body = packed.removeprefix(PREFIX)
    try:
        whole = base64.b64decode(
            body + "=" * (-len(body) % 4), altchars=b"-_", validate=True
        )
    except (binascii.Error, ValueError):
        raise _mistyped("a character in it is wrong") from None
    if _packed(whole) != packed:  # the last letter has bits that nothing uses
        raise _mistyped("its last character is wrong")
    raw, checksum = whole[:-_CHECKSUM_BYTES], whole[-_CHECKSUM_BYTES:]
    if len(raw) < _FIXED_BYTES or sha256(raw)[:_CHECKSUM_BYTES] != checksum:
        raise _mistyped("a character is wrong, or its end is missing")
    if raw[0] != VERSION:
        raise MalformedError(
            "another version of Sealift made the invitation", code="bad-invitation"
        )
    return _read(raw)


def _read(raw: bytes) -> Invitation:
    at = 1
    parts = []
    for length in (MEETING_BYTES, 8, KEY_BYTES, KEY_BYTES):
        parts.append(raw[at : at + length])
        at += length
    meeting, expires, host, secret = parts
    name, *addresses = _texts(raw[at:])
    return Invitation(
        meeting=meeting,
        name=name,
        host=PublicKey(host),
        secret=SecretKey(secret),
        expires_s=int.from_bytes(expires, "big"),
        addresses=tuple(addresses),
    )


def _packed(whole: bytes) -> str:
    return PREFIX + base64.urlsafe_b64encode(whole).decode().rstrip("=")


def _text(text: str) -> bytes:
    raw = text.encode("ascii")
    return bytes([len(raw)]) + raw


def _texts(raw: bytes) -> list[str]:
    found = []
    while raw:
        length, raw = raw[0], raw[1:]
        if length > len(raw):
            raise _mistyped("its end is missing")
        found.append(raw[:length].decode("ascii", "replace"))
        raw = raw[length:]
    if not found:
        raise _mistyped("its end is missing")
    return found


def meeting_digest(meeting: bytes) -> Digest:
    """What both sides of a meeting's session name in the place of an agreement."""
    return Digest(labelled(Label.MEETING, meeting)[:HASH_BYTES])


def _mistyped(why: str) -> MalformedError:
    return MalformedError(
        "this is not a complete invitation", why=why, code="bad-invitation"
    )
