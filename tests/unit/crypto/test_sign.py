"""Signatures: what verifies, what does not, and how public keys are written."""

from __future__ import annotations

import pytest

from sealift.codec import decode, encode
from sealift.crypto import sign
from sealift.crypto.keys import Label, SecretKey
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.errors import AuthenticationError, MalformedError

KEY = SigningKey(SecretKey(bytes(range(32))))
SIGNATURE = KEY.sign(Label.LEASE, b"message")
TEXT = KEY.public_key.to_text()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_verifies(kind: type) -> None:
    KEY.public_key.verify(Label.LEASE, kind(b"message"), kind(SIGNATURE))


@pytest.mark.parametrize(
    ("label", "message", "signature"),
    [
        (Label.LEASE, b"messagE", SIGNATURE),
        (Label.LEASE, b"message\0", SIGNATURE),
        (Label.LEASE, b"", SIGNATURE),
        (Label.RECEIPT, b"message", SIGNATURE),
        (Label.LEASE, b"message", b""),
        (Label.LEASE, b"message", SIGNATURE[:-1]),
        (Label.LEASE, b"message", SIGNATURE + b"\0"),
        (Label.LEASE, b"message", bytes(64)),
        (Label.LEASE, b"message", SIGNATURE[32:] + SIGNATURE[:32]),
    ],
)
def test_does_not_verify(label: Label, message: bytes, signature: bytes) -> None:
    with pytest.raises(AuthenticationError):
        KEY.public_key.verify(label, message, signature)


def test_another_key_does_not_verify() -> None:
    with pytest.raises(AuthenticationError):
        SigningKey.generate().public_key.verify(Label.LEASE, b"message", SIGNATURE)


def test_a_label_cannot_be_moved_into_the_message() -> None:
    with pytest.raises(AuthenticationError):
        KEY.public_key.verify(
            Label.RECEIPT, Label.LEASE.encode() + b"message", SIGNATURE
        )


ORDER = 2**252 + 27742317777372353535851937790883648493


def test_one_signature_has_one_form() -> None:
    scalar = int.from_bytes(SIGNATURE[32:], "little") + ORDER
    other = SIGNATURE[:32] + scalar.to_bytes(32, "little")
    with pytest.raises(AuthenticationError):
        KEY.public_key.verify(Label.LEASE, b"message", other)


# The key that is the neutral point; R the neutral point and S zero: fits any message.
NEUTRAL = b"\x01" + bytes(31)
UNIVERSAL_SIGNATURE = NEUTRAL + bytes(32)


@pytest.mark.parametrize("y", sorted(sign._SMALL_ORDER))
@pytest.mark.parametrize("sign_bit", [0, 1 << 255])
def test_keys_of_small_order_verify_nothing(y: int, sign_bit: int) -> None:
    weak = PublicKey((y | sign_bit).to_bytes(32, "little"))
    for message in range(32):  # an order of 8 lets every eighth message through
        with pytest.raises(AuthenticationError):
            weak.verify(Label.LEASE, bytes([message]), UNIVERSAL_SIGNATURE)


def test_positive_control_the_library_accepts_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sign, "_SMALL_ORDER", frozenset())
    for label in Label:
        PublicKey(NEUTRAL).verify(label, b"any message", UNIVERSAL_SIGNATURE)


def test_text_form_in_documents() -> None:
    assert PublicKey.from_text(TEXT) == KEY.public_key == PublicKey(KEY.public_key.raw)
    assert str(KEY.public_key) == TEXT
    assert repr(KEY) == f"<SigningKey {TEXT}>"
    assert decode(PublicKey, encode(KEY.public_key)) == KEY.public_key


@pytest.mark.parametrize(
    "text",
    [
        "", "ed25519:", TEXT[8:], TEXT + "=", TEXT[:-1], TEXT + "A", TEXT + "\n",
        TEXT.replace("ed25519", "hpke"), "ed25519:" + "é" * 43, TEXT[:-1] + "h",
    ],
)  # fmt: skip
def test_other_texts_are_malformed(text: str) -> None:
    with pytest.raises(MalformedError):
        PublicKey.from_text(text)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_public_key_has_32_bytes(length: int) -> None:
    with pytest.raises(MalformedError):
        PublicKey(bytes(length))


def test_generated_keys_differ() -> None:
    assert SigningKey.generate().public_key != SigningKey.generate().public_key
