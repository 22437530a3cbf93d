"""The compiled kernels' sums: squares, and what Freivalds' checks add up (modulo 2**64).

Sums are 64-bit lanes. Three repetitions of a check read their operand once.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np

i32, i64 = np.int32, np.int64
_inlined = numba.njit(inline="always")

TILE: Final = 1024  # numbers whose sums stay in the first cache


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
