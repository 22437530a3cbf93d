"""The hybrid exchange: both ends agree, both halves count, bad publics are refused."""

from __future__ import annotations

import pytest

from sealift.crypto.hpke import ANSWER_BYTES, OFFER_BYTES, X25519_BYTES, Offer, respond
from sealift.crypto.keys import TOKEN
from sealift.errors import AuthenticationError, MalformedError

# u coordinates of order 1, 2, 4 and 8 (RFC 7748 section 7 asks for the check).
LOW_ORDER = [
    bytes(32),
    b"\x01" + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
]


def flipped(message: bytes, position: int) -> bytes:
    changed = bytearray(message)
    changed[position] ^= 1
    return bytes(changed)


def test_both_ends_agree() -> None:
    offer = Offer.generate()
    answer, shared = respond(offer.public)
    assert (len(offer.public), len(answer)) == (OFFER_BYTES, ANSWER_BYTES)
    assert offer.finish(answer).reveal(TOKEN) == shared.reveal(TOKEN)
    assert len(shared) == 64


def test_every_exchange_is_fresh() -> None:
    offer = Offer.generate()
    (one, first), (other, second) = respond(offer.public), respond(offer.public)
    assert one[:X25519_BYTES] != other[:X25519_BYTES]
    assert first.reveal(TOKEN)[:32] != second.reveal(TOKEN)[:32]
    assert first.reveal(TOKEN)[32:] != second.reveal(TOKEN)[32:]
    assert Offer.generate().public != offer.public


@pytest.mark.parametrize(
    ("position", "half"), [(0, slice(32, 64)), (X25519_BYTES, slice(0, 32))]
)
def test_a_changed_answer_changes_its_half(position: int, half: slice) -> None:
    # ML-KEM rejects implicitly: another secret, no error. Finished MACs tell.
    offer = Offer.generate()
    answer, shared = respond(offer.public)
    other = offer.finish(flipped(answer, position)).reveal(TOKEN)
    assert other[half] != shared.reveal(TOKEN)[half]


@pytest.mark.parametrize("point", LOW_ORDER, ids=lambda point: point[:2].hex())
def test_low_order_points_are_refused(point: bytes) -> None:
    offer = Offer.generate()
    answer, _ = respond(offer.public)
    with pytest.raises(AuthenticationError):
        respond(point + offer.public[X25519_BYTES:])
    with pytest.raises(AuthenticationError):
        offer.finish(point + answer[X25519_BYTES:])


def test_mlkem_key_with_coefficients_beyond_the_modulus_is_refused() -> None:
    public = Offer.generate().public
    with pytest.raises(AuthenticationError):
        respond(public[:X25519_BYTES] + b"\xff" * 1152 + public[-32:])


@pytest.mark.parametrize("change", [-1, 1])
def test_other_lengths_are_malformed(change: int) -> None:
    with pytest.raises(MalformedError, match=str(OFFER_BYTES)):
        respond(bytes(OFFER_BYTES + change))
    with pytest.raises(MalformedError, match=str(ANSWER_BYTES)):
        Offer.generate().finish(bytes(ANSWER_BYTES + change))
