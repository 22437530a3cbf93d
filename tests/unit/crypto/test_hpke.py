"""HPKE in base mode: what opens, what does not, and how keys are written."""

from __future__ import annotations

import pytest

from sealift.codec import decode, encode
from sealift.crypto.hpke import PUBLIC_BYTES, SEED_BYTES, HpkePrivateKey, HpkePublicKey
from sealift.crypto.keys import TOKEN, SecretKey
from sealift.errors import AuthenticationError, MalformedError, UsageError

PRIVATE = HpkePrivateKey(SecretKey(bytes(range(96))))
PUBLIC = PRIVATE.public
SECRET = b"a data key of thirty-two bytes.."


def test_round_trip() -> None:
    opened = PRIVATE.open(b"info", PUBLIC.seal(b"info", SECRET))
    assert isinstance(opened, SecretKey)
    assert opened.reveal(TOKEN) == SECRET


def test_every_sealing_is_fresh() -> None:
    assert PUBLIC.seal(b"", SECRET) != PUBLIC.seal(b"", SECRET)


@pytest.mark.parametrize("position", [0, 1088, 1120, -1])
def test_a_changed_byte_does_not_open(position: int) -> None:
    sealed = bytearray(PUBLIC.seal(b"info", SECRET))
    sealed[position] ^= 1
    with pytest.raises(AuthenticationError):
        PRIVATE.open(b"info", bytes(sealed))


@pytest.mark.parametrize("length", [0, 1, 1119, 1120, 1135, 2000])
def test_bytes_of_any_length_do_not_open(length: int) -> None:
    with pytest.raises(AuthenticationError):
        PRIVATE.open(b"info", bytes(length))


def test_other_info_or_key_does_not_open() -> None:
    sealed = PUBLIC.seal(b"info", SECRET)
    stranger = HpkePrivateKey.generate()
    for key, info in [(PRIVATE, b""), (PRIVATE, b"info "), (stranger, b"info")]:
        with pytest.raises(AuthenticationError):
            key.open(info, sealed)


def test_an_empty_secret_is_malformed() -> None:
    with pytest.raises(MalformedError, match="empty"):
        PRIVATE.open(b"info", PUBLIC.seal(b"info", b""))


def test_text_form_in_documents() -> None:
    assert HpkePublicKey.from_text(PUBLIC.to_text()) == PUBLIC
    assert PUBLIC.to_text().startswith("hpke:")
    assert decode(HpkePublicKey, encode(PUBLIC)) == PUBLIC


@pytest.mark.parametrize(
    "text",
    [
        "", "hpke:", PUBLIC.to_text()[5:], PUBLIC.to_text() + "=", PUBLIC.to_text()[:-4],
        PUBLIC.to_text() + "\n", PUBLIC.to_text().replace("hpke", "ed25519"),
    ],
)  # fmt: skip
def test_other_texts_are_malformed(text: str) -> None:
    with pytest.raises(MalformedError):
        HpkePublicKey.from_text(text)


@pytest.mark.parametrize(
    "raw", [b"\xff" * PUBLIC_BYTES, PUBLIC.raw[:1184] + bytes(32)], ids=["mlkem", "x"]
)
def test_unusable_public_key(raw: bytes) -> None:
    with pytest.raises(MalformedError, match="not a usable"):
        HpkePublicKey(raw).seal(b"", SECRET)


def test_lengths() -> None:
    assert len(PUBLIC.raw) == PUBLIC_BYTES == 1216
    assert len(PRIVATE.seed) == SEED_BYTES == 96
    with pytest.raises(MalformedError):
        HpkePublicKey(bytes(PUBLIC_BYTES - 1))
    with pytest.raises(MalformedError):
        HpkePrivateKey(SecretKey.generate(32))


def test_the_seed_is_the_key() -> None:
    assert HpkePrivateKey(PRIVATE.seed).public == PUBLIC
    assert HpkePrivateKey.generate().public != PUBLIC


def test_a_wiped_key_opens_nothing() -> None:
    private = HpkePrivateKey.generate()
    sealed = private.public.seal(b"info", SECRET)
    private.wipe()
    with pytest.raises(UsageError, match="wiped"):
        private.open(b"info", sealed)
    with pytest.raises(UsageError, match="wiped"):
        private.seed.reveal(TOKEN)
