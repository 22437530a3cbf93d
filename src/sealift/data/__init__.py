"""Sealed tables for PyTorch users: schema, sealing at home, reading, batches.

``schema`` and ``schemafile`` need the standard library only; most of the rest needs
numpy; ``loader``, ``batchmemory``, ``collate``, ``memories`` and ``torchloader`` need torch.
The names below are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sealift.data.dataset import SealedDataset as SealedDataset
    from sealift.data.ownerkeys import owner_keys as owner_keys
    from sealift.data.torchloader import SealedDataLoader as SealedDataLoader

_HOME_OF: Final = {
    "SealedDataLoader": "sealift.data.torchloader",
    "SealedDataset": "sealift.data.dataset",
    "owner_keys": "sealift.data.ownerkeys",
}

__all__ = ["SealedDataLoader", "SealedDataset", "owner_keys"]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)
