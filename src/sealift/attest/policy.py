"""Appraisal: evidence, references and accepted levels in, a result or a refusal out.

The order matters: a kind that could not reach an accepted level is refused before one
byte of its body is parsed. So development evidence is refused by default, whatever it
contains.
"""

from __future__ import annotations

from collections.abc import Mapping

from sealift.attest.evidence import Evidence
from sealift.attest.level import Level, Tier, parse_accept
from sealift.attest.reference import ReferenceValues
from sealift.attest.result import APPRAISED, AttestationResult
from sealift.attest.verifier import Claims, Verifier
from sealift.attest.verifiers import VERIFIER_FOR_MEDIA_TYPE
from sealift.errors import EvidenceError, PolicyError


def appraise(
    evidence: Evidence,
    *,
    bound: bytes,
    references: ReferenceValues,
    accept: tuple[Level, ...],
    verifiers: Mapping[str, Verifier] = VERIFIER_FOR_MEDIA_TYPE,
) -> AttestationResult:
    """Appraise one piece of evidence against what the agreement accepts.

    Args:
        evidence: What the peer sent.
        bound: What it must be bound to (32 bytes, from the transcript).
        references: From the agreement.
        accept: Accepted levels; ``development`` stands alone.
        verifiers: By media type.

    Raises:
        EvidenceError: unknown kind, not genuine, or bound to something else.
        PolicyError: a level or a value that the agreement does not accept.
        MalformedError: evidence that does not parse, or a bad ``accept``.
    """
    accepted = parse_accept(accept)
    verifier = _select(evidence, verifiers)
    _require_level(verifier.levels, accepted)
    claims = verifier.appraise(evidence, bound=bound, references=references)
    _require_level(frozenset({claims.level}), accepted)
    _require_tier(claims)
    return AttestationResult(
        media_type=verifier.result_media_type,
        claims=claims,
        evidence=evidence.digest,
        token=APPRAISED,
    )


def _select(evidence: Evidence, verifiers: Mapping[str, Verifier]) -> Verifier:
    verifier = verifiers.get(evidence.media_type)
    if verifier is None:
        raise EvidenceError(
            "evidence of an unknown kind",
            why=f"no verifier reads {evidence.media_type}",
            fix="Install the extra that verifies it, or use another kind",
            code="evidence-unknown-kind",
        )
    return verifier


def _require_level(possible: frozenset[Level], accepted: tuple[Level, ...]) -> None:
    if possible & set(accepted):
        return
    if possible == {Level.DEVELOPMENT}:
        raise PolicyError(
            "development evidence refused",
            why=f"the agreement accepts {', '.join(accepted)}",
            fix='Only accept = ["development"] asks for it, and it protects from nobody',
            code="development-refused",
        )
    raise PolicyError(
        "evidence of a level that is not accepted",
        why=f"it proves {', '.join(sorted(possible))}; "
        f"the agreement accepts {', '.join(accepted)}",
        code="level-refused",
    )


def _require_tier(claims: Claims) -> None:
    if (
        claims.level is not Level.DEVELOPMENT
        and claims.trust.tier is not Tier.AFFIRMING
    ):
        raise PolicyError(
            "evidence is not affirming",
            why=f"its tier is {claims.trust.tier}; {'; '.join(claims.notes)}",
            code="tier-refused",
        )
