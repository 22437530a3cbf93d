"""The kernels' loops, compiled by numba for this machine's vector units.

Compiled when asked for, under signatures that are all known, so nothing is compiled later.
No fast-math: every loop equals ``portable.py`` bit for bit. The GIL is free meanwhile.

Loops are written so that LLVM makes vectors of them: 32-bit lanes that wrap, no branch,
no division. A residue of ``v`` times a factor comes from its fraction:
``v * factor / m`` modulo 1 is kept as 32 bits below the point, from the two halves of
``v``, with an error (2**16 of 2**32) far below the distance 1 / m of two residues.

The compiled kernels' sums: squares, and what Freivalds' checks add up (modulo 2**64).

Sums are 64-bit lanes. Three repetitions of a check read their operand once.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

import numba
import numpy as np

from sealift.numeric.residues import NOISE_BITS, U32, WORD_BITS, Loops, ResidueBasis
from sealift.numeric.windows import KernelWindow

f64 = np.float64
i32, i64 = np.int32, np.int64
u32, u64 = np.uint32, np.uint64
_inlined = numba.njit(inline="always")

PIECE: Final = 2048  # numbers between two looks at what was rejected
TILE: Final = 1024  # numbers that stay in the first cache
_UP: Final = 2 << 16  # makes a fraction's error positive, then rounds up
_MOST_UP: Final = 4 * 3  # of four fractions together, in 1 / 2**16


i32, i64 = np.int32, np.int64


def _row_squares(q: Any, out: Any) -> None:
    for row in range(q.shape[0]):
        total, numbers = i64(0), q[row]
        for i in range(numbers.size):
            total += i64(numbers[i]) * i64(numbers[i])
        out[row] = total


def _column_squares(q: Any, out: Any) -> None:
    out[:] = 0
    for row in range(q.shape[0]):
        numbers = q[row]
        for j in range(out.size):
            out[j] += i64(i32(numbers[j]) * i32(numbers[j]))


@numba.njit
def _add_row(row: Any, rho: Any, out: Any) -> None:
    r, s, t = i64(rho[0, 0]), i64(rho[1, 0]), i64(rho[2, 0])
    a, b, c = out
    for i in range(row.size):
        one = i64(row[i])
        a[i] += one * r
        b[i] += one * s
        c[i] += one * t


@numba.njit
def _add_rows(rows: Any, rho: Any, out: Any) -> None:
    """Four at once, so that sums are read and written once for them."""
    w, x, y, z = rows
    r, s, t = rho
    a, b, c = out
    for i in range(w.size):
        e, f, g, h = i64(w[i]), i64(x[i]), i64(y[i]), i64(z[i])
        a[i] += e * r[0] + f * r[1] + g * r[2] + h * r[3]
        b[i] += e * s[0] + f * s[1] + g * s[2] + h * s[3]
        c[i] += e * t[0] + f * t[1] + g * t[2] + h * t[3]


def _batch_sums(q: Any, rho: Any, out: Any) -> None:
    out[:] = 0
    whole = q.shape[0] - q.shape[0] % 4
    for start in range(0, q.shape[1], TILE):
        ours = slice(start, min(q.shape[1], start + TILE))
        sums = (out[0, ours], out[1, ours], out[2, ours])
        for n in range(0, whole, 4):
            rows = (q[n, ours], q[n + 1, ours], q[n + 2, ours], q[n + 3, ours])
            _add_rows(rows, _factors(rho, n), sums)
        for n in range(whole, q.shape[0]):
            _add_row(q[n, ours], rho[:, n : n + 1], sums)


@_inlined
def _factors(rho: Any, n: Any) -> Any:
    return (_four(rho[0], n), _four(rho[1], n), _four(rho[2], n))


@_inlined
def _four(rho: Any, n: Any) -> Any:
    return (i64(rho[n]), i64(rho[n + 1]), i64(rho[n + 2]), i64(rho[n + 3]))


def _channel_dots(q: Any, r: Any, out: Any) -> None:
    for row in range(q.shape[0]):
        numbers = q[row]
        a, b, c = i64(0), i64(0), i64(0)
        for i in range(numbers.size):
            one = i64(numbers[i])
            a += one * i64(r[0, i])
            b += one * i64(r[1, i])
            c += one * i64(r[2, i])
        out[0, row], out[1, row], out[2, row] = a, b, c


@numba.njit
def _dot(outer: Any, inner: Any) -> Any:
    total = i64(0)
    for i in range(outer.size):
        total += outer[i] * inner[i]
    return total


@numba.njit
def _spaced_dot(outer: Any, inner: Any, stride: Any) -> Any:
    total = i64(0)
    for i in range(outer.size):
        total += outer[i] * inner[i * stride]
    return total


@numba.njit
def _tap_sum(outer: Any, inner: Any, down: Any, across: Any) -> Any:
    """Of one image and one tap."""
    first, last, start, stride = across
    total = i64(0)
    for place in range(down[0], down[1]):
        ours = outer[place, first:last]
        seen = inner[down[2] + (place - down[0]) * down[3], start:]
        if stride == 1:
            total += _dot(ours, seen)
        else:
            total += _spaced_dot(ours, seen, stride)
    return total


def _tap_sums(outer: Any, inner: Any, down: Any, across: Any, out: Any) -> None:
    """``down`` and ``across``: of each tap ``KernelWindow.reach``, and the stride."""
    for each in range(outer.shape[0]):
        out[each] = 0
        for image in range(outer.shape[1]):
            ours, seen = outer[each, image], inner[each, image]
            for row in range(down.shape[0]):
                for column in range(across.shape[0]):
                    found = _tap_sum(ours, seen, down[row], across[column])
                    out[each, row, column] += found


SUMS: Final[dict[Any, tuple[str, ...]]] = {
    _row_squares: ("void(int16[:,::1], int64[::1])",),
    _column_squares: ("void(int16[:,::1], int64[::1])",),
    _batch_sums: (
        "void(int16[:,::1], int32[:,::1], int64[:,::1])",
        "void(int32[:,::1], int32[:,::1], int64[:,::1])",
    ),
    _channel_dots: (
        "void(int16[:,::1], int32[:,::1], int64[:,::1])",
        "void(int32[:,::1], int32[:,::1], int64[:,::1])",
    ),
    _tap_sums: (
        "void(int64[:,:,:,::1], int64[:,:,:,::1], int64[:,::1], int64[:,::1],"
        " int64[:,:,::1])",
    ),
}


def _peak_bits(words: Any) -> Any:
    most = u32(0)
    for i in range(words.size):  # a loop over elements would not be vectors
        most = max(most, u32(words[i] & u32(0x7FFFFFFF)))
    return most


def _row_peaks(words: Any, out: Any) -> None:
    for row in range(words.shape[0]):
        most, some = u32(0), words[row]
        for i in range(some.size):
            most = max(most, u32(some[i] & u32(0x7FFFFFFF)))
        out[row] = most


def _column_peaks(words: Any, out: Any) -> None:
    """Of each table (rows, columns)."""
    out[:] = 0
    for table in range(words.shape[0]):
        most = out[table]
        for row in range(words.shape[1]):
            some = words[table, row]
            for i in range(most.size):
                most[i] = max(most[i], u32(some[i] & u32(0x7FFFFFFF)))


def _quantize(x: Any, factor: Any, bound: Any, noise: Any, out: Any) -> None:
    add, xor = noise
    for i in range(x.size):
        mixed = u32(u32(i) + add)
        mixed = u32((mixed ^ (mixed >> u32(16))) * u32(0x7FEB352D))
        mixed = u32((mixed ^ (mixed >> u32(15)) ^ xor) * u32(0x846CA68B))
        scaled = np.floor(x[i] * factor)
        scaled = scaled if scaled > -bound else -bound  # and what is NaN
        scaled = scaled if scaled < bound else bound
        odd = i32((mixed >> u32(15)) | u32(1))  # twice the noise, and 1
        out[i] = i32(i32(scaled) + odd) >> NOISE_BITS


@_inlined
def _product(low: Any, high: Any, modulus: Any) -> Any:
    """A word times the modulus, without its lowest 32 bits."""
    part = u64(low) * u64(modulus)
    return u64(high) * u64(modulus) + (part >> u64(32))


@_inlined
def _counts(low: Any, high: Any, modulus: Any, unfair: Any) -> Any:
    """Whether a word's remainder is high enough."""
    rest = (_product(low, high, modulus) & u64(0xFFFF)) << u64(32)
    return rest | u64(u32(u32(low) * u32(modulus))) >= unfair


@numba.njit
def _numbers(low: Any, high: Any, modulus: Any, out: Any) -> Any:
    """Each word's number; the lowest 16 bits of remainders, from the top."""
    lowest = u32(0xFFFF)
    for i in range(out.size):
        product = _product(low[i], high[i], modulus)
        out[i] = u32(product >> u64(16))
        lowest = min(lowest, u32(product) & u32(0xFFFF))
    return lowest


@numba.njit
def _draw(words: Any, start: Any, spare: Any, modulus: Any, out: Any) -> Any:
    """Numbers of words from ``start``; the next spare, past the end if some lacked."""
    low, high = words
    stop, unfair = start + out.size, u64(1 << WORD_BITS) % u64(modulus)
    if _numbers(low[start:stop], high[start:stop], modulus, out):
        return spare
    for i in range(out.size):
        if _counts(low[start + i], high[start + i], modulus, unfair):
            continue
        while spare < low.size and not _counts(
            low[spare], high[spare], modulus, unfair
        ):
            spare += 1
        if spare < low.size:
            out[i] = u32(_product(low[spare], high[spare], modulus) >> u64(16))
        spare += 1
    return spare


def _uniform(words: Any, modulus: Any, out: Any) -> Any:
    spare = out.size
    for start in range(0, out.size, PIECE):
        spare = _draw(words, start, spare, modulus, out[start : start + PIECE])
    return max(0, spare - words[0].size)


@numba.njit
def _both_signs(q: Any, modulus: Any, plus: Any, minus: Any) -> None:
    """``plus`` holds the masks before."""
    for i in range(q.size):
        mask = plus[i]
        number = u32(i32(q[i]))
        number = min(number, u32(number + modulus))  # what is negative wrapped
        rest = u32(modulus - mask)
        minus[i] = u32(number - mask) + (modulus if number < mask else u32(0))
        plus[i] = u32(number - rest) + (modulus if number < rest else u32(0))


def _mask(words: Any, modulus: Any, q: Any, plus: Any, minus: Any) -> Any:
    spare = q.size
    for start in range(0, q.size, PIECE):
        some = plus[start : start + PIECE]
        spare = _draw(words, start, spare, modulus, some)
        ours = q[start : start + PIECE]
        _both_signs(ours, modulus, some, minus[start : start + PIECE])
    return max(0, spare - words[0].size)


def _unmask(answers: Any, modulus: Any, scale: Any, ints: Any, floats: Any) -> Any:
    p, m, z = answers
    most_p = most_m = most_z = u32(0)
    half, after = u32(modulus >> u32(1)), u32((modulus >> u32(1)) + u32(1))
    for i in range(ints.size):
        most_p, most_m = max(most_p, p[i]), max(most_m, m[i])
        most_z = max(most_z, z[i])
        rest = u32(modulus - m[i])
        total = u32(u32(p[i] - rest) + (modulus if p[i] < rest else u32(0)))
        total = u32((total >> u32(1)) + (after if total & u32(1) else u32(0)))
        product = u32(u32(total - z[i]) + (modulus if total < z[i] else u32(0)))
        ints[i] = i32(u32(product - (modulus if product > half else u32(0))))
        floats[i] = f64(ints[i]) * scale
    return most_p, most_m, most_z


@_inlined
def _fraction(value: Any, row: Any) -> Any:
    """The upper 16 bits of a fraction, 0 to 3 too large."""
    upper, lower = u32(value >> 16), u32(value & 0xFFFF)
    return u32(u32(upper * row[0]) + u32(lower * row[1]) + u32(_UP)) >> u32(16)


@_inlined
def _digit(fraction: Any, row: Any) -> Any:
    return u32(fraction * row[2]) >> u32(16)


def _split(values: Any, table: Any, out: Any) -> None:
    for start in range(0, values.size, TILE):
        some = values[start : start + TILE]
        for each in range(out.shape[0]):
            row = (table[each, 0], table[each, 1], table[each, 2])
            residues, half = out[each, start : start + TILE], row[2] >> u32(1)
            for i in range(some.size):
                digit = _digit(_fraction(some[i], row), row)
                residues[i] = i32(digit) - (i32(row[2]) if digit > half else i32(0))


def _recombine(sums: Any, table: Any, modulus: Any, out: Any) -> None:
    a, b, c, d = sums[0], sums[1], sums[2], sums[sums.shape[0] - 1]
    row0 = (table[0, 0], table[0, 1], table[0, 2], table[0, 3])
    row1 = (table[1, 0], table[1, 1], table[1, 2], table[1, 3])
    row2 = (table[2, 0], table[2, 1], table[2, 2], table[2, 3])
    row3 = (table[3, 0], table[3, 1], table[3, 2], table[3, 3])
    for i in range(out.size):
        e, f = u32(_fraction(a[i], row0)), u32(_fraction(b[i], row1))
        g, h = u32(_fraction(c[i], row2)), u32(_fraction(d[i], row3))
        total = u32(_digit(e, row0) * row0[3]) + u32(_digit(f, row1) * row1[3])
        total += u32(_digit(g, row2) * row2[3]) + u32(_digit(h, row3) * row3[3])
        times = i32(i32(u32(e + f + g + h)) - i32(_MOST_UP)) >> i32(16)
        rest = u32(u32(total) - u32(u32(times) * modulus))  # below Q (1 + 2**-12)
        out[i] = min(rest, u32(rest - modulus))


@_inlined
def _below(value: Any, modulus: Any, inverse: Any) -> Any:
    """``value`` modulo Q, without a division: the quotient is one too large at most."""
    rest = i64(value) - i64(f64(value) * inverse) * i64(modulus)
    rest = rest + i64(modulus) if rest < 0 else rest
    return rest - i64(modulus) if rest >= i64(modulus) else rest


def _small_product(a: Any, b: Any, modulus: Any, out: Any) -> None:
    inverse, width = 1.0 / f64(modulus), b.shape[1]
    low, high = np.empty(width, np.int64), np.empty(width, np.int64)
    for row in range(a.shape[0]):
        low[:] = 0
        high[:] = 0
        for each in range(a.shape[1]):
            lower, upper = i64(a[row, each] & u32(0xFFFF)), i64(a[row, each] >> 16)
            others = b[each]
            for i in range(width):
                low[i] += lower * i64(others[i])
                high[i] += upper * i64(others[i])
        for i in range(width):
            rest = _below(high[i], modulus, inverse) << 16
            out[row, i] = u32(_below(rest + low[i], modulus, inverse))


_SHARES: Final[dict[Any, tuple[str, ...]]] = {
    _peak_bits: ("uint32(uint32[::1])",),
    _row_peaks: ("void(uint32[:,::1], uint32[::1])",),
    _column_peaks: ("void(uint32[:,:,::1], uint32[:,::1])",),
    _quantize: (
        "void(float32[::1], float32, float32, UniTuple(uint32, 2), int16[::1])",
    ),
    _uniform: ("int64(Tuple((uint32[::1], uint16[::1])), uint32, uint32[::1])",),
    _mask: (
        "int64(Tuple((uint32[::1], uint16[::1])), uint32, int16[::1], uint32[::1],"
        " uint32[::1])",
    ),
    _unmask: (
        "UniTuple(uint32, 3)(UniTuple(uint32[::1], 3), uint32, float64, int32[::1],"
        " float32[::1])",
    ),
    _split: ("void(uint32[::1], uint32[:,::1], int8[:,::1])",),
    _small_product: ("void(uint32[:,::1], uint32[:,::1], uint32, uint32[:,::1])",),
    _recombine: ("void(int32[:,::1], uint32[:,::1], uint32, uint32[::1])",),
}


@cache
def _table(basis: ResidueBasis, recombining: bool) -> U32:
    """Of each modulus: both fractions of a factor, the modulus, its cofactor."""
    table = np.zeros((4, 4), np.uint32)  # a row of zeros adds nothing
    inverses = basis.inverses if recombining else (1,) * len(basis.moduli)
    rows = zip(table, basis.moduli, inverses, basis.cofactors, strict=False)
    for row, m, inverse, cofactor in rows:
        row[:] = (_part(inverse << 16, m), _part(inverse, m), m, cofactor)
    return table


def _part(factor: int, m: int) -> int:
    """``factor / m`` modulo 1, in 1 / 2**32, rounded."""
    return ((factor % m << 33) // m + 1) // 2


def _reaches(window: KernelWindow, axis: int, side: int) -> Any:
    taps = range(window.kernel[axis])
    stride = window.stride[axis]
    return np.array([(*window.reach(axis, tap, side), stride) for tap in taps])


def loops(folder: Path | None) -> Loops:
    """All of them, compiled.

    Args:
        folder: Where to keep what was compiled and to look for it; None for nowhere.
    """
    config: Any = numba.config
    config.CACHE_DIR = str(folder or "")
    ready: dict[str, Any] = {
        function.__name__[1:]: numba.njit(
            list(signatures), nogil=True, cache=folder is not None
        )(function)
        for function, signatures in (_SHARES | SUMS).items()
    }
    split, recombine, tap_sums = (
        ready[each] for each in ("split", "recombine", "tap_sums")
    )

    def split_by(values: Any, basis: ResidueBasis, out: Any) -> None:
        split(values, _table(basis, False), out)

    def recombine_by(sums: Any, basis: ResidueBasis, out: Any) -> None:
        recombine(sums, _table(basis, True), basis.modulus, out)

    def tap_sums_of(outer: Any, inner: Any, window: KernelWindow, out: Any) -> None:
        down, across = (
            _reaches(window, each, inner.shape[2 + each]) for each in (0, 1)
        )
        tap_sums(outer, inner, down, across, out)

    ready |= {"split": split_by, "recombine": recombine_by, "tap_sums": tap_sums_of}
    return Loops(name="compiled", **ready)
