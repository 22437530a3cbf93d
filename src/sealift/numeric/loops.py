"""What a set of loops over arrays has: NumPy's and the compiled ones alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from sealift.numeric.residues import Basis
from sealift.numeric.windows import Integers, Window

F32 = npt.NDArray[np.float32]
I8 = npt.NDArray[np.int8]
I16 = npt.NDArray[np.int16]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
Answers = tuple[U32, U32, U32]  # of P, M and Z
Most = tuple[int, int, int]  # the largest number of each

NOISE_BITS: Final = 17  # of a fraction: noise of 16 bits, and a half


@dataclass(frozen=True, slots=True, kw_only=True)
class Loops:
    """Functions over contiguous arrays of sizes that fit; the last argument is written.

    Attributes:
        name: ``portable`` or ``compiled``.
        uniform: Words to numbers below the modulus; the lowest remainder, which decides
            whether all of them count.
        mask: The same words, added to numbers and subtracted from them.
    """

    name: str
    peak_bits: Callable[[F32], int]
    quantize: Callable[[F32, float, int, U16, I16], None]
    row_squares: Callable[[I16, I64], None]
    column_squares: Callable[[I16, I64], None]
    uniform: Callable[[U64, int, U32], int]
    mask: Callable[[U64, int, I16, U32, U32], int]
    unmask: Callable[[Answers, int, float, I32, F32], Most]
    split: Callable[[U32, Basis, I8], None]
    recombine: Callable[[I32, Basis, U32], None]
    batch_sums: Callable[[Integers, I32, I64], None]
    channel_dots: Callable[[Integers, I32, I64], None]
    tap_sums: Callable[[I64, I64, Window, I64], None]
