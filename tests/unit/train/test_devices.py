"""Why a recipe's process has no GPU, in one clear line; torch and the files are stand-ins."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sealift.train.sandboxed import gpus
from sealift.train.sandboxed.gpus import find_gpus
from sealift.train.worker.devices import Gpu

OLD = (
    "The NVIDIA driver on your system is too old (found version 11040). Please update "
    "your GPU driver by downloading and installing a new version from the URL"
)


def fails(said: str) -> Callable[..., None]:
    def call(*_any: object) -> None:
        raise RuntimeError(said)

    return call


@pytest.fixture
def a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Device files of a GPU, and a torch that finds it and computes there."""
    for name in ("ctl", "uvm", "0"):
        (tmp_path / name).touch()
    monkeypatch.setattr(gpus, "NVIDIA", str(tmp_path / "ctl"))
    monkeypatch.setattr(gpus, "UVM", str(tmp_path / "uvm"))
    monkeypatch.setattr(gpus, "GPU_FILES", [str(tmp_path / "ctl"), str(tmp_path / "0")])
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    told = SimpleNamespace(name="NVIDIA H100", uuid="1")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _number: told)
    monkeypatch.setattr(gpus, "_compute_somewhere", lambda _numbers: None)
    return tmp_path


def test_one_that_works_is_found(a_gpu: Path) -> None:
    assert a_gpu.exists()
    assert find_gpus() == ((Gpu("NVIDIA H100", "GPU-1"),), "")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (OLD, "the driver is too old for this torch; torch "),
        (OLD, "The NVIDIA driver on your system is too old (found version 11040)"),
        (
            "CUDA error: out of memory\nCUDA kernel",
            "other processes use all of the GPU's memory; ",
        ),
        (
            "CUDA error: no kernel image is available for execution on the device",
            "this torch was built for other GPUs; torch ",
        ),
        (
            "CUDA error: OS call failed or operation not supported on this OS",
            "the system refused something that CUDA needs; ",
        ),
        ("No CUDA GPUs are available", "CUDA shows no whole GPU ("),
        ("CUDA error: something new\nmore", "CUDA error: something new"),
    ],
)
def test_what_cuda_says_is_named(
    a_gpu: Path, said: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "init", fails(said))
    found, told = find_gpus()
    assert (found, why in told) == ((), True), told
    assert "\n" not in told
    assert len(told) <= gpus.MAX_WHY
    assert a_gpu.exists()


def test_files_that_lack_are_named(
    a_gpu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "init", fails("CUDA unknown error"))
    monkeypatch.setattr(
        gpus.os, "access", lambda path, mode: not str(path).endswith("/0")
    )
    assert find_gpus()[1] == f"this user may not open {a_gpu / '0'}; CUDA unknown error"
    (a_gpu / "uvm").unlink()
    assert find_gpus()[1] == f"{a_gpu / 'uvm'} is missing; CUDA unknown error"
    (a_gpu / "ctl").unlink()
    said = f"no NVIDIA driver is loaded (no {a_gpu / 'ctl'}); CUDA unknown error"
    assert find_gpus()[1] == said


def test_a_divided_gpu_is_refused(a_gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = SimpleNamespace(name="NVIDIA H100 MIG 1g.10gb", uuid="1")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _number: part)
    assert find_gpus() == ((), "a GPU is divided (MIG), which Sealift does not support")
    assert a_gpu.exists()


def test_one_that_the_sandbox_alone_keeps_away_is_told(a_gpu: Path) -> None:
    """Asked in processes of their own: what is done there stays there."""
    asked = a_gpu / "asked"

    def confine() -> None:
        asked.touch()
        raise PermissionError("no such call")

    found, why = find_gpus(confine)
    assert found == ()
    assert why == "it works outside of the sandbox, but not inside: no such call"
    assert asked.exists()


def test_a_driver_that_ends_the_process_is_told(
    a_gpu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "init", lambda: os._exit(1))
    assert find_gpus() == ((), "its driver ended the process")
    assert a_gpu.exists()
