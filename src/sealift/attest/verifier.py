"""The seam on the verifying side: evidence in, claims and checks out.

A verifier is a function of bytes: no sockets, no processes, no clock. It takes evidence
and an ``AppraisalBasis`` and says what the evidence proves (``Claims``), and how that compares with
the references: it collects checks instead of stopping at the first that fails, so that a
person sees the whole table. Whether that is enough is for ``policy`` and the agreement;
kinds of evidence are listed there. Each kind's function is ``examine_KIND``; it raises
EvidenceError if evidence is not genuine, MalformedError if it does not parse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from sealift.attest.collateral import DAY_S, require_recent
from sealift.attest.evidence import Evidence
from sealift.attest.level import Level, TrustVector
from sealift.attest.reference import AppraisalBasis
from sealift.attest.runtimelog import RuntimeEvent
from sealift.errors import EvidenceError, PolicyError, RefusedError, StaleError
from sealift.ids import Digest

UNBOUND: Final = "evidence-unbound"
Refusal = Literal["evidence", "policy", "stale"]
_REFUSALS: Final[dict[Refusal, type[RefusedError]]] = {
    "evidence": EvidenceError,
    "policy": PolicyError,
    "stale": StaleError,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AppraisalCheck:
    """One comparison.

    Attributes:
        subject: What was looked at, for people: ``TDX debug bit``, ``PCR 4``.
        expected: What the references allow, as text.
        found: What the evidence shows, as text.
        code: Empty if it passed, else the stable name of the refusal.
        refusal: The class of error that a failure leads to.
    """

    subject: str
    expected: str
    found: str
    code: str = ""
    refusal: Refusal = "policy"

    @property
    def passed(self) -> bool:
        """Whether it holds."""
        return not self.code


def check(
    holds: bool,
    subject: str,
    expected: str,
    found: str,
    code: str,
    *,
    refusal: Refusal = "policy",
) -> AppraisalCheck:
    """A check that passed if ``holds``, and fails under the name ``code`` if not."""
    return AppraisalCheck(
        subject=subject,
        expected=expected,
        found=found,
        code="" if holds else code,
        refusal=refusal,
    )


def check_among(
    found: bytes, allowed: Sequence[bytes], subject: str, *, code: str
) -> AppraisalCheck:
    """``found`` is one of the reference values; with none at all nothing is allowed."""
    return check(
        found in allowed,
        subject,
        " or ".join(each.hex() for each in allowed) or "no value is allowed",
        found.hex(),
        code,
    )


def check_bound(found: bytes, bound: bytes | None, subject: str) -> AppraisalCheck:
    """The signed field carries the bound value first and zeros after it.

    Without a bound value nothing is compared, and the check does not pass.
    """
    expected = None if bound is None else bound.ljust(len(found), b"\0")
    return check(
        found == expected,
        subject,
        "the references name no value to compare with"
        if expected is None
        else expected.hex(),
        found.hex(),
        "evidence-unbound",
        refusal="evidence",
    )


def all_but_freshness(checks: Iterable[AppraisalCheck]) -> bool:
    """Whether all passed that say what the evidence shows, not for which challenge.

    For trust vectors, which have no claim about freshness: evidence from a file, whose
    bound value nobody knows, is appraised by what it shows.
    """
    return all(each.passed or each.code == UNBOUND for each in checks)


def check_code_bundle(found: Digest | None, expected: Digest | None) -> AppraisalCheck:
    """The code that runs is the agreed one, or any where none was agreed on."""
    return check(
        expected is None or found == expected,
        "code bundle",
        expected.to_text() if expected else "any",
        found.to_text() if found else "nothing was measured",
        "code-bundle-differs",
    )


def check_collateral_age(basis: AppraisalBasis) -> AppraisalCheck:
    """The collateral is as recent as the agreement wants it (rule H13)."""
    max_age_s = basis.references.collateral_max_age_s
    try:
        require_recent(basis.collateral, at_s=basis.at_s, max_age_s=max_age_s)
        code = ""
    except StaleError as error:
        code = error.code
    found = f"{(basis.at_s - basis.collateral.as_of_s) / DAY_S:.1f} days"
    expected = f"at most {max_age_s / DAY_S:.1f} days"
    if not basis.collateral.items:
        code, found = "collateral-missing", "no bundle of collateral"
    return check(
        not code, "age of the collateral", expected, found, code, refusal="stale"
    )


def require_passed(checks: Iterable[AppraisalCheck]) -> None:
    """Refuse if a check failed; the error names the first one.

    Raises:
        EvidenceError, StaleError, PolicyError: with the check's code.
    """
    failed = [each for each in checks if not each.passed]
    if not failed:
        return
    first, *more = failed
    also = f" (and {len(more)} more)" if more else ""
    raise _REFUSALS[first.refusal](
        f"evidence refused: {first.subject}",
        why=f"expected {_short(first.expected)}, found {_short(first.found)}{also}",
        code=first.code,
    )


def _short(text: str) -> str:
    """Both ends: dates and versions stand at the end of a reason."""
    return text if len(text) <= 400 else f"{text[:250]}…{text[-149:]}"


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
    role: str | None = None
    code_bundle: Digest | None = None
    trust: TrustVector
    checks: tuple[AppraisalCheck, ...] = ()
    measurements: Mapping[str, bytes] = field(default_factory=dict)
    events: tuple[RuntimeEvent, ...] = ()
    progress: object = None
    notes: tuple[str, ...] = ()
    devices: Mapping[str, Claims] = field(default_factory=dict)


_EAT: Final = "application/eat+jwt"
Examine = Callable[..., Claims]


@dataclass(frozen=True, slots=True)
class VerifierKind:
    """A verifier, not loaded before it examines.

    Attributes:
        levels: Every level that it could support; others are refused unparsed.
        load: Loads its room; returns the function of evidence and basis.
        grows: Whether that also takes the earlier claims that evidence may continue. A
            list with a gap, another attester, or a machine that was reset in between
            must not pass then.
        result_media_type: How a result over such evidence is marked wherever it is shown.
    """

    levels: frozenset[Level]
    load: Callable[[], Examine]
    grows: bool = False
    result_media_type: str = _EAT

    def examine(
        self, evidence: Evidence, basis: AppraisalBasis, earlier: Claims | None = None
    ) -> Claims:
        """Verify that evidence is genuine, and compare it with the references.

        Raises:
            EvidenceError: if it is not genuine.
            MalformedError: if it does not parse.
        """
        more = (earlier,) if self.grows else ()
        return self.load()(evidence, basis, *more)
