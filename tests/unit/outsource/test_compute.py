"""A server's products: equal to Python's integers modulo Q, on every path."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
import torch

from sealift.errors import MalformedError
from sealift.numeric.kernels import portable_kernels
from sealift.numeric.residues import BASES, U32, ResidueBasis
from sealift.outsource.compute import (
    MAX_DEPTH,
    DeviceResidues,
    ShareProducts,
    choose_multiply,
    multiply_aligned_bytes,
    multiply_exactly,
)
from sealift.outsource.terms import OPERANDS, Direction, Layer

CPU = torch.device("cpu")
WIDE = BASES[-1]
Int = npt.NDArray[np.object_]


@cache
def _tested() -> ShareProducts:
    return ShareProducts("cpu", portable_kernels())


def _host() -> ShareProducts:
    return copy(_tested())


def _as_on_a_device() -> ShareProducts:
    """What runs on CUDA, on the CPU."""
    products = _host()
    products._residues = DeviceResidues(CPU)
    products._multiply = multiply_aligned_bytes
    return products


def test_many_numbers_are_recombined_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer = Layer(name="fc", batch=5, inputs=9, outputs=3)
    monkeypatch.setattr("sealift.outsource.compute._RECOMBINED", 4)
    _check(_as_on_a_device(), layer)


@pytest.mark.parametrize("rows", [1, 17, 40])
def test_images_are_multiplied_before_others_are_there(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """What is not there yet is not looked at."""
    monkeypatch.setattr("sealift.outsource.compute.AT_ONCE", 20)
    layer = Layer(name="fc", batch=rows, inputs=9, outputs=3)
    products, basis = _host(), layer.basis("forward")
    a, b = (_draw(seed, layer.shape(t), basis) for seed, t in enumerate(("x", "w")))
    out = np.empty(layer.result("forward"), np.uint32)
    right, kept = products.keep(a, basis), products.keep(b, basis)
    coming = right * 0

    def until(images: int) -> None:
        coming[:, :images] = right[:, :images]

    made = list(products.make(layer, "forward", coming, kept, out, until=until))
    assert made[-1] == out.size
    assert len(made) == -(-rows // max(2, -(-rows // 16)))
    assert np.array_equal(out, _by_hand(layer, "forward", a, b))


def _fallen_back() -> ShareProducts:
    products = _host()
    products._multiply = multiply_exactly
    return products


PATHS = [_host, _as_on_a_device, _fallen_back]


def _draw(seed: int, shape: tuple[int, ...], basis: ResidueBasis = WIDE) -> U32:
    rng = np.random.default_rng(seed)
    found = rng.integers(0, basis.modulus, shape, dtype=np.uint32)
    found.flat[0] = basis.modulus - 1
    return found


def _taps(layer: Layer, batch: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every place, tap and the pixel there, one at a time."""
    (kh, kw), (sh, sw), (ph, pw) = layer.kernel, layer.stride, layer.padding
    for n, h, w, i, j in np.ndindex(batch, *layer.out, kh, kw):
        row, column = h * sh + i - ph, w * sw + j - pw
        if 0 <= row < layer.height and 0 <= column < layer.width:
            yield (n, h, w), (i, j), (n, row, column)


def _by_hand(layer: Layer, direction: Direction, a: U32, b: U32) -> U32:
    """The definition, in Python's integers."""
    one, other = a.astype(object), b.astype(object)
    out: Int = np.zeros(layer.result(direction), object)
    for place, tap, pixel in _taps(layer, layer.batch):
        if direction == "forward":
            out[place] += other[:, *tap] @ one[pixel]
        elif direction == "input":
            out[pixel] += one[place] @ other[:, *tap]
        else:
            out[:, *tap] += np.outer(one[place], other[pixel])
    return (out % layer.basis(direction).modulus).astype(np.uint32)


def _check(products: ShareProducts, layer: Layer) -> None:
    for direction, tensors in OPERANDS.items():
        a, b = (_draw(seed, layer.shape(t)) for seed, t in enumerate(tensors))
        found = products.product(
            layer, direction, products.keep(a, WIDE), products.keep(b, WIDE)
        )
        assert np.array_equal(found, _by_hand(layer, direction, a, b)), direction


@pytest.mark.parametrize("make", PATHS)
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (3, 2)])
@pytest.mark.parametrize(
    ("kernel", "padding"),
    [((3, 3), (1, 1)), ((1, 1), (0, 0)), ((3, 2), (2, 0)), ((2, 3), (0, 1))],
)
def test_a_convolution_equals_its_definition(make, kernel, padding, stride) -> None:
    layer = Layer(
        name="conv", batch=2, inputs=3, outputs=5, height=7, width=6,
        kernel=kernel, stride=stride, padding=padding,
    )  # fmt: skip
    _check(make(), layer)


@pytest.mark.parametrize("make", PATHS)
@pytest.mark.parametrize("rows", [1, 17, 40])
def test_a_linear_layer_equals_its_definition(make, rows: int) -> None:
    _check(make(), Layer(name="fc", batch=rows, inputs=9, outputs=3))


@pytest.mark.parametrize("make", PATHS)
@pytest.mark.parametrize("scratch_bytes", [1, 100, 1000])
def test_pieces_of_rows_make_the_same_product(make, scratch_bytes: int) -> None:
    products = make()
    products.scratch_bytes = scratch_bytes
    layer = Layer(
        name="conv", batch=2, inputs=2, outputs=3, height=5, width=4,
        kernel=(3, 3), padding=(1, 1),
    )  # fmt: skip
    _check(products, layer)
    _check(products, Layer(name="fc", batch=50, inputs=4, outputs=2))


@pytest.mark.parametrize(
    ("direction", "layer"),
    [
        ("weight", Layer(name="tall", batch=MAX_DEPTH + 300, inputs=2, outputs=2)),
        ("forward", Layer(name="deep", batch=2, inputs=MAX_DEPTH + 300, outputs=2)),
        ("input", Layer(name="wide", batch=2, inputs=2, outputs=MAX_DEPTH + 300)),
    ],
)
@pytest.mark.parametrize("make", PATHS)
def test_sums_of_extremes_beyond_a_word_are_exact(make, direction, layer) -> None:
    """All residues at their largest: one piece more than 32 bits would hold."""
    products, basis = make(), WIDE
    products.scratch_bytes = 1 << 30
    top = _of_residues([m // 2 for m in basis.moduli], basis)
    low = _of_residues([m - m // 2 for m in basis.moduli], basis)
    for first, second in ((top, top), (top, low)):
        a, b = (
            np.full(layer.shape(t), value, np.uint32)
            for t, value in zip(OPERANDS[direction], (first, second), strict=True)
        )
        found = products.product(
            layer, direction, products.keep(a, basis), products.keep(b, basis)
        )
        modulus = layer.basis(direction).modulus
        assert set(found.flat) == {layer.depth(direction) * first * second % modulus}


def _of_residues(residues: list[int], basis: ResidueBasis) -> int:
    parts = zip(residues, basis.cofactors, basis.inverses, strict=True)
    return sum(r * c * i for r, c, i in parts) % basis.modulus


@pytest.mark.parametrize("make", PATHS)
@pytest.mark.parametrize("basis", BASES)
def test_what_is_not_below_the_modulus_is_no_share(make, basis: ResidueBasis) -> None:
    products = make()
    share = _draw(1, (4, 5), basis)
    assert products.keep(share, basis).shape == (len(basis.moduli), 4, 5)
    share[2, 3] = basis.modulus
    with pytest.raises(MalformedError) as refused:
        products.keep(share, basis)
    assert refused.value.code == "bad-share"


def test_both_kinds_of_residues_are_the_same() -> None:
    values = _draw(3, (500,))
    host, device = _host()._residues, DeviceResidues(CPU)
    assert torch.equal(host.split(values, WIDE), device.split(values, WIDE))
    sums = torch.randint(-(2**31), 2**31 - 1, (4, 500), dtype=torch.int32)
    found = np.empty((2, 500), np.uint32)
    host.recombine(sums, WIDE, found[0])
    device.recombine(sums, WIDE, found[1])
    assert np.array_equal(found[0], found[1])
    assert found.max() < WIDE.modulus


def _saturating(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """As processors before VNNI: pairs of products are held in 16 bits."""
    multiply_exactly(a, b, out)
    pairs = 2 * 127 * 127
    out.copy_(torch.where(out.abs() >= pairs, out - out.sign(), out))


def _wrapping(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(a.float() @ b.float())  # 24 bits of a sum


def _absent(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    raise RuntimeError("addmm_impl_cpu_ not implemented for 'Char'")


@pytest.mark.parametrize("broken", [_saturating, _wrapping, _absent])
def test_a_product_that_fails_its_test_is_not_used(broken) -> None:
    assert choose_multiply(broken, CPU) == (multiply_exactly, "float64")


@pytest.mark.parametrize("right", [multiply_aligned_bytes, multiply_exactly])
def test_a_product_that_passes_its_test_is_used(right) -> None:
    assert choose_multiply(right, CPU) == (right, "int8")
