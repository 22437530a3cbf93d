"""Sealift: one PyTorch model trained over several parties' sealed data.

Importing this package does no work and loads no torch: brokers and holders run
without it. Names that need more are loaded when they are first asked for (PEP 562).
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

__all__ = ["AsyncClient", "__version__", "connect", "host", "join", "run"]

_FOUND_IN = {
    "AsyncClient": "sealift.serve.client",
    "connect": "sealift.serve.client",
    "host": "sealift.api",
    "join": "sealift.api",
    "run": "sealift.api",
}


def __getattr__(name: str) -> Any:
    if name not in _FOUND_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_FOUND_IN[name]), name)
