"""Training, answers, sandbox and scrub on a real GPU; part by part, to find what lacks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from sealift.errors import UnavailableError
from sealift.train.loop.trainer import Trainer
from sealift.train.sandbox.confine import NONE
from sealift.train.sandboxed.gpus import find_gpus
from sealift.train.worker.devices import other_processes
from sealift.train.worker.executor import BEST, RecipeExecutor
from tests.sim.inside import demand
from tests.sim.madeup_gpu import HOST
from tests.sim.served import rows
from tests.unit.serve.test_modelworker import RECIPE, ask, host, weights
from tests.unit.train.joints import cargo
from tests.unit.train.recipes import PLAIN, SETTINGS

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
PARTS = (NONE, "seccomp", "landlock", "namespaces", BEST)


def given(wanted: str) -> str:
    return wanted if wanted == NONE else demand(wanted)


STEADY = PLAIN.replace("nn.Dropout(0.2), ", "")

# Fills most of a GPU's free memory and counts how often a row's bytes lie in it.
PROBE = """
import sys, torch
mark = torch.tensor(list(bytes.fromhex(sys.argv[1])), dtype=torch.uint8, device="cuda")
found = 0
free, _total = torch.cuda.mem_get_info()
held = []
for _ in range(int(free * 0.8) >> 26):
    held.append(torch.empty(1 << 26, dtype=torch.uint8, device="cuda"))
for each in held:
    rows = each[: len(each) // len(mark) * len(mark)].view(-1, len(mark))
    for part in rows.split(1 << 20):
        found += int((part == mark).all(dim=1).sum())
print(found)
"""
# The control: a process that overwrites nothing, as it is killed.
KILLED = """
import os, signal, sys, torch
mark = torch.tensor(list(bytes.fromhex(sys.argv[1])), dtype=torch.uint8, device="cuda")
kept = mark.repeat(1 << 26)
torch.cuda.synchronize()
os.kill(os.getpid(), signal.SIGKILL)
"""


def probe(mark: bytes) -> int:
    ran = subprocess.run(
        [sys.executable, "-c", PROBE, mark.hex()],
        capture_output=True,
        check=True,
        text=True,
    )
    return int(ran.stdout)


@pytest.mark.parametrize("wanted", PARTS)
def test_a_worker_has_the_gpu(wanted: str) -> None:
    with RecipeExecutor(
        {"recipe.py": b""}, "recipe.py", wanted=given(wanted)
    ) as executor:
        assert executor.sandbox == wanted
        executor.compute_on("cuda")
        print(executor.device())
        assert executor.device().startswith("cuda:0 NVIDIA")


@pytest.mark.parametrize("wanted", PARTS)
def test_it_trains_there(wanted: str) -> None:
    files = {"recipe.py": STEADY.encode()}
    states = []
    for device in ("cuda", "cuda", "cpu"):
        with RecipeExecutor(files, "recipe.py", wanted=given(wanted)) as executor:
            executor.compute_on(device)
            trainer = Trainer(executor, SETTINGS)
            trainer.work([cargo("north", 40)])
            told = executor.report(HOST)
            states.append(trainer.digest())
        assert told.verified
        assert (told == HOST) is (device == "cpu")
        if device != "cpu":
            assert told.regions[-1].name == "cuda:0"
            assert told.regions[-1].size_bytes >= 2 << 20
    assert states[0] == states[1]  # on one kind of GPU, with one driver


def test_rows_are_not_found_by_the_next_process() -> None:
    mark = bytes(cargo("north", 40).memory.view[:16])  # a row's x: so it lies there
    with RecipeExecutor({"recipe.py": STEADY.encode()}, "recipe.py") as executor:
        executor.compute_on("cuda")
        Trainer(executor, SETTINGS).work([cargo("north", 40)])
    assert probe(mark) == 0
    other = bytes(reversed(mark))
    killed = subprocess.run([sys.executable, "-c", KILLED, other.hex()], check=False)
    assert killed.returncode == -signal.SIGKILL
    if not probe(other):
        pytest.skip("this driver clears what it takes back: the probe cannot tell")


def test_it_answers_there() -> None:
    with RecipeExecutor({"recipe.py": RECIPE}, "recipe.py") as executor:
        executor.compute_on("cuda")
        model = host(executor, weights())
        model.start()
        try:
            assert np.array_equal(ask(model, 7.0), 2 * rows(7.0))
        finally:
            model.close()


def test_the_driver_names_who_computes_there() -> None:
    found, why = find_gpus()
    assert found
    assert not why
    if os.readlink("/proc/self/ns/pid") != "pid:[4026531836]":
        with pytest.raises(UnavailableError, match="PID namespace"):
            other_processes()
        return
    assert {each.uuid for each in found} <= set(other_processes())
    assert all(isinstance(each, tuple) for each in other_processes().values())
