"""What an owner's own program refuses to sign unless the owner names it with --allow.

People answer questions by habit, so a plain yes is not enough for terms that can show
single rows: the owner must name each such exception on the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sealift.errors import PolicyError
from sealift.release.agreement import Agreement
from sealift.release.agreement.explain import ExceptionName, explain
from sealift.release.agreement.phrases import FLOOR_ROWS

EXCEPTIONS: Final[dict[ExceptionName, str]] = {
    "recipe-text": "text of the recipe is shared unchecked",
    "statistics": f"sums over fewer than {FLOOR_ROWS} rows are shared",
    "metric-rows": f"numbers over fewer than {FLOOR_ROWS} rows are shared",
    "model-to": "the model goes to a party that is not its owner",
    "round-updates": f"updates over a table of fewer than {FLOOR_ROWS} rows are shared",
    "step-updates": f"updates over fewer than {FLOOR_ROWS} rows are shared",
    "rows-away": "your rows are sent to a machine that proves nothing",
}


def require_allowed(
    agreement: Agreement, owner: str, allowed: Sequence[str], *, sealed: bool = True
) -> None:
    """Refuse terms below the floor, unless the owner named each exception.

    Args:
        agreement: What is to be signed.
        owner: Who would sign it; a party without rows has no floor.
        allowed: Of ``EXCEPTIONS``, as the owner named them.
        sealed: As for ``explain``.

    Raises:
        PolicyError: ``below-floor``, with each exception and its reason.
    """
    if not any(each.part != "model" for each in agreement.resources_of(owner)):
        return
    sentences = explain(agreement, owner, sealed=sealed)
    below = {each.exception: None for each in sentences if each.exception}
    missing = [each for each in below if each not in allowed]
    if missing:
        raise PolicyError(
            "the agreement shares something that you must allow explicitly",
            why="; ".join(f"{EXCEPTIONS[each]} (--allow {each})" for each in missing),
            code="below-floor",
        )
