"""Images of the outsource benchmark, and the head-room that it counts, a row a layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.outsource import machine
from benchmarks.outsource.accuracy import HeadRoom
from benchmarks.outsource.models import (
    CIFAR10,
    CIFAR10_FILE,
    digits_mlp,
    read_images,
    vgg11_layers,
)
from benchmarks.outsource.steps import Timed
from sealift.errors import UsageError
from sealift.numeric.kernels import portable_kernels
from sealift.outsource.multiplier import Multiplier
from sealift.outsource.terms import Backward, Direction, Forward, Layer
from sealift.outsource.trace import StepKind

pytestmark = pytest.mark.long

ROW = 1 + 3 * 32 * 32


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Named by the environment, with two rows in it."""
    monkeypatch.setenv(CIFAR10, str(tmp_path))
    rows = np.zeros((2, ROW), np.uint8)
    rows[:, 0] = 9, 0
    rows[0, 1] = 51  # red, top left
    rows[1, -1] = 255  # blue, bottom right
    rows.tofile(tmp_path / CIFAR10_FILE)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_images_of_cifar10_are_read_and_repeated() -> None:
    found = read_images(3)
    assert (found.what, found.x.shape) == ("CIFAR-10", (3, 3, 32, 32))
    assert found.y.tolist() == [9, 0, 9]
    assert found.x[0, 0, 0, 0] == pytest.approx(0.2)
    assert found.x[1, 2, 31, 31] == 1
    assert found.x.sum() == pytest.approx(1.4)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        (b"", "no whole rows"),
        (bytes(2 * ROW - 1), "no whole rows"),
        (b"\x0a" + bytes(ROW - 1), "a label of 10"),
    ],
)
def test_a_folder_that_is_not_cifar10s_is_refused(
    folder: Path, content: bytes | None, why: str
) -> None:
    path = folder / CIFAR10_FILE
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(UsageError, match=f"{CIFAR10} names no CIFAR-10.*{why}"):
        read_images(1)


def test_without_a_folder_there_are_photographs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(CIFAR10, raising=False)
    found = read_images(2)
    assert (found.what, len(found.y)) == ("scikit-learn's photographs", 2)
    assert found.x.shape == (2, 3, 32, 32)


def small_model() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))


def test_layers_and_models_are_measured_beside_own_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What runs on a GPU machine, with servers on the processor."""
    monkeypatch.setattr(machine, "MODEL_REPEATS", 1)
    monkeypatch.setattr(machine, "LINEAR_QUICK", ((40, 8, 1),))
    monkeypatch.setattr(machine, "vgg11", small_model)
    monkeypatch.setattr(machine, "vgg11_layers", lambda batch: vgg11_layers(2)[:1])
    report = machine.run(quick=True, device="cpu")
    layers = [row["layer"] for row in report.rows if "layer" in row]
    assert layers == ["linear 8", "conv1"]
    assert {row["module"] for row in report.rows if "module" in row} == {"1"}
    assert report.ratios.keys() >= {"own_vs_ours_vgg11", "own_vs_planned_vgg11"}


def test_head_room_is_counted_for_each_product_of_a_layer() -> None:
    layer = Layer(name="fc", batch=1, inputs=1, outputs=1)
    x, w, dy = (np.full(layer.shape("x"), each, np.int16) for each in (100, -50, 2000))
    head_room, calls = HeadRoom(), Forward(layer, ("input", "weight"))
    for _ in range(2):
        head_room.begin(StepKind("train", 1), 0)
        head_room.forward(calls, x, w, 2.0**-9)
        head_room.backward(Backward(0, calls.later), dy, (0.25, 4.0))
    (row,) = head_room.rows("one")
    sums: dict[Direction, int] = {"forward": 5000, "input": 100_000, "weight": 200_000}
    assert row == {"model": "one", "layer": "fc"} | {
        f"{each}_bits_left": f"{left(layer.basis(each).modulus, most)}:2"
        for each, most in sums.items()
    }


def left(modulus: int, most: int) -> int:
    """Doublings until a number is above half the modulus."""
    doublings = 0
    while most << doublings + 1 <= modulus // 2:
        doublings += 1
    return doublings


def test_a_step_has_a_row_a_layer() -> None:
    step = Timed(digits_mlp(), torch.rand(8, 64), torch.arange(8))
    head_room = HeadRoom()
    step.step(Multiplier(head_room, portable_kernels(), 0))
    first, last = head_room.rows("mlp")
    assert (first["layer"], last["layer"]) == ("0", "2")
    assert set(last) - set(first) == {"input_bits_left"}  # rows need no gradient
