"""What plan ``outsource`` computes with arrays, in blocks that stay in a core's cache.

All of it is exact: compiled and portable kernels agree bit for bit, and the GIL is free
while the compiled ones run. Arrays are contiguous; floats float32, shares uint32,
operands int16. Source: spec/shares.md sections 1 to 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sealift.crypto.aead import TAG_BYTES
from sealift.crypto.keystream import Keystream
from sealift.errors import MalformedError
from sealift.numeric import portable
from sealift.numeric.keystream import MaskSeed, mask_stream
from sealift.numeric.loops import (
    F32,
    I8,
    I16,
    I32,
    I64,
    NOISE_BITS,
    U32,
    U64,
    Answers,
    Loops,
)
from sealift.numeric.residues import Basis
from sealift.numeric.windows import Integers, Window

BLOCK: Final = 1 << 14  # numbers of a block: drawn, and drawn again, together
MOST_LIMIT: Final = 1 << 13  # of quantized numbers


@dataclass(frozen=True, slots=True)
class Kernels:
    """Checks of sizes, blocks and streams around one set of loops."""

    loops: Loops

    def peak(self, x: F32) -> float:
        """The largest ``|x|``; infinity or NaN if any is (NaN before infinity)."""
        return float(np.uint32(self.loops.peak_bits(x)).view(np.float32))

    def quantize(
        self, x: F32, scale: float, limit: int, noise: Keystream, out: I16
    ) -> None:
        """``floor(x * scale + (noise + 1/2) / 65536)``, at most ``limit`` either way.

        Args:
            scale: A power of two, 2**-143 to 2**110.
            limit: At most 2**13. What is NaN becomes ``-limit``.
        """
        _same_size(x, out)
        assert 0 < limit <= MOST_LIMIT
        factor = scale * (1 << NOISE_BITS)
        scratch = _Scratch(noise, np.dtype(np.uint16))
        for number, here in enumerate(_blocks(x.size)):
            words = scratch.words(number, here)
            self.loops.quantize(x[here], factor, limit, words, out[here])

    def row_squares(self, q: I16) -> I64:
        """Sum of squares of each row of ``q`` (rows, depth)."""
        out = np.empty(q.shape[0], np.int64)
        self.loops.row_squares(q, out)
        return out

    def column_squares(self, q: I16) -> I64:
        """Sum of squares of each column."""
        out = np.empty(q.shape[1], np.int64)
        self.loops.column_squares(q, out)
        return out

    def mask(self, q: I16, seed: MaskSeed, plus: U32, minus: U32) -> bytes:
        """``q`` with its mask added and subtracted, and the seed's bytes, which Z gets.

        Raises:
            UsageError: if the seed masked something before.
        """
        _same_size(q, plus, minus)
        modulus = seed.basis.modulus
        material = seed.spend()

        def loop(words: U64, here: slice) -> int:
            return self.loops.mask(words, modulus, q[here], plus[here], minus[here])

        _draw(mask_stream(material, seed.basis), seed.basis, q.size, loop)
        return material

    def uniform(self, seed: bytes, basis: Basis, out: U32) -> None:
        """The mask of a seed: independent and exactly uniform below Q."""

        def loop(words: U64, here: slice) -> int:
            return self.loops.uniform(words, basis.modulus, out[here])

        _draw(mask_stream(seed, basis), basis, out.size, loop)

    def unmask(
        self, answers: Answers, basis: Basis, scale: float, ints: I32, floats: F32
    ) -> None:
        """``(p + m) / 2 - z`` modulo Q, centred, and that times ``scale``.

        Raises:
            MalformedError: code ``bad-share``, if a number is not below Q.
        """
        _same_size(*answers, ints, floats)
        most = self.loops.unmask(answers, basis.modulus, scale, ints, floats)
        for share, largest in zip("PMZ", most, strict=True):
            if largest >= basis.modulus:
                why = "a number of it is not below the modulus"
                raise MalformedError(
                    f"{share} sent no share", why=why, code="bad-share"
                )

    def split(self, values: U32, basis: Basis, out: I8) -> None:
        """Centred residues of each number: ``out`` is (moduli, numbers)."""
        assert out.shape == (len(basis.moduli), values.size)
        self.loops.split(values, basis, out)

    def recombine(self, sums: I32, basis: Basis, out: U32) -> None:
        """The number below Q that is ``sums[i]`` modulo each modulus."""
        assert sums.shape == (len(basis.moduli), out.size)
        self.loops.recombine(sums, basis, out)

    def batch_sums(self, q: Integers, rho: I32) -> I64:
        """``rho`` (R, N) times ``q`` (N, rest), modulo 2**64."""
        assert rho.shape[1] == q.shape[0]
        out = np.empty((rho.shape[0], q.shape[1]), np.int64)
        self.loops.batch_sums(q, rho, out)
        return out

    def channel_dots(self, q: Integers, r: I32) -> I64:
        """``r`` (R, C) times the rows of ``q`` (rows, C), modulo 2**64: (R, rows)."""
        assert r.shape[1] == q.shape[1]
        out = np.empty((r.shape[0], q.shape[0]), np.int64)
        self.loops.channel_dots(q, r, out)
        return out

    def tap_sums(self, outer: I64, inner: I64, window: Window) -> I64:
        """Per tap, ``outer`` (R, N, places) times what the tap sees of ``inner``.

        Args:
            inner: (R, N, H, W).

        Returns:
            (R, kernel height, kernel width), modulo 2**64.
        """
        assert outer.shape[:2] == inner.shape[:2]
        assert outer.shape[2:] == window.out(*inner.shape[2:])
        out = np.empty((outer.shape[0], *window.kernel), np.int64)
        self.loops.tap_sums(outer, inner, window, out)
        return out


def portable_kernels() -> Kernels:
    """In NumPy: for tests, and where numba is not installed."""
    return Kernels(portable.loops())


def best_kernels() -> Kernels:
    """The quickest that this machine has."""
    return portable_kernels()


def _draw(
    stream: Keystream, basis: Basis, size: int, loop: Callable[[U64, slice], int]
) -> None:
    """Each block from as many attempts as it takes until all its words count."""
    unfair = (1 << 64) % basis.modulus
    scratch = _Scratch(stream, np.dtype(np.uint64))
    for number, here in enumerate(_blocks(size)):
        attempt = 0
        while loop(scratch.words(number, here, attempt), here) < unfair:
            attempt += 1


class _Scratch:
    """One block of keystream, overwritten by the next."""

    __slots__ = ("_bytes", "_kind", "_stream")

    def __init__(self, stream: Keystream, kind: np.dtype[Any]) -> None:
        self._stream, self._kind = stream, kind
        self._bytes = np.empty(BLOCK * kind.itemsize + TAG_BYTES, np.uint8)

    def words(self, number: int, here: slice, attempt: int = 0) -> npt.NDArray[Any]:
        """As many as ``here`` is long."""
        length = (here.stop - here.start) * self._kind.itemsize
        self._stream.fill(number, self._bytes[: length + TAG_BYTES].data, attempt)
        return self._bytes[:length].view(self._kind)


def _blocks(size: int) -> Iterator[slice]:
    starts = range(0, size, BLOCK)
    return (slice(start, min(size, start + BLOCK)) for start in starts)


def _same_size(*arrays: npt.NDArray[Any]) -> None:
    assert len({each.size for each in arrays}) == 1
