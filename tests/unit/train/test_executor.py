"""The parent of recipes, where the process that it starts says nothing."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sealift.errors import JobError, UnavailableError
from sealift.train.loop.faults import NOT_OVERWRITTEN
from sealift.train.loop.trainer import Trainer
from sealift.train.worker import devices, process
from sealift.train.worker import executor as module
from sealift.train.worker.devices import Gpu, other_processes
from sealift.train.worker.executor import OPENED, RecipeExecutor
from sealift.train.worker.process import StartWorker
from sealift.train.worker.taskprocess import TaskLimits
from tests.sim.inside import demand
from tests.sim.madeup_gpu import HOST
from tests.unit.train.joints import cargo
from tests.unit.train.recipes import PLAIN, SETTINGS

SLEEPING = [sys.executable, "-c", "import time; time.sleep(600)"]


def silent(
    _wanted: str, _environment: object, _said: int
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A process that is there, and neither answers nor ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        kept = [theirs.fileno()]
        return subprocess.Popen(SLEEPING, pass_fds=kept), ours


@pytest.mark.distributed
def test_a_process_that_does_not_start_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_start", silent)
    monkeypatch.setattr(module, "START_S", 0.1)
    monkeypatch.setattr(module, "FAREWELL_S", 0.1)
    with (
        RecipeExecutor({"recipe.py": b""}, "recipe.py") as executor,
        pytest.raises(JobError, match="its process") as caught,
    ):
        assert executor.sandbox
    assert caught.value.code == "recipe-killed"
    assert executor._process.poll() is not None


def failing(says: str, then: str = "sys.exit(1)") -> Any:
    """A process that says something and ends, in the place of the one that forks workers."""

    def start(
        _wanted: str, _environment: object, said: int
    ) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            program = f"import sys, time; sys.stderr.write({says!r}); {then}"
            command, held = [sys.executable, "-c", program], [theirs.fileno()]
            return subprocess.Popen(command, stderr=said, pass_fds=held), ours

    return start


@pytest.mark.parametrize(
    ("says", "shown"),
    [
        ("", "its process could not be started"),
        (
            "Traceback\n  one\n\n  two\n  three\nKeyError: 'uid not found: 0'\n",
            "its process could not be started: one / two / three / KeyError: 'uid not found: 0'",
        ),
        (
            "red \x1b[31m \u202e\n",
            "its process could not be started: red \\x1b[31m \\u202e",
        ),
        ("x" * 9000, f"its process could not be started: {'x' * devices.MAX_WHY}"),
    ],
    ids=["nothing", "its last lines", "made visible", "bounded"],
)
def test_a_process_that_ends_before_a_recipe_says_why(
    says: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_start", failing(says))
    with (
        RecipeExecutor({"recipe.py": b""}, "recipe.py") as executor,
        pytest.raises(JobError) as caught,
    ):
        assert executor.sandbox
    assert (caught.value.code, caught.value.why) == ("recipe-killed", shown)


def test_a_process_that_does_not_report_in_time_is_not_said_to_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_start", failing("", "time.sleep(3600)"))
    for name in ("START_S", "FAREWELL_S"):
        monkeypatch.setattr(module, name, 0.1)
    with (
        RecipeExecutor({"recipe.py": b""}, "recipe.py") as executor,
        pytest.raises(JobError, match=r"not be started within 0\.1 s; the machine"),
    ):
        assert executor.sandbox


@pytest.mark.distributed
def test_who_forks_workers_says_nothing_more_once_it_waits() -> None:
    """No worker inherits what its parent reads where nothing starts."""
    with RecipeExecutor({"recipe.py": b""}, "recipe.py", wanted="none") as executor:
        assert executor.sandbox
        assert os.readlink(f"/proc/{executor._process.pid}/fd/2") == os.devnull


AT_HOME = b"""
import getpass
import os
import torch
from torch import nn


def build():
    names = ("TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR",
             "CUDA_CACHE_PATH", "MPLCONFIGDIR", "HF_HOME", "XDG_CACHE_HOME")
    print(getpass.getuser())
    for name in names:
        os.makedirs(os.environ[name])
        print(name, os.environ[name].startswith("/scratch/"))
    return nn.Linear(4, 2)


def configure_optimizers(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def loss(model, batch):
    return model(batch["x"]).sum()
"""


@pytest.mark.distributed
def test_a_recipes_process_has_a_user_and_caches_of_its_own() -> None:
    text = io.StringIO()
    with RecipeExecutor(
        {"recipe.py": AT_HOME}, "recipe.py", wanted=demand("namespaces"), text=text
    ) as executor:
        Trainer(executor, SETTINGS).build()
    user, *caches = text.getvalue().splitlines()
    assert user == "recipe"
    assert len(caches) == 7
    assert all(each.endswith(" True") for each in caches)


@pytest.mark.distributed
def test_a_job_computes_on_a_device_that_its_process_has() -> None:
    with RecipeExecutor({"recipe.py": b""}, "recipe.py") as executor:
        executor.compute_on("auto")
        assert executor.device() == "cpu"
        with pytest.raises(UnavailableError, match=r"cuda:7.*usable GPUs") as caught:
            executor.compute_on("cuda:7")
        assert caught.value.code == "no-device"
        assert executor.device() == "cpu"


@pytest.mark.distributed
def test_a_gpu_that_is_not_there_is_no_fault_of_a_recipe() -> None:
    with RecipeExecutor({"recipe.py": PLAIN.encode()}, "recipe.py") as executor:
        trainer = Trainer(executor, SETTINGS)
        assert executor.sandbox
        executor._equipment = replace(executor._equipment, device="cuda:0")
        with pytest.raises(
            UnavailableError, match="could not be initialized"
        ) as caught:
            trainer.build()
        assert caught.value.code == "no-device"
        assert NOT_OVERWRITTEN in str(caught.value)
        assert not executor.report(HOST).verified
        executor.compute_on("cpu")
        trainer.build()  # the control
        assert executor.report(HOST) == HOST


@pytest.mark.distributed
def test_cuda_finds_nothing_in_a_worker_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where no part of the sandbox would keep it from a GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    asks = 'import os\nprint("shown:", os.environ["CUDA_VISIBLE_DEVICES"])\n' + PLAIN
    text = io.StringIO()
    files = {"recipe.py": asks.encode()}
    with RecipeExecutor(files, "recipe.py", text=text, wanted="none") as executor:
        Trainer(executor, SETTINGS).build()
        assert "shown: \n" in text.getvalue()
        # A worker with a GPU keeps what its accelerator was given.
        monkeypatch.setattr(
            process, "StartWorker", lambda most, _: StartWorker(most, True)
        )
        Trainer(executor, SETTINGS).build()
    assert "shown: 3,5\n" in text.getvalue()


@pytest.mark.distributed
def test_a_device_says_why_it_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "NVIDIA", "/dev/null")
    with RecipeExecutor({"recipe.py": b""}, "recipe.py") as executor:
        executor.compute_on("auto")
        assert executor.device() == f"cpu (GPU not usable: {executor._no_gpu})"
        executor.compute_on("cpu")
        assert executor.device() == "cpu"


@pytest.mark.distributed
def test_a_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process that has two, which no machine without them starts."""
    monkeypatch.setattr(RecipeExecutor, "_wait_for_sandbox", lambda self: None)
    with RecipeExecutor({"recipe.py": b""}, "recipe.py") as executor:
        executor._gpus = (Gpu("NVIDIA H100", "GPU-1"), Gpu("NVIDIA H200", "GPU-2"))
        executor.compute_on("cuda:1")
        unknown = f"cuda:1 NVIDIA H200, other processes unknown, {OPENED}"
        assert executor.device() == unknown
        seen: dict[str, tuple[int, ...]] = {"GPU-1": (5,), "GPU-2": ()}
        monkeypatch.setattr(module, "other_processes", lambda: seen)
        assert (
            executor.device() == unknown
        )  # nobody said who was there at the beginning
        executor.compute_on("cuda:1")
        for running, said in (((), "no"), ((7, 8), "2"), ((7,), "2"), ((), "2")):
            seen["GPU-2"] = running
            told = executor.device()
            assert told == f"cuda:1 NVIDIA H200, {said} other processes, {OPENED}"
        del seen["GPU-2"]  # as a part of a GPU has a name of its own
        assert executor.device() == unknown
        executor.compute_on("cpu")
        assert executor.device() == "cpu"


class Nvml:
    """What a driver says of two GPUs; a process may compute and draw."""

    class NVMLError(Exception):
        pass

    def __init__(self, *, mps: bool = True) -> None:
        self._mps = mps

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:  # noqa: N802
        return number

    def nvmlDeviceGetUUID(self, gpu: int) -> str:  # noqa: N802
        return f"GPU-{gpu}"

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: int) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=os.getpid()), SimpleNamespace(pid=70 + gpu)]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, gpu: int) -> list[Any]:  # noqa: N802
        if not self._mps:
            raise self.NVMLError("Not Supported")
        return [SimpleNamespace(pid=80)] * gpu

    def nvmlDeviceGetGraphicsRunningProcesses(self, gpu: int) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=70), SimpleNamespace(pid=90)]


def test_everybody_on_a_gpu_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "readlink", lambda path: "pid:[4026531836]")
    assert other_processes(Nvml) == {"GPU-0": (70, 90), "GPU-1": (70, 71, 80, 90)}
    with pytest.raises(UnavailableError, match="Not Supported"):
        other_processes(lambda: Nvml(mps=False))


def test_in_a_container_nobody_is_said_to_be_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others' processes have no number there, so the driver names none of them."""
    monkeypatch.setattr(os, "readlink", lambda path: "pid:[4026532555]")
    with pytest.raises(UnavailableError, match="PID namespace"):
        other_processes(Nvml)


@pytest.mark.distributed
def test_who_runs_out_of_memory_says_what_it_has_needs_and_what_would_fit() -> None:
    """In one line; the state that the slice began with is still the trainer's."""
    text = PLAIN + "\n\nstep = loss\n\n\ndef loss(model, batch):\n"
    text += "    if len(batch['x']) > 4:\n        torch.ones(1 << 30)\n"
    text += "    return step(model, batch)\n"
    settings = replace(SETTINGS, batch_rows=8)
    limits = TaskLimits(memory_bytes=3 << 30)
    files = {"recipe.py": text.encode()}
    with RecipeExecutor(files, "recipe.py", limits=limits) as executor:
        training = Trainer(executor, settings)
        training.work([cargo("ada", 4)])  # control
        with pytest.raises(UnavailableError) as caught:
            training.work([cargo("ada", 8)])
        training.verify()
        assert training.steps == 1
        training.work([cargo("ada", 4)])
    error = caught.value
    assert error.code == "no-memory"
    weights = sum(len(each.content) for each in training.state().values())
    for number in (3 << 30, weights, 4 * weights, (3 << 30) // 16):
        assert f"{number:,}" in str(error.why)
