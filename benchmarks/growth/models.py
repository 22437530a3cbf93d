"""`python -m benchmarks growth`: how much memory a model takes, in every plan.

Real roles, each a process as users start it, train a network with AdamW: two owners, two
passes, a checkpoint after each group and a held-out pass at the end. Meanwhile the kernel
is asked what each process has for itself (PSS). A rank is a parent that holds keys and
states, with the zygote and the worker that it starts. Memory files that no process maps
at the moment are nobody's PSS; they count in the rank's sum. Beside it plain torch trains
the same network, saves and loads it. Figures are peaks as multiples of the model's bytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.report import BenchReport, Row, start_report
from sealift.data.schedule.memory import free_memory_bytes
from sealift.demo.folder import World
from sealift.demo.job import DemoTask, Plan, TaskSchedule, make_world
from sealift.demo.run import run_ddp, run_local, run_travel
from sealift.demo.tasks import write_parts

OWNERS: Final = ("north", "east")
ROWS: Final = 64
ROW_BYTES: Final = 32 * 4 + 8
RECIPE: Final = Path(__file__).with_name("recipe")
SHAPES: Final = {10: (1024, 10), 30: (1024, 29), 100: (2048, 24), 300: (2048, 72)}
PLANS: Final[tuple[Plan, ...]] = ("local", "travel", "ddp")
SAMPLE_S: Final = 0.1
COUNTED_MILLIONS: Final = 100
LARGE_BYTES: Final = 16 << 30
_ZYGOTE: Final = "sealift.train.sandboxed.zygote"
_COMMANDS: Final = {"local": "train", "travel": "accelerator", "ddp": "accelerator"}
SCHEMA: Final = """\
description = "Numbers, and one of ten classes"

[[fields]]
name = "x"
dtype = "float32"
shape = [32]
min = -9.0
max = 9.0

[[fields]]
name = "label"
dtype = "int64"
classes = 10
"""


@dataclass(slots=True)
class Peaks:
    """The most that was seen of one rank, in bytes.

    Attributes:
        parent: Of the process that holds keys and states.
        worker: Of one process that runs the recipe.
        rank: Of all of them and of memory files, at one moment.
        files: Of memory files alone.
    """

    parent: int = 0
    worker: int = 0
    rank: int = 0
    files: int = 0

    def note(self, parent: int, workers: list[int], shared: int, files: int) -> None:
        """One moment."""
        whole = parent + sum(workers) - shared + max(shared, files)
        self.parent, self.rank = max(self.parent, parent), max(self.rank, whole)
        self.worker = max(self.worker, *workers, 0)
        self.files = max(self.files, files)


@dataclass(slots=True)
class Sampler:
    """Looks at every parent below this process, and at what it started, until stopped."""

    command: str
    peaks: dict[int, Peaks] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """While a run goes on."""
        thread = threading.Thread(target=self._look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _look(self) -> None:
        while not self._over.wait(SAMPLE_S):
            tree = _children()
            for pid in _below(tree, os.getpid()):
                words = _words(pid)
                if self.command in words and _ZYGOTE not in words:
                    self._note(pid, tree)

    def _note(self, parent: int, tree: dict[int, list[int]]) -> None:
        own = _memory(parent)
        below = [_memory(pid) for pid in _below(tree, parent)]
        shared = sum(each["Pss_Shmem"] for each in (own, *below))
        workers = [each["Pss"] for each in below]
        files = _memory_files(parent)
        self.peaks.setdefault(parent, Peaks()).note(own["Pss"], workers, shared, files)


def run(*, quick: bool = False) -> BenchReport:
    """Measure at 10, 100 and 300 million parameters; with ``quick`` at 10.

    Ratios are of 100 million. Those of 300 need ``LARGE_BYTES`` of free memory.
    """
    report = start_report("growth")
    report.real = ["all roles as processes on this machine", "training with AdamW"]
    sizes = [10] if quick else [10, 100]
    if not quick and free_memory_bytes() >= LARGE_BYTES:
        sizes.append(300)
    elif not quick:
        report.real.append("no model of 300 million parameters: too little free memory")
    for millions in sizes:
        plain = _measure_plain(millions)
        report.rows.append(plain)
        for plan in PLANS:
            peaks, seconds = _measure(plan, millions)
            model = _model_bytes(millions)
            found = {
                "parent_models": round(peaks.parent / model, 2),
                "worker_models": round(peaks.worker / model, 2),
                "rank_models": round(peaks.rank / model, 2),
                "file_models": round(peaks.files / model, 2),
            }
            row: Row = {"plan": plan, "million_parameters": millions, **found}
            report.rows.append({**row, "seconds": round(seconds, 1)})
            if millions > COUNTED_MILLIONS:
                continue
            report.ratios[f"parent_models_{plan}"] = found["parent_models"]
            if plan == "ddp":
                report.ratios["worker_models_ddp"] = found["worker_models"]
                report.ratios["rank_models_ddp"] = found["rank_models"]
    return report


def _measure(plan: Plan, millions: int) -> tuple[Peaks, float]:
    with tempfile.TemporaryDirectory(prefix="sealift-growth-") as folder:
        world = make_world(Path(folder) / "world", _task(folder, millions), plan=plan)
        sampler, began_s = Sampler(_COMMANDS[plan]), time.monotonic()
        with sampler.looking():
            _RUNS[plan](world)
        seconds = time.monotonic() - began_s
    worst = Peaks()
    for each in sampler.peaks.values():  # of two ranks, the larger one of each figure
        worst.parent = max(worst.parent, each.parent)
        worst.worker = max(worst.worker, each.worker)
        worst.rank = max(worst.rank, each.rank)
        worst.files = max(worst.files, each.files)
    return worst, seconds


def _quiet(*_: Any) -> None:
    """Nobody reads along."""


_RUNS: Final[dict[Plan, Callable[[World], object]]] = {
    "local": run_local,
    "travel": lambda world: run_travel(world, _quiet, behaviour={}),
    "ddp": lambda world: run_ddp(world, _quiet),
}


def _task(folder: str, millions: int) -> DemoTask:
    bundle = Path(folder) / "bundle"
    bundle.mkdir()
    (bundle / "recipe.py").write_text(_recipe(millions), encoding="utf-8")
    return DemoTask(
        name="growth",
        bundle=bundle,
        write_tables=_write_tables,
        owners=OWNERS,
        baseline_alone=False,
        schedule=TaskSchedule(
            epochs=2,
            batch_rows=ROWS,
            rows_per_visit=ROWS,
            row_bytes=ROW_BYTES,
            evaluate_every=1,
            checkpoint_every=1,
        ),
    )


def _recipe(millions: int) -> str:
    width, layers = SHAPES[millions]
    text = (RECIPE / "recipe.py").read_text(encoding="utf-8")
    text = text.replace("WIDTH = 1024", f"WIDTH = {width}")
    return text.replace("LAYERS = 10", f"LAYERS = {layers}")


def _write_tables(folder: Path) -> None:
    drawn = np.random.default_rng(7)
    parts = [
        (
            owner,
            part,
            {
                "x": drawn.normal(size=(ROWS, 32)).clip(-9, 9).astype(np.float32),
                "label": drawn.integers(0, 10, ROWS),
            },
        )
        for owner in OWNERS
        for part in ("train", "heldout")
    ]
    write_parts(folder, SCHEMA, parts)


def _model_bytes(millions: int) -> int:
    width, layers = SHAPES[millions]
    return 4 * (33 * width + layers * (width + 1) * width + (width + 1) * 10)


_PLAIN: Final = """
import sys, torch
exec(sys.stdin.read())
torch.set_num_threads(1)
model = build()
optimizer = model.configure_optimizers()
for step in range(4):
    batch = {"x": torch.randn(64, 32), "label": torch.randint(0, 10, (64,))}
    optimizer.zero_grad()
    model.training_step(batch, step).backward()
    optimizer.step()
    torch.save([model.state_dict(), optimizer.state_dict()], sys.argv[1])
    weights, moments = torch.load(sys.argv[1], weights_only=True)
    model.load_state_dict(weights)
    optimizer.load_state_dict(moments)
with open("/proc/self/status") as lines:
    print(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")))
"""


def _measure_plain(millions: int) -> Row:
    """Plain torch with a file of its own, peak of resident memory."""
    with tempfile.TemporaryDirectory(prefix="sealift-growth-") as folder:
        began_s = time.monotonic()
        said = subprocess.run(  # noqa: S603 - ourselves
            [sys.executable, "-c", _PLAIN, str(Path(folder) / "state.pt")],
            input=_recipe(millions),
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        seconds = time.monotonic() - began_s
    peak = int(said) * 1024 / _model_bytes(millions)
    return {
        "plan": "plain torch",
        "million_parameters": millions,
        "rank_models": round(peak, 2),
        "seconds": round(seconds, 1),
    }


def _children() -> dict[int, list[int]]:
    tree: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, IndexError):
                behind = (entry / "stat").read_text().rpartition(")")[2].split()
                tree.setdefault(int(behind[1]), []).append(int(entry.name))
    return tree


def _below(tree: dict[int, list[int]], pid: int) -> Iterator[int]:
    for child in tree.get(pid, ()):
        yield child
        yield from _below(tree, child)


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def _memory(pid: int) -> dict[str, int]:
    """Bytes by kind; zeroes of a process that is gone."""
    found = {"Pss": 0, "Pss_Shmem": 0}
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in found:
                found[name] = int(rest.split()[0]) * 1024
    return found


def _memory_files(pid: int) -> int:
    """Bytes of the memory files that a process holds, each once."""
    found: dict[int, int] = {}
    with suppress(OSError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if os.readlink(each).startswith("/memfd:"):
                    status = os.stat(each)
                    found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())
