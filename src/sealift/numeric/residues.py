"""The moduli, odd, coprime in pairs, each the size of a signed byte; and what loops have.

Z_Q is a ring, not a field: nothing may assume that what is not zero has an inverse.
Source: spec/shares.md section 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from sealift.numeric.windows import Integers, KernelWindow


@dataclass(frozen=True)
class ResidueBasis:
    """Moduli whose product is the modulus Q.

    Attributes:
        moduli: Each odd and at most 255, so that centred residues fit a signed byte.
        modulus: Q, odd, below 2**32.
    """

    moduli: tuple[int, ...]

    @cached_property
    def modulus(self) -> int:
        """Q."""
        return math.prod(self.moduli)

    @property
    def cofactors(self) -> tuple[int, ...]:
        """Q / m of each modulus m."""
        return tuple(self.modulus // m for m in self.moduli)

    @property
    def inverses(self) -> tuple[int, ...]:
        """Of each cofactor, modulo its m: these exist, as moduli are coprime."""
        pairs = zip(self.cofactors, self.moduli, strict=True)
        return tuple(pow(cofactor, -1, m) for cofactor, m in pairs)


MODULI: Final = (255, 253, 251, 247)
BASES: Final = (ResidueBasis(MODULI[:3]), ResidueBasis(MODULI))  # 2**23.9, 2**31.9


F32 = npt.NDArray[np.float32]
I8 = npt.NDArray[np.int8]
I16 = npt.NDArray[np.int16]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
Words = tuple[U32, U16]  # the lower 32 bits of each, the upper 16
Noise = tuple[int, int]  # added to a place, and to a mixture of its bits modulo 2
Answers = tuple[U32, U32, U32]  # of P, M and Z
Most = tuple[int, int, int]  # the largest number of each

WORD_PARTS: Final = (32, 16)
WORD_BITS: Final = sum(WORD_PARTS)
NOISE_BITS: Final = 17  # of a fraction: noise of 16 bits, and a half
REPETITIONS: Final = 3  # of a Freivalds check


@dataclass(frozen=True, slots=True, kw_only=True)
class Loops:
    """Functions over contiguous arrays of sizes that fit; the last argument is written.

    Attributes:
        name: ``portable`` or ``compiled``.
        uniform: A number below the modulus of each word, and how many are not made, as
            words did not count and spares lack.
        mask: Such numbers, added to others and subtracted from them; how many lack.
        unmask: Gives the largest number of each answer.
    """

    name: str
    peak_bits: Callable[[U32], int]
    row_peaks: Callable[[U32, U32], None]
    column_peaks: Callable[[U32, U32], None]
    quantize: Callable[[F32, float, float, Noise, I16], None]
    row_squares: Callable[[I16, I64], None]
    column_squares: Callable[[I16, I64], None]
    uniform: Callable[[Words, int, U32], int]
    mask: Callable[[Words, int, I16, U32, U32], int]
    unmask: Callable[[Answers, int, float, I32, F32], Most]
    split: Callable[[U32, ResidueBasis, I8], None]
    recombine: Callable[[I32, ResidueBasis, U32], None]
    small_product: Callable[[U32, U32, int, U32], None]
    batch_sums: Callable[[Integers, I32, I64], None]
    channel_dots: Callable[[Integers, I32, I64], None]
    tap_sums: Callable[[I64, I64, KernelWindow, I64], None]
