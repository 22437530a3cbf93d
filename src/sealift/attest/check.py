"""One thing that appraisal compared: what was expected, what was found.

Verifiers collect checks instead of stopping at the first that fails, so that a person
sees the whole table; ``appraise`` refuses if one of them failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sealift.attest.collateral import require_recent
from sealift.attest.reference import Basis
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
class Check:
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
) -> Check:
    """A check that passed if ``holds``, and fails under the name ``code`` if not."""
    return Check(
        subject=subject,
        expected=expected,
        found=found,
        code="" if holds else code,
        refusal=refusal,
    )


def check_among(
    found: bytes, allowed: Sequence[bytes], subject: str, *, code: str
) -> Check:
    """``found`` is one of the reference values; with none at all nothing is allowed."""
    return check(
        found in allowed,
        subject,
        " or ".join(each.hex() for each in allowed) or "no value is allowed",
        found.hex(),
        code,
    )


def check_bound(found: bytes, bound: bytes | None, subject: str) -> Check:
    """The signed field carries the bound value first and zeros after it.

    Without a bound value nothing is compared, and the check does not pass.
    """
    expected = None if bound is None else bound.ljust(len(found), b"\0")
    return check(
        found == expected,
        subject,
        "nothing to compare with" if expected is None else expected.hex(),
        found.hex(),
        "evidence-unbound",
        refusal="evidence",
    )


def all_but_freshness(checks: Iterable[Check]) -> bool:
    """Whether all passed that say what the evidence shows, not for which challenge.

    For trust vectors, which have no claim about freshness: evidence from a file, whose
    bound value nobody knows, is appraised by what it shows.
    """
    return all(each.passed or each.code == UNBOUND for each in checks)


def check_code_bundle(found: Digest | None, expected: Digest | None) -> Check:
    """The code that runs is the agreed one, or any where none was agreed on."""
    return check(
        expected is None or found == expected,
        "code bundle",
        expected.to_text() if expected else "any",
        found.to_text() if found else "none measured",
        "code-bundle-differs",
    )


def check_collateral_age(basis: Basis) -> Check:
    """The collateral is as recent as the agreement wants it (rule H13)."""
    max_age_s = basis.references.collateral_max_age_s
    try:
        require_recent(basis.collateral, at_s=basis.at_s, max_age_s=max_age_s)
        code = ""
    except StaleError as error:
        code = error.code
    found = f"{basis.at_s - basis.collateral.as_of_s} s"
    expected = f"at most {max_age_s} s"
    return check(
        not code, "age of the collateral", expected, found, code, refusal="stale"
    )


def require_passed(checks: Iterable[Check]) -> None:
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
    return text if len(text) <= 140 else f"{text[:139]}…"
