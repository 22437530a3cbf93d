"""ECDSA and RSA as others sign: encodings, lengths, keys that must not be taken."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sealift.crypto.vendorkeys import EcdsaKey, RsaKey, read_key
from sealift.errors import AuthenticationError, MalformedError

MESSAGE = b"measured"
CURVES = [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()]
RSA = rsa.generate_private_key(65537, 2048)


def spki(key: object) -> bytes:
    public = key.public_key()  # type: ignore[attr-defined]
    return bytes(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: curve.name)
def test_both_encodings_verify(curve: ec.EllipticCurve) -> None:
    private = ec.generate_private_key(curve)
    key = read_key(spki(private))
    assert isinstance(key, EcdsaKey)
    der = private.sign(MESSAGE, ec.ECDSA(hashes.SHA384()))
    raw = b"".join(n.to_bytes(key.field_bytes) for n in decode_dss_signature(der))
    key.verify(MESSAGE, der, "sha384")
    key.verify_raw(MESSAGE, raw, "sha384")
    assert read_key(key.to_spki()) == key
    for wrong in (raw[:-1], raw + b"\0", bytes(len(raw)), raw[::-1]):
        with pytest.raises(AuthenticationError):
            key.verify_raw(MESSAGE, wrong, "sha384")
    with pytest.raises(AuthenticationError):
        key.verify_raw(MESSAGE + b"!", raw, "sha384")
    with pytest.raises(AuthenticationError):
        key.verify_raw(MESSAGE, raw, "sha256")


def other_encodings(der: bytes) -> dict[str, bytes]:
    r, s = decode_dss_signature(der)
    body = der[2:]
    return {
        "long form of the length": b"\x30\x81" + der[1:2] + body,
        "a tail": der + b"\0",
        "a leading zero": b"\x30"
        + bytes([der[1] + 1])
        + b"\x02"
        + bytes([body[1] + 1])
        + b"\0"
        + body[2:],
        "negative": b"\x30\x06\x02\x01" + bytes([0x80 | r & 0x7F]) + b"\x02\x01\x01",
        "zero": b"\x30\x06\x02\x01\x00\x02\x01\x00",
        "cut": der[:-1],
        "empty": b"",
        "r || s": r.to_bytes(32) + s.to_bytes(32),
    }


def test_other_encodings_of_a_good_signature_are_refused() -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    key = read_key(spki(private))
    assert isinstance(key, EcdsaKey)
    der = private.sign(MESSAGE, ec.ECDSA(hashes.SHA256()))
    key.verify(MESSAGE, der, "sha256")
    for wrong in other_encodings(der).values():
        with pytest.raises(AuthenticationError):
            key.verify(MESSAGE, wrong, "sha256")


@pytest.mark.parametrize(
    "point", [b"", bytes(64), b"\xff" * 64, b"\x01" * 64, bytes(65)]
)
def test_points_off_the_curve_are_malformed(point: bytes) -> None:
    with pytest.raises(MalformedError):
        EcdsaKey("P-256", point)


def test_keys_of_other_kinds_are_malformed() -> None:
    with pytest.raises(MalformedError):
        read_key(spki(ed25519.Ed25519PrivateKey.generate()))
    for curve in (ec.SECP256K1(), ec.SECP224R1()):
        with pytest.raises(MalformedError):
            read_key(spki(ec.generate_private_key(curve)))
    with pytest.raises(MalformedError):
        read_key(b"no key")
    with pytest.raises(MalformedError):
        EcdsaKey("P-224", bytes(56))


def test_rsa_signatures_verify_by_their_own_scheme_only() -> None:
    key = read_key(spki(RSA))
    assert isinstance(key, RsaKey)
    old = RSA.sign(MESSAGE, padding.PKCS1v15(), hashes.SHA256())
    mask = padding.MGF1(hashes.SHA256())
    pss = RSA.sign(MESSAGE, padding.PSS(mask, 32), hashes.SHA256())
    key.verify(MESSAGE, old, "sha256")
    key.verify_pss(MESSAGE, pss, "sha256")
    assert read_key(key.to_spki()) == key
    for wrong in (pss, old[:-1], b"", bytes(256), b"\0" + old):
        with pytest.raises(AuthenticationError):
            key.verify(MESSAGE, wrong, "sha256")
    for wrong in (old, pss[:-1], b""):
        with pytest.raises(AuthenticationError):
            key.verify_pss(MESSAGE, wrong, "sha256")
    with pytest.raises(AuthenticationError):
        key.verify(MESSAGE, old, "sha384")


@pytest.mark.parametrize(
    ("modulus", "exponent"),
    [
        (1 << 2046 | 1, 65537),
        (1 << 8192 | 1, 65537),
        (RSA.public_key().public_numbers().n, 1),
        (RSA.public_key().public_numbers().n, 2),
        (RSA.public_key().public_numbers().n, 0),
        (RSA.public_key().public_numbers().n + 1, 65537),
    ],
    ids=["short", "long", "exponent 1", "even exponent", "exponent 0", "even modulus"],
)
def test_weak_rsa_keys_are_malformed(modulus: int, exponent: int) -> None:
    with pytest.raises(MalformedError):
        RsaKey(modulus, exponent)
