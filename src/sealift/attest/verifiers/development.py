"""Verifies development evidence, which proves nothing about hardware.

Its trust vector is contraindicated by construction: hardware 97 (unrecognised) and
runtime-opaque 96 (memory is visible), so no result over it can be affirming.
Source: AR4SI trust claims; DESIGN section 9.
"""

from __future__ import annotations

from typing import Final

from sealift import codec
from sealift.attest.development import (
    MEDIA_TYPE,
    RESULT_MEDIA_TYPE,
    DevelopmentBody,
    parse_body,
)
from sealift.attest.evidence import Evidence
from sealift.attest.level import Level
from sealift.attest.reference import ReferenceValues
from sealift.attest.trust import TrustVector
from sealift.attest.verifier import Claims
from sealift.crypto.hash import verify_equal
from sealift.crypto.kdf import Label
from sealift.errors import AuthenticationError, EvidenceError, PolicyError

CEILING: Final = TrustVector(hardware=97, runtime_opaque=96)


class DevelopmentVerifier:
    """Checks attester key, signature, bound value and code bundle."""

    media_type = MEDIA_TYPE
    levels = frozenset({Level.DEVELOPMENT})
    result_media_type = RESULT_MEDIA_TYPE

    def appraise(
        self, evidence: Evidence, *, bound: bytes, references: ReferenceValues
    ) -> Claims:
        """See ``Verifier.appraise``."""
        body = parse_body(evidence.body)
        _require_pinned_attester(body, references)
        _verify_signature(body)
        _verify_bound(body, bound)
        _require_code_bundle(body, references)
        claims = body.statement.claims
        return Claims(
            level=Level.DEVELOPMENT,
            attester=body.statement.attester.to_text(),
            role=claims.role,
            code_bundle=claims.code_bundle,
            trust=CEILING,
            notes=("software keys: nobody is kept out",),
        )


def _require_pinned_attester(
    body: DevelopmentBody, references: ReferenceValues
) -> None:
    if body.statement.attester not in references.development_attesters:
        raise EvidenceError(
            "evidence by an attester that the agreement does not name",
            fix="Add the attester's key to the agreement's references, and sign again",
            code="attester-unknown",
        )


def _verify_signature(body: DevelopmentBody) -> None:
    signed = codec.encode(body.statement)
    body.statement.attester.verify(Label.DEVELOPMENT_EVIDENCE, signed, body.signature)


def _verify_bound(body: DevelopmentBody, bound: bytes) -> None:
    try:
        verify_equal(bound, body.statement.bound)
    except AuthenticationError:
        raise EvidenceError(
            "evidence is bound to something else",
            why="it was made for another handshake, another key or another role",
            fix="Collect fresh evidence in this handshake",
            code="evidence-unbound",
        ) from None


def _require_code_bundle(body: DevelopmentBody, references: ReferenceValues) -> None:
    expected = references.code_bundle
    found = body.statement.claims.code_bundle
    if expected is not None and found != expected:
        raise PolicyError(
            "the peer runs other code than the agreement names",
            why=f"it says {found.short if found else 'none'}, not {expected.short}",
            fix="Start it with the agreed bundle, or agree on the other one",
            code="code-bundle-differs",
        )
