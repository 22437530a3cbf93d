"""Verifies SEV-SNP evidence: a genuine report, and all in it that decides (rule M7).

Source: spec/evidence-snp.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sealift.attest.anchors import AMD_ARKS
from sealift.attest.check import check_code_bundle
from sealift.attest.collateral import Collateral
from sealift.attest.evidence import Evidence
from sealift.attest.level import Level
from sealift.attest.reference import ReferenceValues, no_references
from sealift.attest.snp.checks import (
    check_chip,
    check_guest,
    check_host_data,
    measurements,
    notes_of,
    trust_of,
)
from sealift.attest.snp.evidence import MEDIA_TYPE, parse_body
from sealift.attest.snp.genuine import SnpTrust, SnpVerdict, verify_report
from sealift.attest.verifier import Claims
from sealift.ids import Digest

RESULT_MEDIA_TYPE: Final = "application/eat+jwt"


class SnpVerifier:
    """Verifies the report; compares guest and chip with the references.

    Args:
        roots: AMD's root keys by product.
    """

    media_type = MEDIA_TYPE
    levels = frozenset({Level.TEE})
    result_media_type = RESULT_MEDIA_TYPE

    def __init__(self, roots: Mapping[str, Digest] = AMD_ARKS) -> None:
        self._roots = roots

    def examine(
        self,
        evidence: Evidence,
        *,
        bound: bytes | None,
        references: ReferenceValues,
        collateral: Collateral,
        at_s: int,
    ) -> Claims:
        """See ``Verifier.examine``."""
        expected = references.snp
        if expected is None:
            raise no_references("SEV-SNP")
        body = parse_body(evidence.body)
        trust = SnpTrust(
            collateral=collateral,
            roots=self._roots,
            at_s=at_s,
            revocation=expected.revocation == "required",
        )
        verdict = verify_report(body.report, body.certificates, trust)
        # Only where the agreement says so does the host's value name the code.
        named = Digest(verdict.report.host_data)
        code_bundle = named if expected.host_data_names_code else None
        checks = (
            *check_guest(verdict.report, bound, expected),
            check_host_data(verdict.report, expected, references.code_bundle),
            *check_chip(verdict, references, collateral, at_s=at_s),
            check_code_bundle(code_bundle, references.code_bundle),
        )
        return Claims(
            level=Level.TEE,
            attester=attester_of(verdict),
            role=None,
            code_bundle=code_bundle,
            trust=trust_of(verdict, expected, checks),
            checks=checks,
            measurements=measurements(verdict.report),
            notes=tuple(notes_of(verdict, expected)),
        )


def attester_of(verdict: SnpVerdict) -> str:
    """Stable text of who signed: a chip, or one guest under an operator's key."""
    if verdict.chip_id:
        return f"snp-chip:{verdict.chip_id.hex()}"
    return f"snp-guest:{verdict.report.report_id.hex()}"
