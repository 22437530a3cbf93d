"""The seam on the verifying side: evidence in, claims out.

A verifier is a function of bytes: no sockets, no processes, no clock. It says what the
evidence proves; whether that is enough is for ``appraise`` and the agreement.
Kinds are found in ``sealift.attest.verifiers``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sealift.attest.evidence import Evidence
from sealift.attest.level import Level
from sealift.attest.reference import ReferenceValues
from sealift.attest.trust import TrustVector
from sealift.ids import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What verified evidence proves.

    Attributes:
        level: The level that it supports, by itself.
        attester: Stable text of what made it (key, attestation key name, chip id).
        role: The role that it names, or None if its format has no place for one.
        code_bundle: Digest of the code it measured, or None.
        trust: The verdict per aspect, within the ceiling of its kind.
        notes: Plain words for people: what was checked, what was not.
    """

    level: Level
    attester: str
    role: str | None
    code_bundle: Digest | None
    trust: TrustVector
    notes: tuple[str, ...] = ()


class Verifier(Protocol):
    """Verifies one media type."""

    @property
    def media_type(self) -> str:
        """The format that it parses."""
        ...

    @property
    def levels(self) -> frozenset[Level]:
        """Every level that this kind could support; others are refused unparsed."""
        ...

    @property
    def result_media_type(self) -> str:
        """How a result over this evidence is marked wherever it is shown or sent."""
        ...

    def appraise(
        self, evidence: Evidence, *, bound: bytes, references: ReferenceValues
    ) -> Claims:
        """Verify the evidence and that it carries ``bound``.

        Raises:
            EvidenceError: if it is not genuine, or made for something else.
            PolicyError: if it is genuine and shows what the references do not allow.
            MalformedError: if it does not parse.
        """
        ...
