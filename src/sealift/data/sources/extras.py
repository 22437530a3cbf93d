"""Packages that only some sources need; loaded when such a source is opened."""

from __future__ import annotations

import importlib
from typing import Any

from sealift.errors import UnavailableError


def require(module: str, *, extra: str, what: str) -> Any:
    """Import a module of an extra.

    Args:
        module: Its import path.
        extra: The extra of sealift that brings it.
        what: What needs it, in words.

    Raises:
        UnavailableError: ``extra-missing``, with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UnavailableError(
            f"{what} needs a package that is not installed",
            why=str(error),
            fix=f"Run: pip install 'sealift[{extra}]'",
            code="extra-missing",
        ) from None
