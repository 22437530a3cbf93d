"""JWE to attested keys: both kinds, and every key and answer that is not taken."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from joserfc import jwe
from joserfc.jwk import ECKey, RSAKey

from sealift.crypto.jwe import RecipientKey, RecipientKeyPair
from sealift.errors import AuthenticationError, MalformedError

ALGORITHMS = ["ECDH-ES+A256KW", "RSA-OAEP-256", "A256GCM"]


def public_of(key: Any) -> dict[str, str]:
    return {
        name: value
        for name, value in key.as_dict(private=False).items()
        if name in ("kty", "crv", "x", "y", "n", "e")
    }


EC256 = ECKey.generate_key("P-256", private=True)
EC521 = ECKey.generate_key("P-521", private=True)
RSA = RSAKey.generate_key(2048, private=True)


@pytest.mark.parametrize("key", [EC256, EC521, RSA], ids=["P-256", "P-521", "RSA"])
def test_another_reader_opens_it(key: Any) -> None:
    sealed = RecipientKey.from_jwk(public_of(key)).seal(b"a secret")
    assert set(sealed) == {"protected", "encrypted_key", "iv", "ciphertext", "tag"}
    opened = jwe.decrypt_json(sealed, key, algorithms=ALGORITHMS)
    assert opened.plaintext == b"a secret"


def test_pair() -> None:
    keys = RecipientKeyPair()
    assert keys.public.jwk["alg"] == "ECDH-ES+A256KW"
    assert keys.open(keys.public.seal(b"a secret")) == b"a secret"
    assert "d" not in keys.public.jwk
    assert repr(keys) == "<RecipientKeyPair>"


def test_thumbprint_is_that_of_rfc_7638() -> None:
    """Its section 3.1."""
    jwk = {
        "kty": "RSA",
        "n": "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFx"
        "uhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6"
        "Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n"
        "91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF4"
        "4-csFCur-kEgU8awapJzKnqDKgw",
        "e": "AQAB",
    }
    expected = "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"
    found = RecipientKey.from_jwk(jwk).thumbprint.raw
    assert base64.urlsafe_b64encode(found).rstrip(b"=").decode() == expected


BAD_KEYS: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "a list": list,
    "another kind": lambda: {"kty": "OKP", "crv": "X25519", "x": "AA"},
    "symmetric": lambda: {"kty": "oct", "k": "AAAA"},
    "another curve": lambda: public_of(ECKey.generate_key("P-384", private=True)),
    "private": lambda: EC256.as_dict(private=True),
    "another algorithm": lambda: {**public_of(EC256), "alg": "ECDH-ES"},
    "RSA1_5": lambda: {**public_of(RSA), "alg": "RSA1_5"},
    "a weak modulus": lambda: {"kty": "RSA", "n": "AQAB" * 20, "e": "AQAB"},
    "no coordinate": lambda: {"kty": "EC", "crv": "P-256", "x": "AA"},
    "no text": lambda: {**public_of(EC256), "x": 7},
    "not on the curve": lambda: {**public_of(EC256), "y": public_of(EC256)["x"]},
    "not base64": lambda: {**public_of(EC256), "x": "$$"},
    "further members": lambda: {**public_of(EC256), "kid": "a"},
}


@pytest.mark.parametrize("make", BAD_KEYS.values(), ids=BAD_KEYS)
def test_key_not_taken(make: Callable[[], Any]) -> None:
    with pytest.raises(MalformedError) as caught:
        RecipientKey.from_jwk(make())
    assert caught.value.code == "tee-key-unusable"


@pytest.mark.parametrize(
    "part", ["protected", "encrypted_key", "iv", "ciphertext", "tag"]
)
def test_every_part_counts(part: str) -> None:
    keys = RecipientKeyPair()
    sealed = keys.public.seal(b"a secret")
    raw = bytearray(base64.urlsafe_b64decode(sealed[part] + "=="))
    for place in range(len(raw)):
        raw[place] ^= 1
        changed = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
        with pytest.raises((AuthenticationError, MalformedError)):
            keys.open({**sealed, part: changed})
        raw[place] ^= 1


def test_answers_of_another_form() -> None:
    keys = RecipientKeyPair()
    sealed = keys.public.seal(b"a secret")
    header = json.dumps({"alg": "dir", "enc": "A256GCM", "zip": "DEF"}).encode()
    zipped = base64.urlsafe_b64encode(header).rstrip(b"=").decode()
    for wrong in (
        None,
        [],
        {},
        {**sealed, "aad": "x"},
        {**sealed, "tag": None},
        {**sealed, "protected": zipped},
        {**sealed, "ciphertext": "A" * (2 << 20)},
    ):
        with pytest.raises(MalformedError):
            keys.open(wrong)
    assert keys.open({**sealed, "aad": None}) == b"a secret"
