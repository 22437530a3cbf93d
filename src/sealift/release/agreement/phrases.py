"""Ranges of an agreement as people read them."""

from __future__ import annotations

from sealift.codec import MAX_INTEGER
from sealift.errors import quote_foreign
from sealift.release.agreement import Between
from sealift.release.agreement.training import ParameterRule


def say_range(allowed: Between) -> str:
    """``8``, ``1 to 8``, or ``1 or more`` where a document sets no end."""
    if allowed.max == MAX_INTEGER != allowed.min:
        return f"{allowed.min:,} or more"
    low, high = (
        f"{each:,g}" if isinstance(each, float) else f"{each:,}"
        for each in (allowed.min, allowed.max)
    )
    return low if low == high else f"{low} to {high}"


def say_every(allowed: Between, what: str) -> str:
    """``every 8 rounds``, ``never``, or either."""
    if allowed.max == MAX_INTEGER:
        return "as often as the run says"
    said = [] if allowed.min else ["never"]
    if allowed.max:
        said[:0] = [
            f"every {say_range(Between(max(1, allowed.min), allowed.max))} {what}"
        ]
    return " or ".join(said)


def say_parameter(rule: ParameterRule) -> str:
    """``0.001 to 0.1``, with all digits, or ``adam or sgd``."""
    if rule.between is not None:
        return str(rule.between)
    return " or ".join(quote_foreign(str(each)) for each in rule.values)
