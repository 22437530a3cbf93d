"""What a set of loops over arrays has: NumPy's and the compiled ones alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from sealift.numeric.residues import ResidueBasis
from sealift.numeric.windows import Integers, KernelWindow

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
