"""How each side of a meeting shows the other that it has the invitation's secret.

Inside the session, over its th2, the name, the identity key and the card of whoever
proves: a proof is worth nothing in another session, for another key or another card, and
the secret itself never crosses. Source: spec/meeting.md section 3.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from sealift.codec import encode
from sealift.crypto.hash import hmac_sha256, labelled, verify_equal
from sealift.crypto.identity import Card
from sealift.crypto.keys import Label, SecretKey, derive

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
