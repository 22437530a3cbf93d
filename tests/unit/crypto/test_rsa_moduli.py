"""RSA keys that anybody could sign with verify nothing, wherever they stand."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from sealift.crypto.vendorkeys import RsaKey
from sealift.errors import EvidenceError, MalformedError
from tests.sim.made_chain import AT_S, make
from tests.unit.crypto.test_certificate import refused


def weak_modulus(factor: int, bits: int = 2048) -> int:
    """A modulus of that many bits with a factor that anybody finds."""
    made = factor * ((1 << bits - 1) // factor + 1)
    return made if made % 2 or factor == 2 else made + factor


@pytest.mark.parametrize(
    ("modulus", "exponent", "why"),
    [
        (weak_modulus(2), 65537, "a small factor"),
        (weak_modulus(3), 65537, "a small factor"),
        (weak_modulus(997), 65537, "a small factor"),
        ((1 << 1023) + 1155 * 2 + 1, 65537, "1024 bits"),
        ((1 << 8192) + 1, 65537, "8193 bits"),
        (-5, 65537, "3 bits"),
        (0, 65537, "0 bits"),
    ],
)
def test_rsa_moduli_are_checked_before_they_are_used(
    modulus: int, exponent: int, why: str
) -> None:
    with pytest.raises(MalformedError, match=why):
        RsaKey(modulus, exponent)


@pytest.mark.parametrize("exponent", [-3, 0, 1, 2, 65536, 1 << 32 | 1, 1 << 2000 | 1])
def test_rsa_exponents_are_checked(exponent: int) -> None:
    good = rsa.generate_private_key(65537, 2048).public_key().public_numbers().n
    assert RsaKey(good, 65537).to_spki()  # control
    assert RsaKey(good, 3).to_spki()
    with pytest.raises(MalformedError, match="exponent"):
        RsaKey(good, exponent)


def test_an_issuer_of_a_weak_modulus_issued_nothing() -> None:
    """The signature is right; anybody could have made it."""
    key = rsa.generate_private_key(65537, 1024)
    root = make("old", key=key)
    leaf = make("leaf", root, ca=False)
    leaf.certificate.parsed.verify_directly_issued_by(root.certificate.parsed)
    refused("chain-broken", leaf, root, root=root)
    refused("chain-broken", root, root, root=root)
    with pytest.raises(EvidenceError) as caught:
        root.revoke().verify_fresh(root.certificate, at_s=AT_S)
    assert caught.value.code == "crl-not-genuine"
