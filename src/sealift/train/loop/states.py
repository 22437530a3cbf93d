"""A training state between two slices: bytes in the parent's memory, and their digests.

Model and optimizer as one blob of tensors, the optimizer's plain values as JSON, and
the number of steps. Whatever else a recipe keeps is gone when a slice ends.

There are two digests: the public one of a model's weights, and the private one of rule
H1. For it weights, optimizer and buffers are digested when a training slice ends and
again before their next use, under a key that is fresh each time and never leaves; only
the verdict is told. It is a statement of the attested accelerator, not a proof to others.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sealift.crypto.hash import KeyedHasher, sha256
from sealift.crypto.keys import SecretKey
from sealift.errors import JobError, MalformedError
from sealift.ids import Digest
from sealift.train.loop.tensors import TensorBytes, parse_tensors

MODEL: Final = "model/"
OPTIMIZER: Final = "optimizer/"
MAX_TREE_BYTES: Final = 16 << 20
_HEAD: Final = struct.Struct(">QQ")  # steps made, bytes of the tree
_COUNT: Final = struct.Struct(">Q")
_JOINT, _ALONE, _ROWS, _STATISTICS = "joint", "alone.", "rows", "statistics"


@dataclass(frozen=True, slots=True)
class TrainingState:
    """One model and its optimizer.

    Attributes:
        step: Optimizer steps made so far.
        tensors: Blob; names begin with ``MODEL`` or ``OPTIMIZER``.
        tree: The optimizer's state with references into the blob; opaque here.
    """

    step: int
    tensors: bytes
    tree: bytes

    def model(self) -> dict[str, TensorBytes]:
        """The model's tensors by their own names.

        Raises:
            MalformedError: if the blob is none.
        """
        found = parse_tensors(self.tensors)
        return {
            name.removeprefix(MODEL): tensor
            for name, tensor in found.items()
            if name.startswith(MODEL)
        }


@dataclass(frozen=True, slots=True)
class JointState:
    """Everything that training goes on from.

    Attributes:
        joint: The model of all owners; None while there are but sums to build it on.
        alone: One of each owner alone; empty if the rule has no baselines.
        rows_trained: Rows trained on so far, with repetition.
        statistics: Blob of the sums of ``prepare``; empty without.
    """

    joint: TrainingState | None
    alone: Mapping[str, TrainingState] = field(default_factory=dict)
    rows_trained: int = 0
    statistics: bytes = b""

    def to_parts(self) -> dict[str, bytes]:
        """Bytes by name, for a checkpoint."""
        alone = {_ALONE + owner: _join(each) for owner, each in self.alone.items()}
        return {
            _JOINT: _join(self.joint) if self.joint is not None else b"",
            _ROWS: _COUNT.pack(self.rows_trained),
            _STATISTICS: self.statistics,
            **alone,
        }

    @classmethod
    def from_parts(cls, parts: Mapping[str, bytes]) -> JointState:
        """What ``to_parts`` made.

        Raises:
            MalformedError: code ``bad-tensors``, if it is something else.
        """
        try:
            return cls(
                joint=_split(parts[_JOINT]) if parts[_JOINT] else None,
                alone={
                    name.removeprefix(_ALONE): _split(each)
                    for name, each in parts.items()
                    if name.startswith(_ALONE)
                },
                rows_trained=_COUNT.unpack(parts[_ROWS])[0],
                statistics=parts[_STATISTICS],
            )
        except (KeyError, struct.error):
            raise _no_state() from None


def check_state(state: TrainingState) -> None:
    """Demand that a state which a recipe's process handed over is one.

    Raises:
        MalformedError: if its blob is none, or its tree is too long.
    """
    names = parse_tensors(state.tensors)
    known = all(name.startswith((MODEL, OPTIMIZER)) for name in names)
    if not known or len(state.tree) > MAX_TREE_BYTES:
        raise _no_state()


def _join(state: TrainingState) -> bytes:
    return _HEAD.pack(state.step, len(state.tree)) + state.tree + state.tensors


def _split(raw: bytes) -> TrainingState:
    step, length = _HEAD.unpack_from(raw)
    middle = _HEAD.size + length
    state = TrainingState(step, raw[middle:], raw[_HEAD.size : middle])
    check_state(state)
    return state


def _no_state() -> MalformedError:
    return MalformedError("not a training state", code="bad-tensors")


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
