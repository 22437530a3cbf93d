"""The kernels' loops in NumPy: what the compiled ones equal, bit for bit.

Arrays are contiguous, and of the sizes that ``kernels.py`` looked at. Sums of products are
modulo 2**64 (Freivalds, spec/shares.md section 5), as NumPy's and a machine's wrap.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from sealift.numeric.residues import (
    F32,
    I8,
    I16,
    I32,
    I64,
    NOISE_BITS,
    U32,
    U64,
    WORD_BITS,
    WORD_PARTS,
    Answers,
    Loops,
    Most,
    Noise,
    ResidueBasis,
    Words,
)
from sealift.numeric.windows import Integers, KernelWindow

PIECE: Final = 1 << 14  # rows times numbers widened at once


def _peak_bits(words: U32) -> int:
    return int((words & 0x7FFFFFFF).max(initial=0))


def _row_peaks(words: U32, out: U32) -> None:
    out[:] = (words & 0x7FFFFFFF).max(axis=1, initial=0)


def _column_peaks(words: U32, out: U32) -> None:
    out[:] = (words & 0x7FFFFFFF).max(axis=1, initial=0)


def _quantize(x: F32, factor: float, bound: float, noise: Noise, out: I16) -> None:
    for start in range(0, x.size, PIECE):
        with np.errstate(all="ignore"):
            scaled = np.floor(x[start : start + PIECE] * np.float32(factor))
        within = np.fmin(np.fmax(scaled, np.float32(-bound)), np.float32(bound)).astype(
            np.int32
        )
        odd = _noise(noise, start, within.size) >> np.uint32(15) | np.uint32(1)
        out[start : start + PIECE] = (within + odd.astype(np.int32)) >> NOISE_BITS


def _noise(noise: Noise, start: int, size: int) -> U32:
    add, xor = noise
    mixed = np.arange(start, start + size, dtype=np.uint32) + np.uint32(add)
    mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0x7FEB352D)
    mixed = mixed ^ (mixed >> np.uint32(15)) ^ np.uint32(xor)
    return mixed * np.uint32(0x846CA68B)


def _row_squares(q: I16, out: I64) -> None:
    for row, one in enumerate(q):
        wide = one.astype(np.int64)
        out[row] = wide @ wide


def _column_squares(q: I16, out: I64) -> None:
    out[:] = 0
    for one in q:
        wide = one.astype(np.int64)
        out += wide * wide


def _uniform(words: Words, modulus: int, out: U32) -> int:
    numbers, rests = _reduced(words, modulus)
    counts = rests >= (1 << WORD_BITS) % modulus
    out[:] = numbers[: out.size]
    wanting = np.flatnonzero(~counts[: out.size])
    spares = numbers[out.size :][counts[out.size :]][: wanting.size]
    out[wanting[: spares.size]] = spares
    return int(wanting.size - spares.size)


def _reduced(
    words: Words, modulus: int, bits: tuple[int, int] = WORD_PARTS
) -> tuple[U64, U64]:
    """Words times the modulus: what is above a word's bits, and what is below."""
    low, high = (each.astype(np.uint64) * np.uint64(modulus) for each in words)
    below, above = (np.uint64(each) for each in bits)
    high += low >> below
    low &= (np.uint64(1) << below) - np.uint64(1)
    rests = (high & ((np.uint64(1) << above) - np.uint64(1))) << below | low
    return high >> above, rests


def _mask(words: Words, modulus: int, q: I16, plus: U32, minus: U32) -> int:
    lacking = _uniform(words, modulus, plus)
    masks, numbers = plus.astype(np.int64), q.astype(np.int64)
    plus[:] = (numbers + masks) % modulus
    minus[:] = (numbers - masks) % modulus
    return lacking


def _unmask(
    answers: Answers, modulus: int, scale: float, ints: I32, floats: F32
) -> Most:
    p, m, z = (each.astype(np.int64) for each in answers)
    total = (p + m) % modulus
    half = (total + (total & 1) * modulus) >> 1
    product = (half - z) % modulus
    ints[:] = product - modulus * (product > modulus // 2)
    with np.errstate(all="ignore"):
        floats[:] = ints.astype(np.float64) * scale
    return int(p.max(initial=0)), int(m.max(initial=0)), int(z.max(initial=0))


def _split(values: U32, basis: ResidueBasis, out: I8) -> None:
    for m, residues in zip(basis.moduli, out, strict=True):
        rest = (values % np.uint32(m)).astype(np.int16)
        residues[:] = rest - m * (rest > m // 2)


def _recombine(sums: I32, basis: ResidueBasis, out: U32) -> None:
    total = np.zeros(out.size, np.uint64)
    parts = zip(sums, basis.moduli, basis.inverses, basis.cofactors, strict=True)
    for each, m, inverse, cofactor in parts:
        digit = each.astype(np.int64) % m * inverse % m
        total += digit.astype(np.uint64) * np.uint64(cofactor)
    out[:] = total % np.uint64(basis.modulus)


def _small_product(a: U32, b: U32, modulus: int, out: U32) -> None:
    wide, q = b.astype(np.uint64), np.uint64(modulus)
    low = (a & np.uint32(0xFFFF)).astype(np.uint64) @ wide
    high = (a >> np.uint32(16)).astype(np.uint64) @ wide
    out[:] = (((high % q) << np.uint64(16)) + low % q) % q


def _batch_sums(q: Integers, rho: I32, out: I64) -> None:
    out[:] = 0
    for row, one in enumerate(q):
        wide = one.astype(np.int64)
        for total, factor in zip(out, rho[:, row], strict=True):
            total += wide * np.int64(factor)


def _channel_dots(q: Integers, r: I32, out: I64) -> None:
    step = max(1, PIECE // q.shape[1])
    wide = r.astype(np.int64).T
    for start in range(0, len(q), step):
        piece = q[start : start + step].astype(np.int64)
        out[:, start : start + step] = (piece @ wide).T


def _tap_sums(outer: I64, inner: I64, window: KernelWindow, out: I64) -> None:
    height, width = inner.shape[2:]
    for row, column, inside, pixels in window.taps(height, width):
        products = outer[:, :, *inside] * inner[:, :, *pixels]
        out[:, row, column] = products.sum(axis=(1, 2, 3))


def loops() -> Loops:
    """All of them."""
    return Loops(
        name="portable",
        peak_bits=_peak_bits,
        row_peaks=_row_peaks,
        column_peaks=_column_peaks,
        quantize=_quantize,
        row_squares=_row_squares,
        column_squares=_column_squares,
        uniform=_uniform,
        mask=_mask,
        unmask=_unmask,
        split=_split,
        recombine=_recombine,
        small_product=_small_product,
        batch_sums=_batch_sums,
        channel_dots=_channel_dots,
        tap_sums=_tap_sums,
    )
