"""The seam on the verifying side: evidence in, claims and checks out.

A verifier is a function of bytes: no sockets, no processes, no clock. It says what the
evidence proves and how that compares with the references; whether that is enough is for
``appraise`` and the agreement. Kinds are found in ``sealift.attest.kinds``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

from sealift.attest.check import Check
from sealift.attest.evidence import Evidence
from sealift.attest.level import Level, TrustVector
from sealift.attest.reference import Basis
from sealift.attest.runtimelog import RuntimeEvent
from sealift.ids import Digest

EAT: Final = "application/eat+jwt"  # how results are marked, but for development's


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What genuine evidence proves, and how it compares with the references.

    Attributes:
        level: The level that it supports by itself; None for a device, which only
            counts inside a composite.
        rehearsing: The level whose whole path this ``development`` evidence rehearses.
        attester: Stable text of what made it (key, attestation key name, chip id).
        role: The role that it names, or None if its format has no place for one.
        code_bundle: Digest of the code it measured, or None.
        trust: The verdict per aspect, within the ceiling of its kind.
        checks: Every comparison made, those that failed included.
        measurements: Digests by name (``pcr4``, ``mrtd``, ``rtmr1``, ``launch``).
        events: What the process measured about itself, register replayed.
        progress: How far growing evidence was judged; its own verifier continues there.
        notes: Plain words for people: what was not checked, whom one still trusts.
        devices: Of a composite, what each device proves by itself, by its name in
            results (``gpu0``, ``switch0``); ``trust`` is then the worst of all parts.
    """

    level: Level | None
    rehearsing: Level | None = None
    attester: str
    role: str | None
    code_bundle: Digest | None
    trust: TrustVector
    checks: tuple[Check, ...] = ()
    measurements: Mapping[str, bytes] = field(default_factory=dict)
    events: tuple[RuntimeEvent, ...] = ()
    progress: object = None
    notes: tuple[str, ...] = ()
    devices: Mapping[str, Claims] = field(default_factory=dict)


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

    def examine(self, evidence: Evidence, basis: Basis) -> Claims:
        """Verify that the evidence is genuine, and compare it with the references.

        Raises:
            EvidenceError: if it is not genuine.
            MalformedError: if it does not parse.
        """
        ...


@runtime_checkable
class ContinuingVerifier(Verifier, Protocol):
    """Verifies growing evidence from where it left off."""

    def examine_continued(
        self, evidence: Evidence, basis: Basis, *, earlier: Claims
    ) -> Claims:
        """Like ``examine``, of evidence that continues what led to ``earlier``.

        A list with a gap, another attester, or a machine that was reset in between must
        not pass.
        """
        ...
