"""Names, digests and random ids: what parses, what does not, what is equal."""

from __future__ import annotations

import hashlib

import pytest

from sealift.errors import MalformedError
from sealift.ids import Digest, Handle, Role, VisitId, check_name

EMPTY = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize("text", ["a", "7", "a-b", "clinic-1", "a" * 63])
def test_good_names(text: str) -> None:
    assert check_name(text) == text


@pytest.mark.parametrize(
    "text",
    ["", "A", "-a", "a-", "a_b", "a b", "a\n", "a.b", "../a", "é", "a" * 64, "٣"],
)
def test_bad_names(text: str) -> None:
    with pytest.raises(MalformedError) as caught:
        check_name(text)
    assert caught.value.code == "bad-name"
    assert "\n" not in str(caught.value)


def test_digest_of_nothing() -> None:
    digest = Digest.of(b"")
    assert digest.raw == hashlib.sha256(b"").digest()
    assert str(digest) == digest.to_text() == EMPTY
    assert Digest.from_text(EMPTY) == digest
    assert EMPTY.startswith(f"sha256:{digest.short}")


@pytest.mark.parametrize(
    "text",
    ["", EMPTY[:-1], EMPTY + "0", EMPTY + "\n", EMPTY.upper(), EMPTY[7:], "sha256:"],
)
def test_digest_refuses_other_texts(text: str) -> None:
    with pytest.raises(MalformedError):
        Digest.from_text(text)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_digest_has_32_bytes(length: int) -> None:
    with pytest.raises(MalformedError):
        Digest(bytes(length))


@pytest.mark.parametrize("kind", [Handle, VisitId])
def test_random_ids(kind: type[Handle] | type[VisitId]) -> None:
    one, other = kind.generate(), kind.generate()
    assert one != other
    assert kind.from_text(one.to_text()) == one
    assert str(one) == one.raw.hex()
    for text in ("", one.to_text()[:-1], one.to_text() + "\n", one.to_text().upper()):
        if text != one.to_text():  # all 32 digits may be decimal, once in 2 million
            with pytest.raises(MalformedError, match=kind.__name__):
                kind.from_text(text)
    with pytest.raises(MalformedError, match=kind.__name__):
        kind(bytes(15))


def test_a_handle_is_no_visit() -> None:
    assert Handle(bytes(16)) != VisitId(bytes(16))


def test_roles() -> None:
    inside = {"orchestrator", "accelerator", "holder", "broker"}
    assert set(Role) == inside | {"client", "share-server", "meeting"}
