"""Statements: one value, one encoding; any changed byte is refused."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sealift.codec import decode, encode
from sealift.errors import SealiftError
from sealift.release.agreement.statements import (
    SignedStatement,
    StatementKind,
    find_signer,
    sign_statement,
)
from tests.sim.owners import NOW_S
from tests.worlds.consortium import make_consortium

CONSORTIUM = make_consortium(("ada", "bern"))
PARTIES = CONSORTIUM.agreement.parties
KINDS = st.sampled_from(["veto", "cancel", "leave"])


def said(kind: StatementKind) -> SignedStatement:
    ada = CONSORTIUM.identities["ada"]
    return sign_statement(kind, CONSORTIUM.agreement, ada, NOW_S)


@given(KINDS, st.integers(0), st.integers(1, 255))
def test_any_changed_byte(kind: StatementKind, position: int, flip: int) -> None:
    raw = bytearray(encode(said(kind)))
    raw[position % len(raw)] ^= flip
    with pytest.raises(SealiftError):
        find_signer(decode(SignedStatement, bytes(raw)), PARTIES)


@given(st.binary(max_size=200))
def test_any_bytes(raw: bytes) -> None:
    with pytest.raises(SealiftError):
        decode(SignedStatement, raw)


@given(KINDS, KINDS)
def test_one_kind_is_not_another(one: StatementKind, other: StatementKind) -> None:
    assume(one != other)
    signed = said(one)
    find_signer(signed, PARTIES)
    assert signed.body.kind == one
    assert encode(said(one).body) != encode(said(other).body)
