"""EAR tokens: bound to nonce, key, agreement and job; honest about their status."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from sealift.attest import Appraiser, AttestationResult, Level, ReferenceValues
from sealift.attest.attesters.development import DevelopmentAttester
from sealift.attest.ear import VALID_S, Binding, issue, token_claims, verify
from sealift.crypto.jws import TokenSigner
from sealift.crypto.sign import SigningKey
from sealift.errors import (
    AuthenticationError,
    EvidenceError,
    MalformedError,
    RefusedError,
    StaleError,
)
from sealift.ids import Digest, Role

NOW_S = 1_800_000_000
BINDING = Binding(
    nonce=b"n" * 32, key=Digest.of(b"key"), agreement=Digest.of(b"a"), job="joint"
)


@pytest.fixture(scope="module")
def result() -> AttestationResult:
    key, bound = SigningKey.generate(), secrets.token_bytes(32)
    ours = Appraiser(
        accept=(Level.DEVELOPMENT,),
        references=ReferenceValues(development_attesters=(key.public_key,)),
    )
    attester = DevelopmentAttester(key, role=Role.ACCELERATOR)
    return ours.appraise(attester.collect(bound), bound)


@pytest.fixture(scope="module")
def signer() -> TokenSigner:
    return TokenSigner.generate()


def sign_altered(result: AttestationResult, signer: TokenSigner, **changes: Any) -> str:
    claims = token_claims(result, BINDING, at_s=NOW_S, software="0")
    return signer.sign({**claims, **changes})


def test_a_token_says_what_was_found(
    result: AttestationResult, signer: TokenSigner
) -> None:
    token = issue(result, BINDING, signer, at_s=NOW_S, software="0")
    claims = verify(token, signer.public_key, BINDING, at_s=NOW_S + 1)
    cpu: Mapping[str, Any] = claims["submods"]["cpu0"]
    assert cpu["ear.status"] == "contraindicated"
    assert cpu["ear.trustworthiness-vector"]["hardware"] == 97
    assert claims["sealift.level"] == "development"
    assert json.dumps(claims).isascii()


@pytest.mark.parametrize(
    "other",
    [
        replace(BINDING, nonce=b"m" * 32),
        replace(BINDING, key=Digest.of(b"other")),
        replace(BINDING, agreement=Digest.of(b"b")),
        replace(BINDING, job=""),
    ],
)
def test_a_token_is_for_one_purpose(
    result: AttestationResult, signer: TokenSigner, other: Binding
) -> None:
    token = issue(result, BINDING, signer, at_s=NOW_S, software="0")
    with pytest.raises(RefusedError) as refusal:
        verify(token, signer.public_key, other, at_s=NOW_S)
    assert refusal.value.code == "token-foreign"


@pytest.mark.parametrize("at_s", [NOW_S - 1, NOW_S + VALID_S])
def test_a_token_has_its_time(
    result: AttestationResult, signer: TokenSigner, at_s: int
) -> None:
    token = issue(result, BINDING, signer, at_s=NOW_S, software="0")
    with pytest.raises(StaleError) as refusal:
        verify(token, signer.public_key, BINDING, at_s=at_s)
    assert refusal.value.code == "token-expired"


def test_only_the_pinned_key_counts(
    result: AttestationResult, signer: TokenSigner
) -> None:
    token = issue(result, BINDING, signer, at_s=NOW_S, software="0")
    with pytest.raises(AuthenticationError):
        verify(token, TokenSigner.generate().public_key, BINDING, at_s=NOW_S)
    head, body, signature = token.split(".")
    for altered in (f"{head}.{body}x.{signature}", f"{head}.{body}.", "a.b.c", ""):
        with pytest.raises((AuthenticationError, MalformedError)):
            verify(altered, signer.public_key, BINDING, at_s=NOW_S)


def test_a_status_better_than_its_vector_is_refused(
    result: AttestationResult, signer: TokenSigner
) -> None:
    claims = token_claims(result, BINDING, at_s=NOW_S, software="0")
    cpu = {**claims["submods"]["cpu0"], "ear.status": "affirming"}
    token = sign_altered(result, signer, submods={"cpu0": cpu})
    with pytest.raises(EvidenceError) as refusal:
        verify(token, signer.public_key, BINDING, at_s=NOW_S)
    assert refusal.value.code == "token-foreign"


@pytest.mark.parametrize(
    "changes",
    [
        {"eat_profile": "tag:example.com,2026:other"},
        {"submods": {}},
        {"submods": {"cpu0": 1}},
        {"submods": {"cpu0": {"ear.trustworthiness-vector": {"hardware": True}}}},
        {"submods": {"cpu0": {"ear.trustworthiness-vector": {"hardware": 200}}}},
        {"submods": {"cpu0": {"ear.trustworthiness-vector": {"luck": 2}}}},
    ],
)
def test_malformed_tokens_are_refused(
    result: AttestationResult, signer: TokenSigner, changes: dict[str, Any]
) -> None:
    with pytest.raises(MalformedError):
        verify(
            sign_altered(result, signer, **changes),
            signer.public_key,
            BINDING,
            at_s=NOW_S,
        )


def test_a_signer_shows_nothing() -> None:
    assert repr(TokenSigner.generate()) == "<TokenSigner>"
