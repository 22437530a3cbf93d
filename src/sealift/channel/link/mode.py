"""The two ways in which transfers cross: as they are sent, or sealed before they are asked for.

In both every record has its own tag, nobody but owner and device can read what crosses,
and records are opened while the next ones come. Weaker ways exist to be measured, in
``bench``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from sealift.errors import UsageError


class LinkMode(StrEnum):
    """How a transfer is laid out; the value is what people type."""

    DIRECT_OVERLAP = "direct+parallel-auth+overlap"
    SEAL_AHEAD = "seal-ahead"


DEFAULT_MODE: Final = LinkMode.DIRECT_OVERLAP


def parse_mode(name: str) -> LinkMode:
    """The mode of that name.

    Raises:
        UsageError: if there is none.
    """
    try:
        return LinkMode(name)
    except ValueError:
        known = ", ".join(LinkMode)
        raise UsageError(
            f"there is no link mode {name!r}",
            fix=f"There are: {known}",
            code="no-such-mode",
        ) from None
