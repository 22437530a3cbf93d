"""The attestation result: what appraisal concluded, and on what.

Only ``sealift.attest.policy.Appraiser`` makes one: the constructor wants a token that
nothing else has a reason to use. A result at level ``development`` cannot be affirming.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sealift.attest.level import Level, Tier, say_level
from sealift.attest.verifier import Claims
from sealift.errors import UsageError
from sealift.ids import Digest


class _AppraisedToken:
    """Shows that a result comes from an ``Appraiser``."""


APPRAISED: Final = _AppraisedToken()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestationResult:
    """One appraised piece of evidence.

    Attributes:
        media_type: Development results have one of their own.
        claims: What the verifier found.
        evidence: Digest of the evidence body.
    """

    media_type: str
    claims: Claims
    evidence: Digest
    token: _AppraisedToken = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.token is not APPRAISED:
            raise UsageError("attestation results are made by an Appraiser only")
        if self.level is Level.DEVELOPMENT and self.tier is Tier.AFFIRMING:
            raise UsageError("development evidence can never be affirming")

    @property
    def level(self) -> Level:
        """The assurance level that was accepted."""
        assert self.claims.level is not None, "an appraiser accepts levels only"
        return self.claims.level

    @property
    def standing(self) -> str:
        """The level for people: ``development (rehearsing attested-host)``."""
        return say_level(self.level, self.claims.rehearsing)

    @property
    def tier(self) -> Tier:
        """EAR's verdict: the worst claim of the trust vector."""
        return self.claims.trust.tier

    def summary(self) -> dict[str, str | None]:
        """Plain values for logs, manifests and screens."""
        bundle = self.claims.code_bundle
        return {
            "media_type": self.media_type,
            "level": self.standing,
            "tier": self.tier.value,
            "attester": self.claims.attester,
            "code_bundle": bundle.to_text() if bundle else None,
            "evidence": self.evidence.to_text(),
        }
