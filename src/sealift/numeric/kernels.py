"""What plan ``outsource`` computes with arrays, in blocks that stay in a core's cache.

All of it is exact: compiled and portable kernels agree bit for bit, and the GIL is free
while the compiled ones run. Arrays are contiguous; floats float32, shares uint32,
operands int16. Source: spec/shares.md sections 1 to 3.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from sealift.crypto.aead import TAG_BYTES
from sealift.crypto.keystream import Keystream
from sealift.errors import MalformedError, UnavailableError, UsageError
from sealift.numeric import portable
from sealift.numeric.keystream import MaskSeed, mask_stream
from sealift.numeric.residues import (
    F32,
    I8,
    I16,
    I32,
    I64,
    NOISE_BITS,
    REPETITIONS,
    U32,
    WORD_BITS,
    Answers,
    Loops,
    Most,
    Noise,
    ResidueBasis,
    Words,
)
from sealift.numeric.windows import Integers, KernelWindow

BLOCK: Final = 1 << 15  # numbers drawn together
PART: Final = 1 << 18  # numbers of a large tensor that are masked, and sent, at a time
SPARES: Final = 16  # words of a block for those that do not count: one in 2**17
BLOCK_BYTES: Final = (BLOCK + SPARES) * WORD_BITS // 8
SHARE_OF_CORE: Final = 1 << 17  # numbers at least that make a thread worth its waking
MOST_LIMIT: Final = 1 << 13  # of quantized numbers
_Part = TypeVar("_Part")
SMALL_DEPTH: Final = 1 << 12  # so many products of 48 bits are below 2**60


@dataclass(frozen=True, slots=True)
class Kernels:
    """Checks of sizes, blocks and streams around one set of loops.

    Attributes:
        cores: How many threads share the work on a large array.
    """

    loops: Loops
    cores: int = 1

    def peak(self, x: F32) -> float:
        """The largest ``|x|``; infinity or NaN if any is (NaN before infinity)."""
        words = x.view(np.uint32)
        most = self._over_cores(x.size, lambda here: self.loops.peak_bits(words[here]))
        return float(np.uint32(max(most)).view(np.float32))

    def quantize(
        self, x: F32, scale: float, limit: int, noise: Noise, out: I16
    ) -> None:
        """``floor(x * scale + (n + 1/2) / 65536)``, at most ``limit`` either way.

        Args:
            scale: A power of two, 2**-143 to 2**110.
            limit: At most 2**13. What is NaN becomes ``-limit``.
            noise: Of it come the numbers ``n`` of 16 bits (``keystream.py``).
        """
        _same_size(x, out)
        if not 0 < limit <= MOST_LIMIT:
            raise ValueError(f"the limit {limit} is not valid")
        one, (add, xor) = float(1 << NOISE_BITS), noise

        def some(here: slice) -> None:
            there = (add + here.start) % (1 << 32), xor
            self.loops.quantize(x[here], scale * one, limit * one, there, out[here])

        self._over_cores(x.size, some)

    def row_squares(self, q: I16) -> I64:
        """Sum of squares of each row of ``q`` (rows, depth)."""
        out = np.empty(q.shape[0], np.int64)

        def some(here: slice) -> None:
            self.loops.row_squares(q[here], out[here])

        self._in_parts(q.shape[0], q.size, some)
        return out

    def column_squares(self, q: I16) -> I64:
        """Sum of squares of each column."""

        def some(here: slice) -> I64:
            out = np.empty(q.shape[1], np.int64)
            self.loops.column_squares(q[here], out)
            return out

        return _total(self._in_parts(q.shape[0], q.size, some))

    def row_peaks(self, x: F32) -> F32:
        """The largest ``|x|`` of each row of ``x`` (rows, depth); see ``peak``."""
        out, words = np.empty(x.shape[0], np.uint32), x.view(np.uint32)

        def some(here: slice) -> None:
            self.loops.row_peaks(words[here], out[here])

        self._in_parts(x.shape[0], x.size, some)
        return out.view(np.float32)

    def column_peaks(self, x: F32) -> F32:
        """The largest ``|x|`` of each column of each table (tables, rows, columns)."""
        out = np.empty((x.shape[0], x.shape[2]), np.uint32)
        words = x.view(np.uint32)

        def some(here: slice) -> None:
            self.loops.column_peaks(words[here], out[here])

        self._in_parts(x.shape[0], x.size, some)
        return out.view(np.float32)

    def mask(self, q: I16, seed: MaskSeed, plus: U32, minus: U32) -> bytes:
        """``q`` with its mask added and subtracted, and the seed's bytes, which Z gets.

        Raises:
            UsageError: if the seed masked something before.
        """
        _same_size(q, plus, minus)
        material, modulus = seed.spend(), seed.basis.modulus

        def block(words: Words, here: slice) -> int:
            return self.loops.mask(words, modulus, q[here], plus[here], minus[here])

        self._draw(material, seed.basis, q.size, block)
        return material

    def mask_ahead(
        self, q: I16, seed: MaskSeed, plus: U32, minus: U32
    ) -> tuple[bytes, list[Future[None]]]:
        """``mask``, by all threads, of which nobody waits here.

        Returns:
            The seed's bytes; and of each ``PART`` numbers when they are masked.

        Raises:
            UsageError: if the seed masked something before.
        """
        _same_size(q, plus, minus)
        material, basis = seed.spend(), seed.basis

        def part(here: slice) -> None:
            def block(words: Words, some: slice) -> int:
                ours = q[here][some], plus[here][some], minus[here][some]
                return self.loops.mask(words, basis.modulus, *ours)

            blocks = slice(0, here.stop - here.start)
            stream = mask_stream(material, basis)
            _draw_blocks(stream, blocks, block, first=here.start // BLOCK)

        threads = kernel_threads()
        starts = range(0, q.size, PART)
        return material, [
            threads.submit(part, slice(at, min(q.size, at + PART))) for at in starts
        ]

    def uniform(
        self,
        seed: bytes,
        basis: ResidueBasis,
        out: U32,
        *,
        first: int = 0,
        size: int = 0,
    ) -> None:
        """The mask of a seed: independent and exactly uniform below Q.

        Args:
            seed: Of the mask.
            basis: Its modulus.
            out: Takes the mask, or a part of it.
            first: Number of the part's first block. A part is whole blocks, but for the
                mask's last one.
            size: Numbers of the whole mask, if ``out`` is a part.
        """

        def block(words: Words, here: slice) -> int:
            return self.loops.uniform(words, basis.modulus, out[here])

        whole = size or out.size
        if out.size != min(whole - first * BLOCK, -(-out.size // BLOCK) * BLOCK):
            raise UsageError("a part of a mask ends inside a block")
        self._draw(seed, basis, out.size, block, first)

    def unmask(
        self,
        answers: Answers,
        basis: ResidueBasis,
        scale: float,
        ints: I32,
        floats: F32,
    ) -> None:
        """``(p + m) / 2 - z`` modulo Q, centred, and that times ``scale``.

        Raises:
            MalformedError: code ``bad-share``, if a number is not below Q.
        """
        _same_size(*answers, ints, floats)
        p, m, z = answers

        def some(here: slice) -> Most:
            parts = p[here], m[here], z[here]
            return self.loops.unmask(
                parts, basis.modulus, scale, ints[here], floats[here]
            )

        most = self._over_cores(ints.size, some)
        for share, largest in zip("PMZ", zip(*most, strict=True), strict=True):
            if max(largest) >= basis.modulus:
                why = "one of its numbers is not below the modulus"
                raise MalformedError(
                    f"{share} sent no share", why=why, code="bad-share"
                )

    def split(self, values: U32, basis: ResidueBasis, out: I8) -> None:
        """Centred residues of each number: ``out`` is (moduli, numbers)."""
        _require_shape(out.shape, (len(basis.moduli), values.size))
        self.loops.split(values, basis, out)

    def recombine(self, sums: I32, basis: ResidueBasis, out: U32) -> None:
        """The number below Q that is ``sums[i]`` modulo each modulus."""
        _require_shape(sums.shape, (len(basis.moduli), out.size))
        self.loops.recombine(sums, basis, out)

    def small_product(self, a: U32, b: U32, basis: ResidueBasis) -> U32:
        """``a`` (rows, depth) times ``b`` (depth, columns), modulo Q; made in one piece.

        Args:
            a: Contiguous, below Q; so is ``b``. The depth is at most ``SMALL_DEPTH``.
        """
        if a.shape[1] > SMALL_DEPTH:
            raise ValueError(f"a product of depth {a.shape[1]} is not small")
        out = np.empty((a.shape[0], b.shape[1]), np.uint32)
        self.loops.small_product(a, b, basis.modulus, out)
        return out

    def batch_sums(self, q: Integers, rho: I32) -> I64:
        """``rho`` (3, N) times ``q`` (N, rest), modulo 2**64."""
        _require_shape(rho.shape, (REPETITIONS, q.shape[0]))
        found = self._over_rows(
            q, lambda rows, here: self._batch_sums(rows, rho[:, here].copy())
        )
        return _total(found)

    def channel_dots(self, q: Integers, r: I32) -> I64:
        """``r`` (3, C) times the rows of ``q`` (rows, C), modulo 2**64: (3, rows)."""
        _require_shape(r.shape, (REPETITIONS, q.shape[1]))
        found = self._over_rows(q, lambda rows, _: self._channel_dots(rows, r))
        return found[0] if len(found) == 1 else np.concatenate(found, axis=1)

    def _batch_sums(self, q: Integers, rho: I32) -> I64:
        out = np.empty((REPETITIONS, q.shape[1]), np.int64)
        self.loops.batch_sums(q, rho, out)
        return out

    def _channel_dots(self, q: Integers, r: I32) -> I64:
        out = np.empty((REPETITIONS, q.shape[0]), np.int64)
        self.loops.channel_dots(q, r, out)
        return out

    def _over_rows(
        self, q: Integers, work: Callable[[Integers, slice], _Part]
    ) -> list[_Part]:
        """Work on rows, by several threads where there are many numbers."""
        return self._in_parts(q.shape[0], q.size, lambda here: work(q[here], here))

    def _draw(
        self,
        seed: bytes,
        basis: ResidueBasis,
        size: int,
        block: Callable[[Words, slice], int],
        first: int = 0,
    ) -> None:
        """Each thread draws blocks of its own, from the same stream."""

        def some(here: slice) -> None:
            _draw_blocks(mask_stream(seed, basis), here, block, first)

        self._over_cores(size, some)

    def _over_cores(self, size: int, work: Callable[[slice], _Part]) -> list[_Part]:
        """Work on whole blocks, by several threads where there are many numbers."""
        blocks = -(-size // BLOCK)

        def some(here: slice) -> _Part:
            return work(slice(here.start * BLOCK, min(size, here.stop * BLOCK)))

        return self._in_parts(blocks, size, some)

    def _in_parts(
        self, units: int, size: int, work: Callable[[slice], _Part]
    ) -> list[_Part]:
        """Work on units that have ``size`` numbers together; each thread has some of them."""
        threads = max(1, min(self.cores, units, size // SHARE_OF_CORE))
        if threads == 1:
            return [work(slice(0, units))]
        step = -(-units // threads)
        parts = [slice(at, min(units, at + step)) for at in range(0, units, step)]
        return list(kernel_threads().map(work, parts))

    def tap_sums(self, outer: I64, inner: I64, window: KernelWindow) -> I64:
        """Per tap, ``outer`` (3, N, places) times what the tap sees of ``inner``.

        Args:
            inner: (3, N, H, W).

        Returns:
            (3, kernel height, kernel width), modulo 2**64.
        """
        _require_shape(outer.shape, inner.shape[:2] + window.out(*inner.shape[2:]))
        out = np.empty((outer.shape[0], *window.kernel), np.int64)
        self.loops.tap_sums(outer, inner, window, out)
        return out


def portable_kernels() -> Kernels:
    """In NumPy: for tests, and where numba is not installed."""
    return Kernels(portable.loops())


@cache
def compiled_kernels(folder: Path | None = None) -> Kernels:
    """Compiled when a process first asks for them, which takes seconds.

    Args:
        folder: Keeps what was compiled. What lies there is run, so it is for processes
            that hold no secret: the servers of shares, never for a trusted one.

    Raises:
        UnavailableError: ``extra-missing`` without numba.
    """
    try:
        from sealift.numeric import compiled
    except ImportError as error:
        raise UnavailableError(
            "kernels cannot be compiled here",
            why=error,
            fix="In Sealift's folder, run: pip install '.[outsource]'",
            code="extra-missing",
        ) from None
    return Kernels(compiled.loops(folder), _usable_cores())


def best_kernels(folder: Path | None = None) -> Kernels:
    """Compiled ones where numba is installed."""
    try:
        return compiled_kernels(folder)
    except UnavailableError:
        return portable_kernels()


def _draw_blocks(
    stream: Keystream, part: slice, block: Callable[[Words, slice], int], first: int
) -> None:
    """Block after block of words, each drawn until none of its numbers lacks."""
    scratch = np.empty(BLOCK_BYTES + TAG_BYTES, np.uint8)
    starts = range(part.start, part.stop, BLOCK)
    for number, start in enumerate(starts, first + part.start // BLOCK):
        here = slice(start, min(part.stop, start + BLOCK))
        count = here.stop - start + SPARES
        filled = scratch[: count * WORD_BITS // 8 + TAG_BYTES]
        split = 4 * count
        words = filled[:split].view(np.uint32), filled[split:-TAG_BYTES].view(np.uint16)
        for attempt in itertools.count():
            stream.fill(number, filled.data, attempt)
            if not block(words, here):
                break


def kernel_threads() -> ThreadPoolExecutor:
    """Threads of this process that compute; one of them must not wait for another.

    A forked child starts its own.
    """
    return _threads(os.getpid())


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_usable_cores(), f"kernels-{process}")


def _total(parts: list[I64]) -> I64:
    """Of parts that several threads added up."""
    return parts[0] if len(parts) == 1 else np.sum(parts, axis=0)


def _usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def _same_size(*arrays: npt.NDArray[Any]) -> None:
    if len({each.size for each in arrays}) != 1:
        raise ValueError(f"arrays of {[each.size for each in arrays]} numbers")


def _require_shape(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise ValueError(f"an array of {shape}, not {expected}")
