"""Products on servers that nobody trusts: spec/shares.md.

Names that need torch are loaded when they are first asked for (PEP 562).
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["Servers", "outsource_module"]

_FOUND_IN = {
    "Servers": "sealift.outsource.module.servers",
    "outsource_module": "sealift.outsource.module.model",
}


def __getattr__(name: str) -> Any:
    if name not in _FOUND_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_FOUND_IN[name]), name)
