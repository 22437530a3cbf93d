"""Rows and columns of other sizes are rounded each by itself; what is lost is said."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from sealift.numeric.kernels import portable_kernels
from sealift.numeric.residues import F32
from sealift.outsource.masked import MaskedProducts
from sealift.outsource.module.model import EVERY, RoundingWatch
from sealift.outsource.multiplier import NEAR_BITS, InputScales, Multiplier, Products
from sealift.outsource.plain import PlainProducts
from sealift.outsource.quantize import Operand, OperandId
from sealift.outsource.terms import Backward, Direction, Forward, Layer
from sealift.outsource.trace import Recorder, StepKind
from tests.sim.shareservers import InPlaceServers

KERNELS = portable_kernels()
LAYER = Layer(name="fc", batch=9, inputs=6, outputs=4)
CONV = Layer(
    name="c", batch=5, inputs=3, outputs=4, height=6, width=5, kernel=(3, 3),
    padding=(1, 1),
)  # fmt: skip
HUGE = np.float32(1e6)


def spread(layer: Layer, where: str) -> tuple[F32, F32, F32]:
    """Operands, one row or column of whose input is far larger than the others."""
    rng = np.random.default_rng(4)
    x, w, dy = (
        rng.standard_normal(layer.shape(t)).astype(np.float32) for t in ("x", "w", "dy")
    )
    x[..., 1] *= HUGE if where == "column" else 1
    x[2] *= HUGE if where == "row" else 1
    return x, w, dy


def step(
    products: Products, layer: Layer, tensors: tuple[F32, F32, F32], *wants: Direction
) -> list[F32]:
    multiplier = Multiplier(products, KERNELS, 1)
    multiplier.begin(StepKind("train", layer.batch), 0, Recorder())
    found = [multiplier.forward(Forward(layer, wants), *tensors[:2])]
    if wants:
        found += multiplier.backward(Backward(0, wants), tensors[2])
    multiplier.settle()
    return found


@pytest.mark.parametrize("wants", [(), ("weight",), ("input", "weight")])
@pytest.mark.parametrize("where", ["row", "column"])
@pytest.mark.parametrize("layer", [LAYER, CONV], ids=["linear", "conv"])
def test_products_on_servers_are_those_in_place_whatever_the_scales(
    layer: Layer, where: str, wants: tuple[Direction, ...]
) -> None:
    tensors = spread(layer, where)
    ours = step(MaskedProducts(InPlaceServers(), KERNELS), layer, tensors, *wants)
    theirs = step(PlainProducts(), layer, tensors, *wants)
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("layer", [LAYER, CONV], ids=["linear", "conv"])
@pytest.mark.parametrize("wants", [(), ("weight",)])
def test_rows_beside_an_outlier_are_as_exact_as_alone(
    layer: Layer, wants: tuple[Direction, ...]
) -> None:
    x, w, dy = spread(layer, "row")
    y = step(PlainProducts(), layer, (x, w, dy), *wants)[0]
    alone = step(PlainProducts(), layer, spread(layer, ""), *wants)[0]
    others = np.arange(layer.batch) != 2
    error = np.abs(y[others] - alone[others]).max() / np.abs(alone[others]).max()
    assert error < 0.05


@pytest.mark.parametrize("has_slope", [False, True])
@pytest.mark.parametrize("where", ["row", "column"])
def test_products_are_taken_back_to_the_scale_of_what_came(
    where: str, has_slope: bool
) -> None:
    tensors = spread(LAYER, where)
    found = InputScales.of(tensors[0], KERNELS, has_slope=has_slope)
    if where == "column" and has_slope:  # its gradient would lose what it gains
        assert found is None
        return
    assert found is not None
    scaled = (*found.scale(*tensors[:2]), found.scale_slope(tensors[2]))
    (x, w, dy), (a, b, c) = (
        (each.reshape(len(each), -1).astype(np.float64) for each in those)
        for those in (tensors, scaled)
    )
    y = found.restore_output((a @ b.T)[:, None, None])
    assert np.allclose(y[:, 0, 0], x @ w.T, rtol=1e-12, atol=0)
    dx = found.restore_input((c @ b)[:, None, None])
    assert np.allclose(dx[:, 0, 0], dy @ w, rtol=1e-12, atol=0)
    dw = found.restore_weight((c.T @ a)[:, None, None])
    assert np.allclose(dw[:, 0, 0], dy.T @ x, rtol=1e-9, atol=0)


def test_what_is_alike_keeps_one_scale() -> None:
    x = np.random.default_rng(0).uniform(1, 2, LAYER.shape("x")).astype(np.float32)
    assert InputScales.of(x, KERNELS, has_slope=True) is None
    x[3] *= 2.0 ** (NEAR_BITS + 2)
    assert InputScales.of(x, KERNELS, has_slope=True) is not None
    x[0, 0, 0, 0] = np.nan
    assert InputScales.of(x, KERNELS, has_slope=True) is None
    assert InputScales.of(np.zeros_like(x), KERNELS, has_slope=True) is None


def note(watch: RoundingWatch, values: F32, exponent: int, step: int = 0) -> None:
    ints = np.rint(values * 2.0**-exponent).astype(np.int16)
    watch.note(OperandId(LAYER, step, 0, "x"), values, Operand(ints, exponent))


def test_the_error_is_measured_at_one_step_of_many() -> None:
    values, watch = np.full(LAYER.shape("x"), 2.25, np.float32), RoundingWatch()
    note(watch, values, 0, step=1)
    assert not watch.errors
    note(watch, values, 0, step=EVERY)
    found = watch.errors["fc"]["x"]
    assert found.relative == pytest.approx(0.25 / 2.25)
    assert (found.rows_lost, found.columns_lost) == (0, 0)


@pytest.mark.parametrize(
    ("where", "share"), [("row", 8 / 9), ("column", 5 / 6), ("", 0.0)]
)
def test_rows_that_vanish_beside_one_are_said_once(where: str, share: float) -> None:
    watch, (x, _, _) = RoundingWatch(), spread(LAYER, where)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            note(watch, x, 10 if where else -10)
    found = watch.errors["fc"]["x"]
    assert max(found.rows_lost, found.columns_lost) == pytest.approx(share)
    assert len(said) == (1 if where else 0)
    assert all(f"{where}s of the input of" in str(each.message) for each in said)
