"""Verifies development evidence, which proves nothing about hardware.

Its trust vector is contraindicated by construction: hardware 97 (unrecognised) and
runtime-opaque 96 (memory is visible), so no result over it can be affirming.
Source: AR4SI trust claims; DESIGN section 9.
"""

from __future__ import annotations

from typing import Final

from sealift import codec
from sealift.attest.check import check_bound, check_code_bundle
from sealift.attest.collateral import Collateral
from sealift.attest.development.evidence import (
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
from sealift.crypto.kdf import Label
from sealift.errors import EvidenceError

CEILING: Final = TrustVector(hardware=97, runtime_opaque=96)


class DevelopmentVerifier:
    """Verifies attester key and signature; compares bound value and code bundle."""

    media_type = MEDIA_TYPE
    levels = frozenset({Level.DEVELOPMENT})
    result_media_type = RESULT_MEDIA_TYPE

    def examine(
        self,
        evidence: Evidence,
        *,
        bound: bytes | None,
        references: ReferenceValues,
        collateral: Collateral,
        at_s: int,
    ) -> Claims:
        """See ``Verifier.examine``; collateral and time play no part."""
        body = parse_body(evidence.body)
        _require_pinned_attester(body, references)
        _verify_signature(body)
        claims = body.statement.claims
        return Claims(
            level=Level.DEVELOPMENT,
            attester=body.statement.attester.to_text(),
            role=claims.role,
            code_bundle=claims.code_bundle,
            trust=CEILING,
            checks=(
                check_bound(body.statement.bound, bound, "bound value"),
                check_code_bundle(claims.code_bundle, references.code_bundle),
            ),
            notes=("software keys: nobody is kept out",),
        )


def _require_pinned_attester(
    body: DevelopmentBody, references: ReferenceValues
) -> None:
    if body.statement.attester not in references.development_attesters:
        raise EvidenceError(
            "evidence by an attester that the agreement does not name",
            code="attester-unknown",
        )


def _verify_signature(body: DevelopmentBody) -> None:
    signed = codec.encode(body.statement)
    body.statement.attester.verify(Label.DEVELOPMENT_EVIDENCE, signed, body.signature)
