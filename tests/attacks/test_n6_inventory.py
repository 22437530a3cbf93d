"""N6: all that a recipe has of its machine stands in one table, each with its reason.

A recipe in a real worker looks around and prints what no row explains: descriptors,
system calls, paths. The kernel answers it, not the product. A row that is missing, and a
thing too many, are found.
"""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sealift.train.loop.trainer import Trainer
from sealift.train.sandbox import inventory
from sealift.train.sandbox.inventory import readable
from sealift.train.worker.executor import BEST, RecipeExecutor
from sealift.travel.settings import TrainingSettings
from tests.sim import lookaround
from tests.sim.inside import demand, look
from tests.sim.memoryscan import family
from tests.unit.train.joints import cargo

pytestmark = pytest.mark.distributed
RECIPE = b"""
import json
import os
import time

import lookaround
import torch
from torch import nn



def build():
    found = {
        "descriptors": {str(n): kind for n, kind in lookaround.descriptors().items()},
        "unexplained": lookaround.unexplained_descriptors(),
        "calls": lookaround.unexplained_calls(lookaround.known_calls()),
    }
    kept = os.open("/dev/null", os.O_RDONLY)
    found["one more"] = lookaround.unexplained_descriptors()
    os.close(kept)
    print(json.dumps(found))
    return nn.Linear(4, 2)


def configure_optimizers(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def loss(model, batch):
    time.sleep(PAUSE)
    return model(batch["x"]).sum()
"""


@contextmanager
def shop(wanted: str = BEST, pause_s: float = 0.0) -> Iterator[tuple[Any, io.StringIO]]:
    text = io.StringIO()
    files = {
        "recipe.py": RECIPE.replace(b"PAUSE", str(pause_s).encode()),
        "lookaround.py": Path(lookaround.__file__).read_bytes(),
    }
    with RecipeExecutor(files, "recipe.py", wanted=demand(wanted), text=text) as made:
        assert made.sandbox == wanted  # the kernel gives it, so it is in force
        yield made, text


def test_a_recipe_has_the_descriptors_and_calls_of_the_table_alone() -> None:
    with shop() as (made, text):
        Trainer(made, TrainingSettings(seed=1, batch_rows=2)).build()
    found = json.loads(text.getvalue())
    assert found["unexplained"] == []
    assert found["descriptors"] == {"0": "null", "1": "p", "2": "p", "3": "s"}
    assert found["calls"] == []
    assert found["one more"] == [4]  # control: it would see one


def test_one_call_more_is_found() -> None:
    """The control of the test above, for calls: a filter that lets one more through."""
    demand("seccomp")
    assert look("one_call_more", EXTRA="98") == [98]


def test_a_recipe_sees_the_paths_of_the_table_alone() -> None:
    """Without Landlock, which would hide what the mounts show too many of."""
    demand("namespaces")
    unexplained, with_a_row_fewer = look("world_paths")
    assert unexplained == []
    assert with_a_row_fewer  # control


def test_every_row_has_a_reason() -> None:
    tables: tuple[Mapping[Any, str], ...] = (
        inventory.DESCRIPTORS,
        inventory.MACHINE_FACTS,
        inventory.DEVICES,
        inventory.GPU_FILES,
        inventory.GPU_FACTS,
        inventory.LIBRARIES,
        readable(),
    )
    assert all(why.strip() for table in tables for why in table.values())
    assert list(inventory.DESCRIPTORS) == [0, 1, 2, inventory.TALK]


def test_the_kernel_says_the_same_of_a_worker_from_outside() -> None:
    """All layers of a worker at work; whoever may look into another process sees them."""
    if os.geteuid() != 0 or not may_compare():
        pytest.skip("this machine lacks the right to look into another process")
    with shop(pause_s=0.3) as (made, _text):
        training = Trainer(made, TrainingSettings(seed=1, batch_rows=2))
        working = threading.Thread(target=lambda: training.work([cargo("ada", 16)]))
        before = set(family(os.getpid()))
        working.start()
        try:
            worker = newcomer(before, working)
            found = eventually(worker, working)
        finally:
            working.join()
    assert found["descriptors"] == {str(number) for number in inventory.DESCRIPTORS}
    assert found["Seccomp"] == "2"
    assert found["NoNewPrivs"] == "1"
    assert int(found["CapPrm"], 16) == int(found["CapBnd"], 16) == 0
    assert found["shared namespaces"] == []
    # Text is this task's: a null device or a pipe that its parent opened for it.
    assert found["shared with the parent"] <= {1, 2}
    assert found["shared with who forks"] == set()


def test_one_open_file_in_two_processes_is_seen() -> None:
    """The control of the test above."""
    if not may_compare():
        pytest.skip("this machine lacks the right to compare processes' open files")
    ours = os.open(os.devnull, os.O_RDONLY)
    again, other = os.dup(ours), os.open(os.devnull, os.O_RDONLY)
    try:
        assert same_file(os.getpid(), ours, os.getpid(), again)
        assert not same_file(os.getpid(), ours, os.getpid(), other)
    finally:
        for each in (ours, again, other):
            os.close(each)


def newcomer(before: set[int], working: threading.Thread) -> int:
    while working.is_alive():
        if found := set(family(os.getpid())) - before:
            return max(found)
    raise AssertionError("no worker was seen")


def eventually(worker: int, working: threading.Thread) -> dict[str, Any]:
    """What the kernel says of a worker once its filter is in force."""
    while working.is_alive():
        lines = Path(f"/proc/{worker}/status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        if status["Seccomp"] == "2":
            return status | {
                "descriptors": set(os.listdir(f"/proc/{worker}/fd")),
                "shared with the parent": shared(worker, os.getpid()),
                "shared with who forks": shared(worker, parent_of(worker)),
                "shared namespaces": [
                    kind
                    for kind in ("net", "ipc", "uts", "mnt", "pid")
                    if namespace(worker, kind) == namespace(os.getpid(), kind)
                ],
            }
    raise AssertionError("no filter was seen")


def namespace(process: int, kind: str) -> str:
    return os.readlink(f"/proc/{process}/ns/{kind}")


def parent_of(process: int) -> int:
    """As this process numbers it."""
    return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])


def shared(process: int, other: int) -> set[int]:
    """Descriptors of a process whose open file the other one has, too."""
    theirs = [int(each) for each in os.listdir(f"/proc/{other}/fd")]
    return {
        mine
        for mine in inventory.DESCRIPTORS
        if any(same_file(process, mine, other, each) for each in theirs)
    }


def same_file(process: int, descriptor: int, other: int, its: int) -> bool:
    """By kcmp(2): one open file, or two of one name."""
    number = {"x86_64": 312, "aarch64": 272}[os.uname().machine]
    return bool(
        lookaround.LIBC.syscall(number, process, other, 0, descriptor, its) == 0
    )


def may_compare() -> bool:
    return same_file(os.getpid(), 0, os.getpid(), 0)
