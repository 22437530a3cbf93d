"""HPKE with ML-KEM-768 + X25519: the vectors of draft-ietf-hpke-pq.

They pair our KEM and KDF with ChaCha20-Poly1305. So the key schedule of RFC 9180 is
written out here, checked against the vector, and then makes a message of our suite.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import hpke as library

from sealift.crypto import hpke
from sealift.crypto.aead import Aead, Suite
from sealift.crypto.hpke import HpkePrivateKey
from sealift.crypto.keys import TOKEN, SecretKey
from tests.vectors.vectorfile import text

MLKEM768_X25519, HKDF_SHA256, AES_256_GCM, CHACHA20_POLY1305 = 0x647A, 1, 2, 3


@pytest.fixture(scope="module")
def vector() -> dict[str, Any]:
    vectors = json.loads(text("HPKE/hpke-pq-test-vectors.json"))
    suite = (MLKEM768_X25519, HKDF_SHA256, CHACHA20_POLY1305)
    (only,) = (v for v in vectors if (v["kem_id"], v["kdf_id"], v["aead_id"]) == suite)
    return {
        name: bytes.fromhex(value) if isinstance(value, str) else value
        for name, value in only.items()
    }


def private_key(vector: dict[str, Any]) -> HpkePrivateKey:
    """The draft's 32-byte private key, expanded to the seeds of both halves."""
    return HpkePrivateKey(SecretKey(hashlib.shake_256(vector["skRm"]).digest(96)))


def schedule(shared: bytes, info: bytes, aead_id: int) -> tuple[bytes, bytes]:
    """KeySchedule of RFC 9180 section 5.1 in base mode: (key, base nonce)."""
    ids = (MLKEM768_X25519, HKDF_SHA256, aead_id)
    suite = b"HPKE" + b"".join(number.to_bytes(2, "big") for number in ids)

    def extract(salt: bytes, label: bytes, ikm: bytes) -> bytes:
        return hmac.digest(
            salt or bytes(32), b"HPKE-v1" + suite + label + ikm, "sha256"
        )

    def expand(key: bytes, label: bytes, context: bytes, length: int) -> bytes:
        info = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + context
        return hmac.digest(key, info + b"\x01", "sha256")[:length]

    hashes = extract(b"", b"psk_id_hash", b"") + extract(b"", b"info_hash", info)
    secret, context = extract(shared, b"secret", b""), b"\0" + hashes
    return expand(secret, b"key", context, 32), expand(
        secret, b"base_nonce", context, 12
    )


def test_public_key(vector: dict[str, Any]) -> None:
    assert private_key(vector).public.raw == vector["pkRm"]


def test_schedule_written_here(vector: dict[str, Any]) -> None:
    made = schedule(vector["shared_secret"], vector["info"], CHACHA20_POLY1305)
    assert made == (vector["key"], vector["base_nonce"])


def test_our_suite_opens_what_the_schedule_seals(vector: dict[str, Any]) -> None:
    key, nonce = schedule(vector["shared_secret"], vector["info"], AES_256_GCM)
    sealed = Aead(Suite.AES_256_GCM, SecretKey(key)).seal(nonce, b"a data key", b"")
    opened = private_key(vector).open(vector["info"], vector["enc"] + sealed)
    assert opened.reveal(TOKEN) == b"a data key"


def test_the_vectors_suite_with_its_own_key(
    vector: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = library.Suite(
        library.KEM.MLKEM768_X25519,
        library.KDF.HKDF_SHA256,
        library.AEAD.CHACHA20_POLY1305,
    )
    monkeypatch.setattr(hpke, "_SUITE", theirs)
    # Messages of the vector carry associated data; its key and first nonce do not.
    key = SecretKey(vector["key"])
    sealed = Aead(Suite.CHACHA20_POLY1305, key).seal(vector["base_nonce"], b"k", b"")
    opened = private_key(vector).open(vector["info"], vector["enc"] + sealed)
    assert opened.reveal(TOKEN) == b"k"
