"""Digests of a model: the public one of its weights, and the private one of rule H1.

Weights, optimizer and buffers are digested when a training slice ends and again before
their next use, under a key that is fresh each time and never leaves; only the verdict
is told. It is a statement of the attested accelerator, not a proof to others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from sealift.crypto.hash import KeyedHasher, sha256
from sealift.crypto.keys import SecretKey
from sealift.errors import JobError
from sealift.ids import Digest


def state_digest(state: Mapping[str, Tensor]) -> Digest:
    """Digest of named tensors, independent of how they are stored in a file."""
    parts = []
    for name in sorted(state):
        tensor = state[name]
        parts.append(f"{name}|{_form(tensor)}".encode() + sha256(_content(tensor)))
    return Digest.of(b"".join(parts))


class Settled:
    """What a training state was at one moment.

    Args:
        state: Tensors, numbers and texts in nested dicts and lists.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._key = SecretKey.generate()
        self._digest = self._measure(state)

    def verify(self, state: Mapping[str, Any]) -> None:
        """Demand the same state, bit for bit.

        Raises:
            JobError: code ``state-changed``.
        """
        if self._measure(state) != self._digest:
            raise JobError(
                "model or optimizer changed between two slices",
                why="nothing of ours changes them there",
                fix="Run again; if it recurs, the recipe or this machine's memory does",
                code="state-changed",
            )

    def _measure(self, state: Mapping[str, Any]) -> bytes:
        hasher = KeyedHasher(self._key)
        for path, value in _leaves(state, ""):
            if isinstance(value, Tensor):
                hasher.update(f"{path}|{_form(value)}|".encode())
                hasher.update(_content(value.detach().cpu().contiguous()))
            else:
                hasher.update(f"{path}|{value!r}|".encode())
        return hasher.digest()


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key in value:
            yield from _leaves(value[key], f"{path}/{key!r}")
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from _leaves(each, f"{path}/{index}")
    else:
        yield path, value


def _form(tensor: Tensor) -> str:
    return f"{tensor.dtype}|{'x'.join(str(size) for size in tensor.shape)}"


def _content(tensor: Tensor) -> memoryview:
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())
