"""Attestation (RFC 9334): who is at the other end, and what proves it.

One room per kind, with format, attester and verifier. Attesters are imported from there
by whoever collects: they may open devices, and verifying must not load them.
"""

from sealift.attest.evidence import Attester, Challenge, Evidence
from sealift.attest.level import Level, Tier, parse_accept
from sealift.attest.policy import Appraiser, AttestationResult
from sealift.attest.reference import ReferenceValues
from sealift.attest.verifier import Claims

__all__ = [
    "Appraiser",
    "AttestationResult",
    "Attester",
    "Challenge",
    "Claims",
    "Evidence",
    "Level",
    "ReferenceValues",
    "Tier",
    "parse_accept",
]
