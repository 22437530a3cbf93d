"""ML-KEM-768 (FIPS 203): known answers through the exchange and the HPKE key."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey

from sealift.crypto.hpke import MLKEM_PUBLIC_BYTES, X25519_BYTES, HpkePrivateKey, Offer
from sealift.crypto.keys import TOKEN, SecretKey
from tests.vectors.vectorfile import cases

KATS = [
    {name: bytes.fromhex(value) for name, value in case.items() if name != "count"}
    for case in cases("asymmetric/MLKEM/kat_MLKEM_768.rsp")
]
# RFC 7748's base point: a public key with a known and usable exchange.
BASE_POINT = b"\x09" + bytes(31)


def test_public_keys_of_an_identity() -> None:
    for kat in KATS:
        private = HpkePrivateKey(SecretKey(kat["d"] + kat["z"] + bytes(32)))
        assert private.public.raw[:MLKEM_PUBLIC_BYTES] == kat["pk"]


def test_decapsulation_in_the_exchange() -> None:
    for kat in KATS:
        offer = Offer.generate()
        offer._mlkem = MLKEM768PrivateKey.from_seed_bytes(kat["d"] + kat["z"])
        shared = offer.finish(BASE_POINT + kat["ct"]).reveal(TOKEN)
        assert shared[:32] == kat["ss"]
        assert shared[32:] == offer.public[:X25519_BYTES]  # the scalar times the base


def test_there_are_many() -> None:
    assert len(KATS) == 1000
