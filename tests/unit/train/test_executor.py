"""The parent of recipes, where the process that it starts says nothing."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from sealift.errors import JobError, UnavailableError
from sealift.train.worker import executor as module
from sealift.train.worker.executor import RecipeExecutor

SLEEPING = [sys.executable, "-c", "import time; time.sleep(600)"]


def silent(_wanted: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A process that is there, and neither answers nor ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        kept = [theirs.fileno()]
        return subprocess.Popen(SLEEPING, pass_fds=kept), ours


def test_a_process_that_does_not_start_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "start_zygote", silent)
    monkeypatch.setattr(module, "START_S", 0.1)
    monkeypatch.setattr(module, "FAREWELL_S", 0.1)
    with (
        RecipeExecutor({"recipe.py": b""}, "recipe.py") as executor,
        pytest.raises(JobError, match="does not start") as caught,
    ):
        assert executor.sandbox
    assert caught.value.code == "recipe-killed"
    assert executor._process.poll() is not None


def test_a_job_computes_on_a_device_that_its_process_has() -> None:
    with RecipeExecutor({"recipe.py": b""}, "recipe.py") as executor:
        executor.compute_on("auto")
        assert executor.device == "cpu"
        with pytest.raises(
            UnavailableError, match=r"on cuda:7.*can use here"
        ) as caught:
            executor.compute_on("cuda:7")
        assert caught.value.code == "no-device"
        assert executor.device == "cpu"


def test_a_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process that has two, which no machine without them starts."""
    monkeypatch.setattr(RecipeExecutor, "sandbox", "none")
    with RecipeExecutor({"recipe.py": b""}, "recipe.py") as executor:
        executor._devices = ("NVIDIA H100", "NVIDIA H200")
        executor.compute_on("cuda:1")
        assert executor.device == "cuda:1 NVIDIA H200"
        executor.compute_on("cpu")
        assert executor.device == "cpu"
