"""What a GPU says when it fails, and whose fault that is; nothing else of it is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sealift.errors import JobError, SealiftError, UnavailableError
from sealift.train.loop.faults import (
    Fault,
    MachineError,
    believable,
    describe,
    explain,
    gpu_failed,
)
from sealift.train.loop.trainer import Trainer
from sealift.train.sandboxed.placement import HERE, DevicePlacement
from sealift.train.worker.executor import RecipeExecutor
from tests.sim.madeup_gpu import compute_there, lines
from tests.unit.train.joints import cargo
from tests.unit.train.recipes import PLAIN, SETTINGS
from tests.unit.train.test_placement import trained


@pytest.mark.skipif(
    Path("/dev/nvidiactl").exists(), reason="this machine has a GPU"
)  # torch is not asked: a process that asked can fork none that computes there
@pytest.mark.parametrize(
    "line",
    [
        "model.cuda()",
        "batch['x'].to('cuda')",
        "torch.zeros(2, device='cuda')",
        "torch.cuda.current_device()",
    ],
)
def test_a_recipe_that_asks_for_a_gpu_by_itself(line: str) -> None:
    text = PLAIN.replace("    return F.cross", f"    {line}\n    return F.cross")
    with pytest.raises(JobError, match=r"recipe\.py:16") as caught:
        trained(HERE, text)
    assert caught.value.code == "foreign-device"


# As torch 2.13 says it: whatever it was, the advice behind it speaks of assertions.
ADVICE = (
    "\\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
    "stacktrace below might be incorrect.\\nCompile with `TORCH_USE_CUDA_DSA` to enable "
    "device-side assertions.\\n"
)


def cuda(said: str) -> str:
    return f"raise torch.AcceleratorError('CUDA error: {said}{ADVICE}')"


FAILURES = [
    (cuda("unspecified launch failure"), "device-lost", "the GPU failed"),
    (cuda("an illegal memory access was encountered"), "device-lost", "the GPU failed"),
    (cuda("device-side assert triggered"), "recipe-error", "recipe.py:16"),
    (cuda("invalid configuration argument"), "recipe-error", "recipe.py:16"),
    (cuda("out of memory"), "no-memory", "ran out of memory"),
    (
        "raise torch.OutOfMemoryError('CUDA out of memory')",
        "no-memory",
        "out of memory",
    ),
    (
        "raise RuntimeError('CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling')",
        "no-memory",
        "ran out of memory",
    ),
    (
        "raise RuntimeError('cuDNN error: CUDNN_STATUS_ALLOC_FAILED')",
        "no-memory",
        "ran out of memory",
    ),
    (
        "raise RuntimeError('CUDA error: CUBLAS_STATUS_EXECUTION_FAILED')",
        "recipe-error",
        "recipe.py:16",
    ),
    ("raise RuntimeError('out of memory, it says')", "recipe-error", "recipe.py:16"),
    (
        cuda("invalid device ordinal"),
        "foreign-device",
        "a GPU at recipe.py:16",
    ),
    (
        cuda("no kernel image is available for execution on the device"),
        "no-device",
        "built without support for",
    ),
    (
        cuda("CUDA-capable device(s) is/are busy or unavailable"),
        "no-device",
        "accepts no more processes",
    ),
]


def failing(line: str) -> str:
    return PLAIN.replace("    return F.cross", f"    {line}\n    return F.cross")


@pytest.mark.parametrize(("line", "code", "said"), FAILURES)
def test_what_a_gpu_says_is_told_apart(line: str, code: str, said: str) -> None:
    with pytest.raises(SealiftError, match=said) as caught:
        trained(HERE, failing(line))
    assert caught.value.code == code


@pytest.mark.distributed
def test_a_gpu_that_fails_is_no_fault_of_a_recipe() -> None:
    """In the sandbox, too, where it is told as a fault and checked; on the CPU it is no such."""
    lost = (lines() + failing(cuda("unspecified launch failure"))).encode()
    with RecipeExecutor({"recipe.py": lost}, "recipe.py") as executor:
        trainer = Trainer(executor, SETTINGS)
        with pytest.raises(SealiftError) as caught:
            trainer.work([cargo("north", 20)])
        assert caught.value.code == "recipe-error"
        compute_there(executor)
        with pytest.raises(SealiftError) as caught:
            trainer.work([cargo("north", 20)])
        assert caught.value.code == "device-lost"


def believed(fault: Fault, gpu: bool = True) -> SealiftError:
    nothing: frozenset[str] = frozenset()
    return explain(
        believable(
            fault, {}, fields=nothing, parameters=nothing, steps=range(1), gpu=gpu
        )
    )


def test_no_words_but_cudas_own_are_told_of_a_gpu() -> None:
    for error in (gpu_failed("lost"), gpu_failed("not-begun", "unknown error")):
        assert str(believed(error.fault)) == str(error)  # control
    for odd in (
        Fault(kind="gpu", reason="lost", field="row 7 is 0.25"),
        Fault(kind="gpu", reason="not-begun", field="row 7 is 0.25"),
        Fault(kind="gpu", reason="row 7 is 0.25"),
        Fault(kind="gpu"),
        Fault(kind="gpu", reason="busy", field="unknown error"),
    ):
        assert "with Exception" in str(believed(odd))


def test_without_a_gpu_nothing_is_told_of_one() -> None:
    lost = gpu_failed("lost").fault
    assert "failed at an unknown line" in str(believed(lost, gpu=False))
    full = Fault(kind="memory", room=(80 << 30, 7 << 30))
    assert "GiB" in str(believed(full))  # control
    assert "GiB" not in str(believed(full, gpu=False))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "CUDA unknown error - this may be due to an incorrectly set up",
            "unknown error",
        ),
        (
            "Unexpected error. Error 304: OS call failed or operation not",
            "OS call failed",
        ),
        (f"CUDA error: out of memory{ADVICE}", "out of memory"),
        (
            "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
            "compute mode",
        ),
        ("whatever comes next", "could not be initialized"),
    ],
)
def test_a_gpu_that_cannot_be_begun_with(
    monkeypatch: pytest.MonkeyPatch, said: str, told: str
) -> None:
    """Before a recipe runs: it is nobody's fault in it."""

    def fail(_device: object) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr(torch.cuda, "set_device", fail)
    with pytest.raises(MachineError, match=told) as caught:
        DevicePlacement("cuda:0").begin()
    assert caught.value.code == "no-device"
    assert str(believed(caught.value.fault)) == str(caught.value)
    with pytest.raises(MachineError):
        trained(DevicePlacement("cuda:0"), PLAIN)


def test_where_a_gpus_memory_is_said() -> None:
    def said(*room: int) -> str:
        return str(believed(Fault(kind="memory", room=(room[0], room[1]))))

    text = said(80 << 30, 3 << 30)
    assert "80.0 GiB" in text
    assert "3.0 GiB" in text
    assert "batch_rows" in text
    assert "GiB" not in said(0, 0)
    assert "out of memory" not in said(3 << 30, 80 << 30)
    assert "out of memory" not in said(1 << 51, 0)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("no-memory", "no-memory"),
        ("device-out-of-memory", "no-memory"),
        ("no-pinned-memory", "no-memory"),
        ("extra-missing", "no-device"),
        ("gpu-driver-too-old", "no-device"),
    ],
)
def test_what_a_driver_lacks_is_no_lack_of_memory(code: str, told: str) -> None:
    fault = describe(UnavailableError("it cannot be used", code=code))
    assert explain(fault).code == told
