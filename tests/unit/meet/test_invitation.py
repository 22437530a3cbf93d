"""Invitations as text, proofs of their secret, and words to compare."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sealift.crypto.identity import create_identity
from sealift.crypto.keys import SecretKey
from sealift.errors import (
    AuthenticationError,
    MalformedError,
    RefusedError,
    SealiftError,
)
from sealift.ids import Digest
from sealift.meet.invitation import (
    PREFIX,
    Invitation,
    Prover,
    parse_invitation,
    prove_invited,
    verify_invited,
)
from sealift.meet.question import BEGINNINGS, ENDINGS, WORDS, words_of

HOST = create_identity("host")
NORTH = create_identity("north")
INVITED = Invitation(
    meeting=bytes(range(16)),
    name="north",
    host=HOST.public_key,
    secret=SecretKey(bytes(range(100, 132))),
    expires_s=1_800_000_000,
    addresses=("host.example:7420", "[2001:db8::1]:7420"),
)
TEXT = INVITED.to_text()
TH2 = bytes(32)


def test_it_is_one_line_that_comes_back_whole() -> None:
    assert TEXT.startswith(PREFIX)
    assert set(TEXT.removeprefix(PREFIX)) <= set(
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
    )
    mailed = f"> {TEXT[:70]}\n".removeprefix("> ") + f"  {TEXT[70:]}\r\n"
    again = parse_invitation(mailed)
    assert again.to_text() == TEXT
    assert again.addresses == INVITED.addresses


def test_the_whole_line_of_the_host_is_read() -> None:
    assert parse_invitation(f"north  {TEXT}\n").to_text() == TEXT
    for text in ("north", f"{TEXT}north", f"{TEXT} {TEXT}"):
        with pytest.raises(MalformedError):
            parse_invitation(text)


def test_it_prints_no_secret() -> None:
    assert "secret" not in repr(INVITED)
    assert str(bytes(range(100, 132)))[2:20] not in repr(INVITED)


@given(st.integers(0, len(TEXT) - 1), st.sampled_from("aZ0-_ .é"))
def test_a_mistyped_letter_is_noticed(place: int, letter: str) -> None:
    typed = TEXT[:place] + letter + TEXT[place + 1 :]
    if "".join(typed.split()) == TEXT:
        return
    with pytest.raises(MalformedError) as caught:
        parse_invitation(typed)
    assert caught.value.code == "bad-invitation"
    assert typed[30:50] not in str(caught.value)


@given(st.binary(max_size=300))
def test_any_bytes_are_an_invitation_or_a_named_error(raw: bytes) -> None:
    text = PREFIX + base64.urlsafe_b64encode(raw).decode().rstrip("=")
    with pytest.raises(SealiftError):
        parse_invitation(text)


@pytest.mark.parametrize("cut", [1, 20, 100])
def test_a_part_of_one_is_none(cut: int) -> None:
    with pytest.raises(MalformedError) as caught:
        parse_invitation(TEXT[:-cut])
    assert caught.value.code == "bad-invitation"


def test_it_ends() -> None:
    INVITED.require_in_time(INVITED.expires_s - 1)
    with pytest.raises(RefusedError) as caught:
        INVITED.require_in_time(INVITED.expires_s)
    assert caught.value.code == "invitation-expired"


@pytest.mark.parametrize(
    "changes",
    [{"name": "host"}, {"name": "No"}, {"meeting": b"x"}, {"addresses": ()},
     {"addresses": ("a b:1",)}, {"addresses": ("a:1",) * 5}],
)  # fmt: skip
def test_what_makes_none(changes: dict[str, object]) -> None:
    with pytest.raises(MalformedError):
        replace(INVITED, **changes)


def test_a_proof_is_of_one_session_side_key_and_card() -> None:
    secret, card = INVITED.secret, NORTH.card
    proof = prove_invited(secret, Prover.GUEST, TH2, card)
    verify_invited(proof, secret, Prover.GUEST, TH2, card)
    other = create_identity("north").card
    for case in (
        (SecretKey.generate(), Prover.GUEST, TH2, card),
        (secret, Prover.HOST, TH2, card),
        (secret, Prover.GUEST, b"\1" * 32, card),
        (secret, Prover.GUEST, TH2, other),
        (secret, Prover.GUEST, TH2, replace(card, hpke=other.hpke)),
        (secret, Prover.GUEST, TH2, replace(card, name="east")),
    ):
        with pytest.raises(AuthenticationError):
            verify_invited(proof, *case)


def test_words_are_of_2048_and_of_all_the_digest() -> None:
    assert len({b + e for b in BEGINNINGS for e in ENDINGS}) == 2048
    words = words_of(Digest.of(b"terms"))
    assert len(words) == WORDS
    assert words == words_of(Digest.of(b"terms"))
    assert not set(words) & set(words_of(Digest.of(b"other terms")))
