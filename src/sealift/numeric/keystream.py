"""Where masks and rounding noise come from: two streams that never meet (rule C3).

A mask belongs to one tensor: its seed derives from random bytes of this process, which
are never stored, and from a counter that only grows, and masking consumes it. Rounding
noise derives from the job's seed and a place in the job: the same in a step done again.
Source: spec/shares.md sections 2 and 3.
"""

from __future__ import annotations

import threading
from collections import deque
from itertools import count
from typing import Final

from sealift.crypto.keys import Label, SecretKey, derive, derive_bytes
from sealift.crypto.keystream import Keystream
from sealift.errors import UsageError
from sealift.numeric.residues import Noise, ResidueBasis

SEED_BYTES: Final = 32


class MaskSeed:
    """The seed of one tensor's mask, to be used once; Z may have it before.

    Attributes:
        basis: The modulus of the mask's words.
    """

    __slots__ = ("_bytes", "_lock", "basis")

    def __init__(self, material: bytes, basis: ResidueBasis) -> None:
        self._lock = threading.Lock()
        self._bytes = material
        self.basis = basis

    def for_z(self) -> bytes:
        """The 32 bytes, for Z, which may draw the mask before there is a tensor.

        Raises:
            UsageError: once they were spent.
        """
        if not self._bytes:
            raise UsageError("a mask's seed was asked for after it was used")
        return self._bytes

    def spend(self) -> bytes:
        """The 32 bytes, for masking.

        Raises:
            UsageError: the second time: two tensors under one mask can be subtracted.
        """
        with self._lock:
            material, self._bytes = self._bytes, b""
        if not material:
            raise UsageError("a mask was used for a second tensor")
        return material

    def __repr__(self) -> str:
        return "<MaskSeed>"


class MaskSource:
    """Seeds of masks, no two of them alike.

    Args:
        key_epoch: Of the session whose tensors they mask.
    """

    __slots__ = ("_counter", "_key", "_key_epoch")

    def __init__(self, key_epoch: int = 0) -> None:
        self._key = SecretKey.generate()
        self._key_epoch = key_epoch
        self._counter = count()

    def seed(self, basis: ResidueBasis) -> MaskSeed:
        """The next one, for a tensor modulo ``basis``.

        Raises:
            UsageError: in a forked child.
        """
        parts = (self._key_epoch, next(self._counter), basis.modulus)
        context = b"".join(part.to_bytes(8, "big") for part in parts)
        return MaskSeed(derive_bytes(self._key, Label.MASK_SEED, context), basis)


class StepSeeds:
    """The seeds of one attempt at a step, in the order in which its tensors come.

    Args:
        source: Of the masks.
    """

    __slots__ = ("_drawn", "_source")

    def __init__(self, source: MaskSource) -> None:
        self._source = source
        self._drawn: deque[MaskSeed] = deque()

    def draw(self, basis: ResidueBasis) -> bytes:
        """For Z: the seed of the next tensor of the step's trace, which comes later."""
        seed = self._source.seed(basis)
        self._drawn.append(seed)
        return seed.for_z()

    def take(self, basis: ResidueBasis) -> MaskSeed:
        """The seed of the tensor that comes now, drawn before or now.

        Raises:
            UsageError: if another tensor was to come.
        """
        seed = self._drawn.popleft() if self._drawn else self._source.seed(basis)
        if seed.basis != basis:
            raise UsageError("a tensor comes out of the order of its step's masks")
        return seed


def mask_stream(seed: bytes, basis: ResidueBasis) -> Keystream:
    """What a mask's words are made of."""
    context = basis.modulus.to_bytes(8, "big")
    return Keystream(derive(SecretKey(seed), Label.MASK_STREAM, context))


def rounding_noise(seed: SecretKey, step: int, call: int, tensor: str) -> Noise:
    """Noise of one tensor's rounding, the same whenever it is asked for.

    It hides nothing, so two numbers stand for it that a kernel mixes with each place.
    """
    context = step.to_bytes(8, "big") + call.to_bytes(8, "big") + tensor.encode()
    found = derive_bytes(seed, Label.ROUNDING_NOISE, context, length=8)
    return int.from_bytes(found[:4], "big"), int.from_bytes(found[4:], "big")
