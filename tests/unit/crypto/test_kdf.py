"""One table of labels: each derives and signs on its own."""

from __future__ import annotations

import pytest

from sealift.crypto.keys import TOKEN, Label, SecretKey, derive, derive_bytes
from sealift.crypto.sign import SigningKey
from sealift.errors import AuthenticationError

KEY = SecretKey(bytes(range(32)))


def framed(label: str) -> bytes:
    return bytes([len(label.encode())]) + label.encode()


def test_labels_are_distinct_and_prefix_free() -> None:
    # ``list(Label)`` leaves out aliases, that is rows with a value used before.
    assert len(list(Label)) == len(Label.__members__)
    frames = [framed(label) for label in Label]
    for one in frames:
        assert [other for other in frames if other.startswith(one)] == [one]


def test_positive_control_without_length_bytes_a_label_may_start_another() -> None:
    assert "sealift v1 stream secret".startswith("sealift v1 stream")
    assert not framed("sealift v1 stream secret").startswith(
        framed("sealift v1 stream")
    )


@pytest.mark.parametrize("label", Label)
def test_label_is_short_printable_text(label: Label) -> None:
    assert label.isascii()
    assert label.isprintable()
    assert label.startswith("sealift ")
    assert len(label) <= 255


def test_every_label_derives_another_key() -> None:
    derived = {derive_bytes(KEY, label) for label in Label}
    assert len(derived) == len(Label)


@pytest.mark.parametrize(
    ("key", "label", "context"),
    [
        (SecretKey(bytes(32)), Label.STREAM, b"c"),
        (KEY, Label.SEGMENT, b"c"),
        (KEY, Label.STREAM, b"C"),
        (KEY, Label.STREAM, b""),
        (KEY, Label.STREAM, b"c\0"),
    ],
)
def test_every_input_counts(key: SecretKey, label: Label, context: bytes) -> None:
    assert derive_bytes(key, label, context) != derive_bytes(KEY, Label.STREAM, b"c")


@pytest.mark.parametrize("length", [1, 12, 32, 44, 255 * 32])
def test_derive_is_derive_bytes_in_a_key(length: int) -> None:
    key = derive(KEY, Label.STREAM, b"c", length=length)
    plain = derive_bytes(KEY, Label.STREAM, b"c", length=length)
    assert key.reveal(TOKEN) == plain
    assert len(plain) == length


@pytest.mark.parametrize("label", Label)
def test_signature_is_good_for_its_label_only(label: Label) -> None:
    signer = SigningKey.generate()
    signature = signer.sign(label, b"m")
    signer.public_key.verify(label, b"m", signature)
    for other in set(Label) - {label}:
        with pytest.raises(AuthenticationError):
            signer.public_key.verify(other, b"m", signature)
