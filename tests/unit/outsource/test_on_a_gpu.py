"""A server's products on a GPU are those on the processor, and so are its steps."""

from __future__ import annotations

import numpy as np
import pytest

from sealift.numeric.kernels import best_kernels
from sealift.outsource.compute import ShareProducts
from sealift.outsource.masked import SHARES, MaskedProducts
from sealift.outsource.multiplier import Multiplier
from sealift.outsource.plain import PlainProducts
from sealift.outsource.terms import OPERANDS, Backward, Direction, Forward, Layer
from sealift.outsource.trace import Recorder, StepKind, tabulate
from tests.sim.servedshares import SharesWorld

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

BOTH: tuple[Direction, ...] = ("input", "weight")
LAYERS = {
    "linear": Layer(name="fc", batch=640, inputs=256, outputs=512),
    "odd linear": Layer(name="fc", batch=5, inputs=9, outputs=3),
    "places that begin anywhere": Layer(name="fc", batch=33, inputs=24, outputs=40),
    "conv": Layer(
        name="conv", batch=24, inputs=16, outputs=32, height=16, width=16,
        kernel=(3, 3), padding=(1, 1),
    ),
    "odd conv": Layer(
        name="conv", batch=3, inputs=3, outputs=5, height=7, width=6, kernel=(3, 2),
        padding=(1, 0), stride=(2, 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_products_are_those_on_the_processor(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sealift.outsource.compute.AT_ONCE", 1 << 14)
    kernels, layer = best_kernels(), LAYERS[name]
    there, here = ShareProducts("cuda", kernels), ShareProducts("cpu", kernels)
    assert there.method == "int8"
    rng = np.random.default_rng(0)
    for direction, tensors in OPERANDS.items():
        basis = layer.basis(direction)
        a, b = (
            rng.integers(0, basis.modulus, layer.shape(t), dtype=np.uint32)
            for t in tensors
        )
        found, right = (
            each.product(layer, direction, each.keep(a, basis), each.keep(b, basis))
            for each in (there, here)
        )
        assert np.array_equal(found, right)


@pytest.mark.parametrize("name", ["conv", "odd conv", "large"])
def test_steps_with_servers_on_a_gpu_are_those_in_place(name: str) -> None:
    large = Layer(name="wide", batch=1500, inputs=240, outputs=220)
    layer, kernels = LAYERS.get(name, large), best_kernels()
    world = SharesWorld()
    for share in SHARES:
        world.servers[share].products = ShareProducts("cuda", kernels)
    kind, trace = StepKind("train", layer.batch), (Forward(layer, BOTH),)
    rng = np.random.default_rng(1)
    x, w, dy = (
        rng.standard_normal(layer.shape(t)).astype(np.float32) for t in ("x", "w", "dy")
    )

    def step(multiplier: Multiplier) -> list[np.ndarray]:
        multiplier.begin(kind, 0, Recorder())
        y = multiplier.forward(trace[0], x, w)
        slopes = multiplier.backward(Backward(0, BOTH), dy)
        multiplier.settle()
        return [y, *slopes]

    with world.serving(), world.dial(answer_s=60.0) as servers:
        servers.announce(tabulate({kind: (*trace, Backward(0, BOTH))}))
        ours = step(Multiplier(MaskedProducts(servers, kernels), kernels, 1))
    right = step(Multiplier(PlainProducts(), kernels, 1))
    assert all(map(np.array_equal, ours, right))
