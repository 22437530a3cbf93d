"""Where a recipe computes: all of a step on one device, and with the CPU's bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sealift.collective.group import SealedGroup
from sealift.errors import JobError, SealiftError, UnavailableError
from sealift.ids import Digest
from sealift.train.loop import placement as placement_module
from sealift.train.loop.buckets import Array
from sealift.train.loop.faults import (
    Fault,
    MachineError,
    believable,
    explain,
    gpu_failed,
)
from sealift.train.loop.placement import HERE, Placement
from sealift.train.loop.tasks import DeviceScrub
from sealift.train.loop.trainer import Trainer
from sealift.train.worker.devices import Gpu, choose_device, find_gpus
from sealift.train.worker.executor import RecipeExecutor
from tests.sim.inplace import InPlace
from tests.sim.otherdevice import NAME, OtherDevice, in_a_process
from tests.unit.train.joints import cargo
from tests.unit.train.ranked import Join, World
from tests.unit.train.recipes import LIGHTNING, PLAIN, SETTINGS
from tests.unit.train.test_joint import PREPARING

MIXING = PLAIN.replace('batch["y"])', 'batch["y"] + 0 * torch.arange(len(batch["y"])))')


def at(placement: Placement, text: str) -> InPlace:
    return InPlace({"recipe.py": text.encode()}, "recipe.py", placement=placement)


def trained(placement: Placement, text: str) -> tuple[Any, ...]:
    """A model that is prepared, trained, measured, and carried from slice to slice."""
    trainer = Trainer(at(placement, text), SETTINGS, values=2)
    told = []
    if "def prepare" in text:
        told += [trainer.work([cargo("north", 48)], "prepare")]
    for epoch in range(2):
        told += [trainer.work([cargo("north", 20, epoch=epoch)])]
    told += [trainer.work([cargo("south", 21)], "heldout")]
    return trainer.snapshot(), told


def trained_away(text: str) -> tuple[Any, ...]:
    with OtherDevice() as device:
        return trained(Placement(f"{NAME}:0"), text), device.ran


def failed_away(text: str) -> str:
    with pytest.raises(JobError) as caught:
        trained_away(text)
    return str(caught.value)


@pytest.mark.parametrize("text", [PLAIN, LIGHTNING, PREPARING])
def test_another_device_gives_the_same_model(text: str) -> None:
    found, ran = in_a_process(trained_away, text)
    assert found == trained(HERE, text)
    assert ran["aten.addmm.default"] > 5
    assert ran["aten.mm.default"] > 5  # backward, too


def test_what_a_recipe_makes_on_the_cpu_does_not_mix() -> None:
    """As on a GPU; it is the control of the test before, too."""
    trained(HERE, MIXING)
    assert "recipe.py:16 with RuntimeError" in in_a_process(failed_away, MIXING)


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
    with pytest.raises(JobError, match=r"asks for a GPU at recipe\.py:16") as caught:
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
        "asks for a GPU at recipe.py:16",
    ),
    (
        cuda("no kernel image is available for execution on the device"),
        "no-device",
        "no code for the GPU",
    ),
    (
        cuda("CUDA-capable device(s) is/are busy or unavailable"),
        "no-device",
        "takes no more processes",
    ),
]


def failing(line: str) -> str:
    return PLAIN.replace("    return F.cross", f"    {line}\n    return F.cross")


@pytest.mark.parametrize(("line", "code", "said"), FAILURES)
def test_what_a_gpu_says_is_told_apart(line: str, code: str, said: str) -> None:
    with pytest.raises(SealiftError, match=said) as caught:
        trained(HERE, failing(line))
    assert caught.value.code == code


def test_a_gpu_that_fails_is_no_fault_of_a_recipe() -> None:
    """In the sandbox, too, where it is told as a fault and checked."""
    lost = failing(cuda("unspecified launch failure"))
    with RecipeExecutor({"recipe.py": lost.encode()}, "recipe.py") as executor:
        with pytest.raises(SealiftError) as caught:
            Trainer(executor, SETTINGS).work([cargo("north", 20)])
        assert caught.value.code == "device-lost"


def believed(fault: Fault) -> SealiftError:
    nothing: frozenset[str] = frozenset()
    return explain(
        believable(fault, {}, fields=nothing, parameters=nothing, steps=range(1))
    )


def test_no_words_but_cudas_own_are_told_of_a_gpu() -> None:
    for error in (gpu_failed("lost"), gpu_failed("not-begun", "unknown error")):
        assert str(believed(error.fault)) == str(error)  # control
    for odd in (
        Fault(kind="gpu", reason="lost", field="row 7 is 0.25"),
        Fault(kind="gpu", reason="row 7 is 0.25"),
        Fault(kind="gpu"),
    ):
        assert "the recipe failed at its edge with Exception" in str(believed(odd))


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
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "exclusive"),
        ("whatever comes next", "could not be begun with"),
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
        Placement("cuda:0").begin()
    assert caught.value.code == "no-device"
    assert str(believed(caught.value.fault)) == str(caught.value)
    with pytest.raises(MachineError):
        trained(Placement("cuda:0"), PLAIN)


def test_what_torch_compiles_without_a_program_runs_in_the_sandbox() -> None:
    said = '"aot_eager", or on a GPU "cudagraphs"'
    for backend, fails in (("aot_eager", False), ("inductor", True)):
        call = f"torch.compile(model, backend={backend!r})(batch['x'])"
        text = PLAIN.replace("    return F.cross", f"    {call}\n    return F.cross")
        with RecipeExecutor({"recipe.py": text.encode()}, "recipe.py") as executor:
            trainer = Trainer(executor, SETTINGS)
            if not fails:
                trainer.work([cargo("north", 20)])
                continue
            with pytest.raises(JobError, match=said) as caught:
                trainer.work([cargo("north", 20)])
            assert caught.value.code == "bad-recipe"


class Apart(Placement):
    """The CPU as if it were another device: gradients lie in memory of their own."""

    @property
    def is_cpu(self) -> bool:
        return False


class OthersToo:
    """A rank's group as if others had brought gradients as well.

    A real one would take ranks in threads, which load a recipe's modules over each other.
    """

    def __init__(self, group: SealedGroup) -> None:
        self._group = group

    def all_reduce(self, tensor: Array) -> None:
        self._group.all_reduce(tensor)
        tensor += 0.25

    def exchange(self, words: bytes) -> list[bytes]:
        return self._group.exchange(words)


def rank_at(placement: Placement, join: Join) -> Digest:
    world = World(PLAIN, [[24, 17]], work=lambda number: at(placement, PLAIN))
    (rank,) = world.apart(join)
    assert rank.error is None
    return rank.trainer.digest()


def test_gradients_are_added_up_where_they_are_not_computed() -> None:
    expected = rank_at(HERE, lambda rank, group: OthersToo(group))
    assert rank_at(Apart(), lambda rank, group: OthersToo(group)) == expected
    assert rank_at(HERE, lambda rank, group: group) != expected


def test_all_of_the_allocators_memory_is_overwritten_and_read_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On memory of the CPU; what torch says of a GPU's allocator is written by hand."""
    memory = {4096: torch.ones(512, dtype=torch.uint8), 8192: torch.ones(2048)}
    lengths = {address: each.nbytes for address, each in memory.items()}
    said = [
        {"address": address, "total_size": length, "device": number}
        for number, (address, length) in enumerate(lengths.items())
    ]
    given: list[str] = []

    def at(address: int, length: int, number: int) -> torch.Tensor:
        assert (lengths[address], number) == (length, address // 4096 - 1)
        return memory[address].view(torch.uint8)

    for name in ("synchronize", "memory_snapshot", "empty_cache"):
        monkeypatch.setattr(
            torch.cuda, name, lambda *_, n=name: given.append(n) or said
        )
    monkeypatch.setattr(placement_module, "_memory_at", at)
    found = Placement("cuda:1").scrub()
    assert found == DeviceScrub(512 + 2048 * 4, 0)
    assert not any(bool(each.any()) for each in memory.values())
    assert given == ["synchronize", "memory_snapshot", "empty_cache"]
    monkeypatch.setattr(torch.Tensor, "zero_", lambda each: each)
    memory[4096][7] = 1
    assert Placement("cuda:1").scrub().nonzero_bytes > 0


GPUS = (Gpu("NVIDIA H100", "GPU-1"), Gpu("NVIDIA H100", "GPU-2"))


@pytest.mark.parametrize(
    ("wanted", "gpus", "device"),
    [
        ("auto", (), "cpu"),
        ("auto", GPUS, "cuda:0"),
        ("cpu", GPUS, "cpu"),
        ("cuda", GPUS, "cuda:0"),
        ("cuda:1", GPUS, "cuda:1"),
    ],
)
def test_the_device_that_a_job_gets(
    wanted: str, gpus: tuple[Gpu, ...], device: str
) -> None:
    assert choose_device(wanted, gpus) == device


def test_ranks_of_one_machine_take_a_gpu_each() -> None:
    for wanted in ("auto", "cuda"):
        found = [choose_device(wanted, GPUS, rank=rank) for rank in range(3)]
        assert found == ["cuda:0", "cuda:1", "cuda:0"]
    assert choose_device("cuda:1", GPUS, rank=2) == "cuda:1"
    assert choose_device("auto", (), rank=2) == "cpu"


@pytest.mark.parametrize(
    ("wanted", "gpus", "why"),
    [("cuda", (), "here: none"), ("cuda:2", GPUS, "H100, NVIDIA H100")],
)
def test_a_device_that_is_not_there(
    wanted: str, gpus: tuple[Gpu, ...], why: str
) -> None:
    with pytest.raises(UnavailableError, match=why) as caught:
        choose_device(wanted, gpus)
    assert caught.value.code == "no-device"


def test_devices_are_those_of_torch() -> None:
    """A process that asks has not asked itself, so it can still fork."""
    found, why = find_gpus()
    assert len(found) == in_a_process(torch.cuda.device_count)
    assert bool(found) is not bool(why)
    assert not torch.cuda.is_initialized()


def test_where_a_gpus_memory_is_said() -> None:
    def said(*room: int) -> str:
        return str(believed(Fault(kind="memory", room=(room[0], room[1]))))

    text = said(80 << 30, 3 << 30)
    assert "80.0 GiB, and model, optimizer and batches take 3.0" in text
    assert "lower batch_rows" in text
    assert "GiB" not in said(0, 0)
    assert "out of memory" not in said(3 << 30, 80 << 30)
    assert "out of memory" not in said(1 << 51, 0)
