"""X25519: RFC 7748 through the exchange's own combination of secrets."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sealift.crypto.hpke import MLKEM_CIPHERTEXT_BYTES, Offer
from sealift.crypto.keys import TOKEN
from tests.vectors.vectorfile import cases


def exchange(scalar: str, u: str) -> bytes:
    """The X25519 half of ``Offer.finish`` for a private key of the vector."""
    offer = Offer.generate()
    offer._x25519 = X25519PrivateKey.from_private_bytes(bytes.fromhex(scalar))
    answer = bytes.fromhex(u) + bytes(MLKEM_CIPHERTEXT_BYTES)
    return offer.finish(answer).reveal(TOKEN)[32:]


def test_section_5_2() -> None:
    found = list(cases("asymmetric/X25519/rfc7748.txt"))
    for case in found:
        output = exchange(case["input_scalar"], case["input_u"])
        assert output.hex() == case["output_u"]
    assert len(found) == 3


def test_section_5_2_a_thousand_times() -> None:
    k = u = "09" + "00" * 31
    for _ in range(1000):
        k, u = exchange(k, u).hex(), k
    assert k == "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"
