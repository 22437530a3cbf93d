"""Sums on a device have the bits that numpy gets, whatever the numbers are."""

from __future__ import annotations

import numpy as np
import pytest

from sealift.channel.cuda.opening import open_cuda
from sealift.channel.device.device import DeviceTensor
from sealift.errors import UsageError
from tests.sim.summing import SUMMING, put, read

ON_A_GPU = {"cuda": lambda: open_cuda(test=lambda _: None)}
GPU = [pytest.param(name, marks=pytest.mark.gpu) for name in ON_A_GPU]
SIZES = (1, 3, 127, 128, 129, 5000, 40_001)


@pytest.fixture(params=[*SUMMING, *GPU])
def engine(request):
    made = (SUMMING | ON_A_GPU)[request.param]()
    yield made
    made.close()


def numbers(seed: int, size: int, dtype: str) -> np.ndarray:
    """Of all sizes: subnormal ones, zeroes of both signs, infinities of one sign."""
    rng = np.random.default_rng([seed, size])
    reach = 40 if dtype == "float32" else 300
    found = rng.standard_normal(size) * 10.0 ** rng.integers(-reach, reach - 3, size)
    found[rng.random(size) < 0.1] = -0.0
    found[rng.random(size) < 0.01] = np.inf
    with np.errstate(over="ignore"):
        return found.astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", SIZES)
def test_a_sum_has_the_bits_of_a_processors(engine, dtype, size) -> None:
    a, b = numbers(1, size, dtype), numbers(2, size, dtype)
    total, part = put(engine, a), put(engine, b)
    engine.add(total, part)
    with np.errstate(over="ignore"):
        assert read(engine, total).tobytes() == (a + b).tobytes()
    assert read(engine, part).tobytes() == b.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("share", [1.0, 0.0, 1 / 3, 0.1, 1e-30])
def test_a_weight_is_rounded_to_the_elements_type_first(engine, dtype, share) -> None:
    own = numbers(3, 4001, dtype)
    own[np.isinf(own)] = 1
    part = put(engine, own)
    total = put(engine, np.ones(4001, dtype))
    engine.weigh(total, part, share)
    assert read(engine, total).tobytes() == (own * own.dtype.type(share)).tobytes()


def test_a_part_of_a_tensor_is_summed_where_it_lies(engine) -> None:
    a, b = numbers(4, 1000, "float32"), numbers(5, 1000, "float32")
    total, part = put(engine, a), put(engine, b)
    engine.add(total[101:333], part[700:932])
    engine.copy(total[0:7], part[3:10])
    a[101:333] += b[700:932]
    a[0:7] = b[3:10]
    assert read(engine, total).tobytes() == a.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 1, 1299, 4999])
def test_the_first_number_that_is_not_finite_is_found(engine, dtype, odd, at) -> None:
    own = np.full(5000, np.finfo(dtype).max, dtype)
    own[at:] = odd
    tensor = put(engine, own)
    assert engine.first_odd(tensor) == at
    assert engine.first_odd(tensor[0:at] if at else tensor[0:0]) is None


@pytest.mark.parametrize("engine", ["cuda-gcc", *GPU], indirect=True)
def test_tensors_that_do_not_fit_together_are_refused(engine) -> None:
    """The stand-in of the tests refuses nothing, so it is not among the engines."""
    total, part = put(engine, np.zeros(8, "f4")), put(engine, np.zeros(8, "f8"))
    half = DeviceTensor(total.memory, 2, 4, "float32")
    for a, b in ((total, part), (total, total[0:4]), (half, total[0:4])):
        with pytest.raises(UsageError) as caught:
            engine.add(a, b)
        assert caught.value.code == "bad-tensor"
    beyond = DeviceTensor(total.memory, 4, 8, "float32")
    with pytest.raises(UsageError):
        engine.add(total, beyond)
