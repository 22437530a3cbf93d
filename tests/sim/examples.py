"""How many examples of a property a run tries, where a test asks for its own number."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

LEAST = 8
THOROUGH = 100  # hypothesis's own number, which the profile `thorough` leaves


def examples(most: int, **more: Any) -> settings:
    """``most`` in a thorough run (`make test-all`); the profile's share of it else."""
    share = settings().max_examples / THOROUGH
    return settings(
        max_examples=max(min(most, LEAST), round(most * share)), deadline=None, **more
    )
