"""Compiled kernels equal the portable ones bit for bit, and both equal integers."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sealift.crypto.keys import SecretKey
from sealift.errors import MalformedError
from sealift.numeric.kernels import PART, SHARE_OF_CORE, SMALL_DEPTH, Kernels
from sealift.numeric.keystream import MaskSeed, MaskSource, rounding_noise
from sealift.numeric.residues import BASES, ResidueBasis
from sealift.numeric.windows import KernelWindow, patches

EXTREMES = {
    np.int16: [-(2**15), -1, 0, 1, 2**15 - 1],
    np.int32: [-(2**31), -(2**16) - 1, -1, 0, 1, 2**16, 2**31 - 1],
    np.uint32: [0, 1, 2**16 - 1, 2**16, 2**31, 2**32 - 1],
}
SPECIAL = [0.0, -0.0, 1e-40, -1e-45, 2**-18, -(2**-17), 0.5, -0.5, 126.99999, 3e38]
sizes = st.integers(1, 3000)
seeds = st.integers(0, 2**32 - 1)
bases = st.sampled_from(BASES)


def numbers(kind: Any, seed: int, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Uniform ones, and every extreme somewhere."""
    rng, limits = np.random.default_rng(seed), np.iinfo(kind)
    found = rng.integers(limits.min, limits.max, shape, endpoint=True).astype(kind)
    places = rng.integers(0, found.size, len(EXTREMES[kind]))
    found.reshape(-1)[places] = EXTREMES[kind]
    return found


def floats(seed: int, size: int) -> npt.NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    found = (rng.standard_normal(size) * 2.0 ** rng.integers(-30, 8, size)).astype("f4")
    found[rng.integers(0, size, len(SPECIAL))] = SPECIAL
    return found


@settings(deadline=None, max_examples=40)
@given(sides=st.tuples(*[st.integers(1, 40)] * 3), seed=seeds, basis=bases)
def test_small_products(
    compiled: Kernels,
    portable: Kernels,
    sides: tuple[int, int, int],
    seed: int,
    basis: ResidueBasis,
) -> None:
    rows, depth, columns = sides
    a, b = (
        numbers(np.uint32, seed, (rows, depth)),
        numbers(np.uint32, seed + 1, (depth, columns)),
    )
    a %= basis.modulus
    b %= basis.modulus
    exact = a.astype(object) @ b.astype(object) % basis.modulus
    for kernels in (compiled, portable):
        assert np.array_equal(kernels.small_product(a, b, basis), exact)


@pytest.mark.parametrize("basis", BASES)
def test_a_small_product_of_the_largest_numbers_is_exact(
    compiled: Kernels, portable: Kernels, basis: ResidueBasis
) -> None:
    a = np.full((1, SMALL_DEPTH), basis.modulus - 1, np.uint32)
    for kernels in (compiled, portable):
        found = kernels.small_product(a, a.reshape(-1, 1), basis)
        assert found == SMALL_DEPTH % basis.modulus
        with pytest.raises(ValueError, match="not small"):
            kernels.small_product(np.tile(a, 2), np.tile(a, 2).reshape(-1, 1), basis)


@settings(deadline=None, max_examples=40)
@given(size=sizes, seed=seeds, basis=bases)
def test_residues(
    compiled: Kernels, portable: Kernels, size: int, seed: int, basis: ResidueBasis
) -> None:
    rows = len(basis.moduli)
    values, sums = (
        numbers(np.uint32, seed, (size,)),
        numbers(np.int32, seed, (rows, size)),
    )
    for kernels in (compiled, portable):
        residues, whole = np.empty((rows, size), np.int8), np.empty(size, np.uint32)
        kernels.split(values, basis, residues)
        kernels.recombine(sums, basis, whole)
        for m, ours, theirs in zip(basis.moduli, residues, sums, strict=True):
            assert ((values - ours.astype(np.int64)) % m == 0).all()
            assert (np.abs(ours.astype(np.int64)) <= m // 2).all()
            assert ((whole - theirs.astype(np.int64)) % m == 0).all()
        assert whole.max() < basis.modulus
        kernels.recombine(residues.astype(np.int32), basis, whole)
        assert (whole == values % basis.modulus).all()


@pytest.mark.parametrize("basis", BASES)
def test_every_residue_beside_every_border(
    compiled: Kernels, basis: ResidueBasis
) -> None:
    near = np.arange(-600, 600, dtype=np.int64)
    centres = [0, 2**16, -(2**16), 2**31 - 600, -(2**31) + 600, 255 * 253 * 251]
    line = np.concatenate([near + each for each in centres]).astype(np.int32)
    sums = np.broadcast_to(line, (len(basis.moduli), line.size)).copy()
    whole = np.empty(line.size, np.uint32)
    compiled.recombine(sums, basis, whole)
    assert (whole == line.astype(np.int64) % basis.modulus).all()


@settings(deadline=None, max_examples=40)
@given(size=sizes, seed=seeds, basis=bases, power=st.integers(-300, 200))
def test_unmask(
    compiled: Kernels,
    portable: Kernels,
    size: int,
    seed: int,
    basis: ResidueBasis,
    power: int,
) -> None:
    modulus = basis.modulus
    rng = np.random.default_rng(seed)
    answers = [rng.integers(0, modulus, size).astype(np.uint32) for _ in range(3)]
    for each in answers:
        each[rng.integers(0, size, 4)] = [0, 1, modulus // 2, modulus - 1]
    found = []
    for kernels in (compiled, portable):
        ints, values = np.empty(size, np.int32), np.empty(size, np.float32)
        kernels.unmask(
            (answers[0], answers[1], answers[2]), basis, 2.0**power, ints, values
        )
        found.append((ints, values))
    (ints, values), (ours, theirs) = found
    assert (ints == ours).all()
    assert (values == theirs).all()
    p, m, z = (each.astype(object) for each in answers)
    assert not ((2 * (ints.astype(object) + z) - p - m) % modulus).any()
    assert np.abs(ints.astype(np.int64)).max() <= modulus // 2


@pytest.mark.parametrize("place", range(3))
def test_a_number_that_is_no_share_is_refused(
    compiled: Kernels, portable: Kernels, place: int
) -> None:
    basis = BASES[1]
    answers = [np.zeros(5, np.uint32) for _ in range(3)]
    answers[place][3] = basis.modulus
    for kernels in (compiled, portable):
        with pytest.raises(MalformedError) as caught:
            kernels.unmask(
                (answers[0], answers[1], answers[2]), basis, 1.0,
                np.empty(5, np.int32), np.empty(5, np.float32),
            )  # fmt: skip
        assert caught.value.code == "bad-share"
        assert "PMZ"[place] in caught.value.what


@settings(deadline=None, max_examples=40)
@given(
    size=sizes, seed=seeds, limit=st.sampled_from([1, 127, 2047, 8192]),
    power=st.integers(-143, 110),
)  # fmt: skip
def test_quantize(
    compiled: Kernels, portable: Kernels, size: int, seed: int, limit: int, power: int
) -> None:
    x = floats(seed, size)
    noise = rounding_noise(SecretKey(bytes(32)), 1, seed, "x")
    ours, theirs = np.empty(size, np.int16), np.empty(size, np.int16)
    compiled.quantize(x, 2.0**power, limit, noise, ours)
    portable.quantize(x, 2.0**power, limit, noise, theirs)
    assert (ours == theirs).all()
    assert np.abs(ours.astype(int)).max() <= limit


def test_quantize_is_the_exact_floor(compiled: Kernels) -> None:
    noise = (123456789, 987654321)
    x = floats(5, 4000)
    out = np.empty(x.size, np.int16)
    compiled.quantize(x, 32.0, 127, noise, out)
    for place, (value, found) in enumerate(zip(x.tolist(), out.tolist(), strict=True)):
        mixed = (place + noise[0]) % 2**32
        mixed = (mixed ^ mixed >> 16) * 0x7FEB352D % 2**32
        mixed = (mixed ^ mixed >> 15 ^ noise[1]) * 0x846CA68B % 2**32
        exact = Fraction(value) * 32 + Fraction(2 * (mixed >> 16) + 1, 2**17)
        assert found == max(-127, min(127, floor(exact)))


def test_rounding_has_no_bias_and_belongs_to_its_place(portable: Kernels) -> None:
    x = np.full(1 << 18, 0.3, np.float32)
    found = []
    for tensor in ("x", "w"):
        out = np.empty(x.size, np.int16)
        noise = rounding_noise(SecretKey(bytes(32)), 1, 2, tensor)
        portable.quantize(x, 1.0, 127, noise, out)
        assert abs(out.mean() - 0.3) < 0.005
        for gap in (1, 2, 64):
            assert abs(np.corrcoef(out[gap:], out[:-gap])[0, 1]) < 0.01
        found.append(out)
    assert abs(np.corrcoef(*found)[0, 1]) < 0.01


def test_peak(compiled: Kernels, portable: Kernels) -> None:
    for values in (
        [1.0, -3.5],
        [0.0],
        [-1e-45],
        [np.inf, 1],
        [-np.inf],
        [np.nan, np.inf],
    ):
        x = np.array(values, np.float32)
        for kernels in (compiled, portable):
            assert kernels.peak(x) == pytest.approx(
                np.abs(x).max(), nan_ok=True, rel=0, abs=0
            )
    not_finite = np.full(9, np.nan, np.float32)
    out = np.empty(9, np.int16)
    for kernels in (compiled, portable):
        kernels.quantize(not_finite, 1.0, 127, (1, 2), out)
        assert (out == -127).all()


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 40), columns=st.integers(1, 2200), seed=seeds,
    kind=st.sampled_from([np.int16, np.int32]),
)  # fmt: skip
def test_sums(
    compiled: Kernels, portable: Kernels, rows: int, columns: int, seed: int, kind: Any
) -> None:
    q = numbers(kind, seed, (rows, columns))
    rho, r = numbers(np.int32, seed, (3, rows)), numbers(np.int32, seed, (3, columns))
    wide = q.astype(np.int64)
    for kernels in (compiled, portable):
        assert (kernels.batch_sums(q, rho) == rho.astype(np.int64) @ wide).all()
        assert (kernels.channel_dots(q, r) == r.astype(np.int64) @ wide.T).all()
        if kind is np.int16:
            assert (kernels.row_squares(q) == (wide * wide).sum(1)).all()
            assert (kernels.column_squares(q) == (wide * wide).sum(0)).all()


@settings(deadline=None, max_examples=40)
@given(
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    sides=st.tuples(st.integers(1, 9), st.integers(1, 9)), seed=seeds,
)  # fmt: skip
def test_windows(
    compiled: Kernels, portable: Kernels, kernel: tuple[int, int],
    stride: tuple[int, int], padding: tuple[int, int], sides: tuple[int, int], seed: int,
) -> None:  # fmt: skip
    padding = (min(padding[0], kernel[0] - 1), min(padding[1], kernel[1] - 1))
    window = KernelWindow(kernel, stride, padding)
    places = window.out(*sides)
    if min(places) < 1:
        return
    rng = np.random.default_rng(seed)
    images = rng.integers(-9, 9, (2, *sides, 3)).astype(np.int16)
    seen = np.full((2 * places[0] * places[1], kernel[0] * kernel[1] * 3), 99, np.int16)
    patches(images, window, seen)
    padded = np.pad(images, ((0, 0), (padding[0],) * 2, (padding[1],) * 2, (0, 0)))
    for place, row in zip(np.ndindex(2, *places), seen, strict=True):
        top, left = place[1] * stride[0], place[2] * stride[1]
        there = padded[place[0], top : top + kernel[0], left : left + kernel[1]]
        assert (row == there.reshape(-1)).all()
    outer = rng.integers(-(2**63), 2**63 - 1, (3, 2, *places))
    inner = rng.integers(-(2**63), 2**63 - 1, (3, 2, *sides))
    sums = compiled.tap_sums(outer, inner, window)
    assert (sums == portable.tap_sums(outer, inner, window)).all()
    for ours, theirs, found in zip(outer, inner, sums, strict=True):
        taps = np.empty((outer[0].size, kernel[0] * kernel[1]), np.int64)
        patches(theirs[..., None], window, taps)
        assert (ours.reshape(-1) @ taps == found.reshape(-1)).all()


@settings(deadline=None, max_examples=20)
@given(
    size=st.sampled_from([1, 2047, 2049, 32768, 32769, 70000]), seed=seeds, basis=bases
)
def test_masks(
    compiled: Kernels, portable: Kernels, size: int, seed: int, basis: ResidueBasis
) -> None:
    q = np.random.default_rng(seed).integers(-2048, 2048, size).astype(np.int16)
    plus, minus, mask, same = (np.empty(size, np.uint32) for _ in range(4))
    material = compiled.mask(q, MaskSource().seed(basis), plus, minus)
    compiled.uniform(material, basis, mask)
    portable.uniform(material, basis, same)
    assert (mask == same).all()
    assert ((plus - mask.astype(np.int64) - q) % basis.modulus == 0).all()
    assert ((minus + mask.astype(np.int64) - q) % basis.modulus == 0).all()
    assert max(plus.max(), minus.max(), mask.max()) < basis.modulus


@pytest.mark.parametrize("cores", [2, 3])
def test_several_threads_make_what_one_makes(compiled: Kernels, cores: int) -> None:
    """Numbers, masks and sums do not depend on how many cores a machine has."""
    one, many = replace(compiled, cores=1), replace(compiled, cores=cores)
    basis, size = BASES[1], cores * SHARE_OF_CORE + 77_777
    x, z = floats(3, size), numbers(np.uint32, 4, (size,)) % np.uint32(basis.modulus)

    def made(kernels: Kernels) -> list[npt.NDArray[Any]]:
        q, ints = np.empty(size, np.int16), np.empty(size, np.int32)
        plus, minus, mask, back = (np.empty(size, np.uint32) for _ in range(4))
        real = back.view(np.float32)
        kernels.quantize(x, 8.0, 2047, ((1 << 32) - 5, 9), q)
        kernels.mask(q, MaskSeed(bytes(32), basis), plus, minus)
        kernels.uniform(bytes(32), basis, mask)
        kernels.unmask((plus, minus, z), basis, 0.5, ints, real)
        table = q[: size // 11 * 11].reshape(-1, 11)
        rho = numbers(np.int32, 5, (3, len(table)))
        r = numbers(np.int32, 6, (3, 11))
        sums = [kernels.batch_sums(table, rho), kernels.channel_dots(table, r)]
        sums += [kernels.row_squares(table), kernels.column_squares(table)]
        cells = x[: size // 99 * 99]
        sums.append(kernels.row_peaks(cells.reshape(-1, 99)))
        peaks = kernels.column_peaks(cells.reshape(-1, 9, 11))
        ahead = [np.empty(size, np.uint32) for _ in range(2)]
        _, parts = kernels.mask_ahead(q, MaskSeed(bytes(32), basis), *ahead)
        assert len(parts) == -(-size // PART)
        for part in parts:
            part.result()
        return [q, plus, minus, mask, ints, real, *sums, peaks, *ahead]

    found = made(many)
    for ours, theirs in zip(found, made(one), strict=True):
        assert np.array_equal(ours, theirs)
    for ahead, whole in zip(found[-2:], found[1:3], strict=True):
        assert np.array_equal(ahead, whole)
    assert many.peak(x) == one.peak(x) == np.abs(x).max()
    z[-1] = basis.modulus
    with pytest.raises(MalformedError):
        made(many)
