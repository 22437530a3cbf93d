"""Sealed tables for PyTorch users: schema, sealing at home, reading, batches.

``schema.schema`` and ``schema.document`` need the standard library only; most of the rest
needs numpy, ``loader`` torch.
The names below are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sealift.data.loader.torchloader import SealedDataLoader as SealedDataLoader
    from sealift.data.shards.dataset import SealedDataset as SealedDataset
    from sealift.data.shards.dataset import owner_keys as owner_keys

_HOME_OF: Final = {
    "SealedDataLoader": "sealift.data.loader.torchloader",
    "SealedDataset": "sealift.data.shards.dataset",
    "owner_keys": "sealift.data.shards.dataset",
}

__all__ = ["SealedDataLoader", "SealedDataset", "owner_keys"]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)
