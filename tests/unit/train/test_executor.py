"""The parent of recipes, where the process that it starts says nothing."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace

import pytest

from sealift.errors import (
    IntegrityError,
    JobError,
    MalformedError,
    UnavailableError,
)
from sealift.release.receipt import ScrubbedPart
from sealift.train.loop.faults import Fault
from sealift.train.loop.tasks import DeviceScrub, Given, SliceTask
from sealift.train.loop.told import Told
from sealift.train.loop.trainer import Trainer
from sealift.train.worker import devices, process
from sealift.train.worker import executor as module
from sealift.train.worker.devices import Gpu
from sealift.train.worker.executor import OPENED, RecipeExecutor
from sealift.train.worker.messages import Done, TaskAnswers
from sealift.train.worker.process import StartWorker
from sealift.train.worker.requests import Request
from sealift.train.worker.taskprocess import TaskLimits, TaskProcess
from tests.unit.train.recipes import PLAIN, SETTINGS

A_TASK = SliceTask(work="rehearse", slice=0, settings=SETTINGS, models=(), parts=())
SLEEPING = [sys.executable, "-c", "import time; time.sleep(600)"]


def silent(
    _wanted: str, _environment: object
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A process that is there, and neither answers nor ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        kept = [theirs.fileno()]
        return subprocess.Popen(SLEEPING, pass_fds=kept), ours


def test_a_process_that_does_not_start_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_start", silent)
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
        assert executor.device() == "cpu"
        with pytest.raises(
            UnavailableError, match=r"on cuda:7.*can use here"
        ) as caught:
            executor.compute_on("cuda:7")
        assert caught.value.code == "no-device"
        assert executor.device() == "cpu"


def test_a_task_that_fails_says_what_stayed_on_its_gpu() -> None:
    """A worker that was given a GPU that is not there: it cannot overwrite anything."""
    with RecipeExecutor({"recipe.py": PLAIN.encode()}, "recipe.py") as executor:
        trainer = Trainer(executor, SETTINGS)
        executor._equipment = replace(executor._equipment, device="cuda:0")
        with pytest.raises(JobError, match="on cuda:0 was not overwritten") as caught:
            trainer.build()
        assert caught.value.code == "recipe-error"  # its own word, and no mere end
        assert executor.scrubbed() == ()
        executor.compute_on("cpu")
        trainer.build()  # the control


class Saying:
    """A worker that says what it likes."""

    def __init__(self, *words: object) -> None:
        self._words = list(words)

    def hear(self, *_kinds: type) -> Request:
        return Request(self._words.pop(0), b"")

    def tell(self, message: object = None, buffer: bytes = b"") -> None:
        assert message is None


def told(device: str, *words: object) -> tuple[ScrubbedPart, ...]:
    with (
        RecipeExecutor({"recipe.py": b""}, "recipe.py") as executor,
        ExitStack() as end,
    ):
        equipment = replace(executor._equipment, device=device)
        task = TaskProcess(executor._control, equipment, TaskLimits(), end)
        task._process.end(0.0)
        task._process = Saying(*words, Fault(kind="error"))  # type: ignore[assignment]
        task._serve(TaskAnswers(A_TASK, Given()), Told())
        return task.scrubbed


def test_what_a_worker_says_of_its_gpus_memory() -> None:
    assert told("cuda:1", DeviceScrub(4096, 0)) == (ScrubbedPart("cuda:1", 4096, 0),)
    with pytest.raises(IntegrityError, match="7 bytes were not zero") as caught:
        told("cuda:1", DeviceScrub(4096, 7))
    assert caught.value.code == "scrub"
    odd = DeviceScrub(4096, 4097), DeviceScrub(4096, -1), DeviceScrub(-1, 0)
    for each in odd:
        with pytest.raises(MalformedError):
            told("cuda:1", each)
    with pytest.raises(MalformedError):
        told("cpu", DeviceScrub(4096, 0))
    with pytest.raises(MalformedError):
        told("cuda:1", DeviceScrub(4096, 0), DeviceScrub(4096, 0))


def test_no_result_counts_without_that_word() -> None:
    with (
        RecipeExecutor({"recipe.py": b""}, "recipe.py") as executor,
        ExitStack() as end,
    ):
        equipment = replace(executor._equipment, device="cuda:1")
        task = TaskProcess(executor._control, equipment, TaskLimits(), end)
        task._process.end(0.0)
        with pytest.raises(JobError) as caught:
            task._read(TaskAnswers(A_TASK, Given()), Done((), ()))
        assert caught.value.code == "recipe-garbled"


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


def test_a_device_says_why_it_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "NVIDIA", "/dev/null")
    with RecipeExecutor({"recipe.py": b""}, "recipe.py") as executor:
        executor.compute_on("auto")
        assert executor.device() == f"cpu (GPU not usable: {executor._no_gpu})"
        executor.compute_on("cpu")
        assert executor.device() == "cpu"


def test_a_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process that has two, which no machine without them starts."""
    monkeypatch.setattr(RecipeExecutor, "sandbox", "none")
    with RecipeExecutor({"recipe.py": b""}, "recipe.py") as executor:
        executor._gpus = (Gpu("NVIDIA H100", "GPU-1"), Gpu("NVIDIA H200", "GPU-2"))
        executor.compute_on("cuda:1")
        assert (
            executor.device()
            == f"cuda:1 NVIDIA H200, other processes unknown, {OPENED}"
        )
        for running, said in (((), "no"), ((7, 8), "2"), ((7,), "2"), ((), "2")):
            found = {"GPU-1": (5,), "GPU-2": running}
            monkeypatch.setattr(module, "other_processes", lambda found=found: found)
            told = executor.device()
            assert told == f"cuda:1 NVIDIA H200, {said} other processes, {OPENED}"
        executor.compute_on("cpu")
        assert executor.device() == "cpu"
