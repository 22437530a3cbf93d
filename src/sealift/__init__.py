"""Sealift: one PyTorch model trained over several parties' sealed data.

Importing this package does no work and loads no torch: brokers and holders run
without it. Names that need more are loaded when they are first asked for (PEP 562).
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
