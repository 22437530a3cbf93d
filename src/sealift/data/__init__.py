"""Sealed tables for PyTorch users: schema, sealing at home, reading, batches.

``schema.schema`` and ``schema.document`` need the standard library only; most of the rest
needs numpy, ``loader`` torch.
The names below are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from sealift.errors import UnavailableError

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
    try:
        return getattr(importlib.import_module(_HOME_OF[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UnavailableError(
            f"{name} needs torch, which is not installed",
            fix="In Sealift's folder, run: pip install '.[train]'",
            code="extra-missing",
        ) from None
