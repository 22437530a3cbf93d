"""Digests of a model: the public one of its weights, and the private one of rule H1.

Weights, optimizer and buffers are digested when a training slice ends and again before
their next use, under a key that is fresh each time and never leaves; only the verdict
is told. It is a statement of the attested accelerator, not a proof to others.
"""

from __future__ import annotations

from collections.abc import Mapping

from sealift.crypto.hash import KeyedHasher, sha256
from sealift.crypto.keys import SecretKey
from sealift.errors import JobError
from sealift.ids import Digest
from sealift.train.loop.states import TrainingState
from sealift.train.loop.tensors import TensorBytes


def state_digest(state: Mapping[str, TensorBytes]) -> Digest:
    """Digest of named tensors, independent of how they are stored in a file."""
    parts = []
    for name in sorted(state):
        tensor = state[name]
        parts.append(f"{name}|{tensor.form}".encode() + sha256(tensor.content))
    return Digest.of(b"".join(parts))


class Settled:
    """What a training state was at one moment.

    Args:
        state: Model and optimizer.
    """

    def __init__(self, state: TrainingState) -> None:
        self._key = SecretKey.generate()
        self._digest = self._measure(state)

    def verify(self, state: TrainingState) -> None:
        """Demand the same state, bit for bit.

        Raises:
            JobError: code ``state-changed``.
        """
        if self._measure(state) != self._digest:
            raise JobError(
                "model or optimizer changed between two slices",
                why="nothing of ours changes them there",
                code="state-changed",
            )

    def _measure(self, state: TrainingState) -> bytes:
        hasher = KeyedHasher(self._key)
        sizes = (state.step, len(state.tensors), len(state.tree))
        hasher.update("|".join(str(size) for size in sizes).encode())
        hasher.update(b"|")
        hasher.update(state.tensors)
        hasher.update(state.tree)
        return hasher.digest()
