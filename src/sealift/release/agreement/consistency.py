"""How the parts of an agreement refuse what contradicts itself, and what is out of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from sealift.errors import MalformedError, PolicyError

LAST_S: Final = 253_402_300_799  # 9999-12-31T23:59:59Z, the last that RFC 3339 can say


def require_distinct(names: Iterable[str], field: str) -> None:
    """Refuse a name that stands twice."""
    if any(count > 1 for count in Counter(names).values()):
        raise inconsistent("named twice", field)


def require_within(value: float, low: float, high: float, field: str) -> None:
    """Refuse a number outside ``low`` .. ``high``."""
    if not low <= value <= high:
        raise inconsistent(f"{value} is not within {low} .. {high}", field)


def require_positive(value: float, most: float, field: str) -> None:
    """Refuse a number of seconds that is not above 0 and up to ``most``."""
    if not 0 < value <= most:
        raise inconsistent(f"is not above 0 and up to {most:g}", field)


def require_window(not_before: int | None, not_after: int | None) -> None:
    """Refuse a time that never comes; both are seconds since 1970."""
    for name, at_s in (("not_before", not_before), ("not_after", not_after)):
        if at_s is not None:
            require_within(at_s, 0, LAST_S, name)
    if not_before is not None and not_after is not None and not_after <= not_before:
        raise inconsistent("is not after not_before", "not_after")


def require_now(
    what: str,
    at_s: float,
    not_before: int | None,
    not_after: int | None,
    *,
    code: tuple[str, str],
) -> None:
    """Refuse a use before, or after, the time that was agreed on; a code for each.

    Raises:
        PolicyError: with that code.
    """
    if not_before is not None and at_s < not_before:
        raise PolicyError(
            f"{what} may not be used yet",
            why=f"it may be {not_before - at_s:.0f} seconds from now",
            code=code[0],
        )
    if not_after is not None and at_s > not_after:
        raise PolicyError(
            f"{what} may not be used any more",
            why=f"its time ended {at_s - not_after:.0f} seconds ago",
            code=code[1],
        )


def inconsistent(why: str, field: str) -> MalformedError:
    """The refusal of a document that contradicts itself."""
    return MalformedError(
        "the agreement is not consistent", why=why, field=field, code="bad-agreement"
    )
