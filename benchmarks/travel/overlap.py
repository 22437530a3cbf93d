"""How much of loading training has to wait for, and what loading beside it costs.

Real roles over one machine: orchestrator, accelerator with its training, two owners with
holder and broker each. The same job runs with one buffer and with two. ``exposed_share``
is the time from the second visit on in which the rows were not there when the training of
the visit before had ended, as a share of all time from then on. ``overlap_tax`` is the
training time of the visits while others load, beside that while nothing else happens.
Runs of both are interleaved; shares are the worst of all runs, times are medians.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final, Literal

import numpy as np

from benchmarks.report import BenchReport, Row
from sealift.channel.record.layout import DEFAULT_RECORD_BYTES
from sealift.data.sealing import DEFAULT_CELL_ROWS
from sealift.demo.folder import World
from sealift.demo.job import DemoTask, TaskSchedule, Travel, make_world, write_job
from sealift.demo.progress import Progress
from sealift.demo.run import run_travel
from sealift.demo.tasks import write_parts
from sealift.train.loop.states import Settled, TrainingState

OWNERS: Final = ("north", "east")
WIDTH: Final = 1024
ROW_BYTES: Final = 4 * WIDTH + 8  # x, and the label
HELDOUT_ROWS: Final = 64
_SCHEMA: Final = f"""\
[[fields]]
name = "x"
dtype = "float32"
shape = [{WIDTH}]

[[fields]]
name = "label"
dtype = "int64"
shape = []
min = 0
max = 9
"""
ROWS: Final = 16384  # 64 MiB a visit
VISITS: Final = 4
REPEATS: Final = 3
QUICK_ROWS, QUICK_VISITS, QUICK_REPEATS = 4096, 2, 1


@dataclass(frozen=True, slots=True)
class Stretch:
    """One visit beside the others, in seconds of one clock.

    Attributes:
        loaded: When its cargo was there, checked.
        began: When its training began.
        ended: When its training ended.
    """

    loaded: float
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Overlap:
    """What one run told.

    Attributes:
        stretches: Of each training visit, in the order of training.
        load_s: Handshake and load of each.
    """

    stretches: tuple[Stretch, ...]
    load_s: tuple[float, ...]


def measure_overlap(report: BenchReport, *, quick: bool = False) -> None:
    """Run the job with one and with two buffers, and report both."""
    rows, visits = (QUICK_ROWS, QUICK_VISITS) if quick else (ROWS, VISITS)
    work, runs = (
        wide_work(rows, visits),
        dict[Literal[1, 2], list[Overlap]]({1: [], 2: []}),
    )
    with tempfile.TemporaryDirectory(prefix="sealift-bench-") as folder:
        world = make_world(Path(folder) / "world", work, Travel(buffers=2))
        for repeat in range(QUICK_REPEATS if quick else REPEATS):
            for buffers, found in runs.items():
                again = world.again(f"{buffers}-{repeat}")
                write_job(again, work, Travel(buffers))
                found.append(_run(again))
    for buffers, found in runs.items():
        report.rows.append(_row(buffers, found, rows))
    report.ratios["exposed_share"] = _exposed(runs[2])
    report.ratios["overlap_tax"] = _train_s(runs[2]) / _train_s(runs[1])
    report.real.append("two owners, brokers and a real training loop for the overlap")


def measure_digest(model_bytes: int) -> Row:
    """Seconds of one digest of a training state of this size (rule H1)."""
    state = TrainingState(1, bytes(model_bytes), b"")
    settled = Settled(state)
    started = time.perf_counter()
    settled.verify(state)
    spent_s = time.perf_counter() - started
    return {"digest_mib": model_bytes >> 20, "digest_s": round(spent_s, 4)}


def wide_work(rows: int, visits: int) -> DemoTask:
    """So many training visits to each owner in one epoch, with so many rows each."""

    def write_tables(folder: Path) -> None:
        noise, parts = np.random.default_rng(0), []
        for owner in OWNERS:
            for part, count in (("train", rows * visits), ("heldout", HELDOUT_ROWS)):
                x = noise.standard_normal((count, WIDTH), dtype=np.float32)
                columns = {"x": x, "label": noise.integers(0, 10, count)}
                parts.append((owner, part, columns))
        write_parts(folder, _SCHEMA, parts)

    return DemoTask(
        name="overlap",
        bundle=Path(__file__).parent / "recipe",
        write_tables=write_tables,
        schedule=TaskSchedule(
            epochs=1,
            batch_rows=128,
            rows_per_visit=rows,
            row_bytes=ROW_BYTES,
            checkpoint_every=0,
        ),
        owners=OWNERS,
        baseline_alone=False,
        record_bytes=DEFAULT_RECORD_BYTES,
        cell_rows=DEFAULT_CELL_ROWS,
    )


def _run(world: World) -> Overlap:
    return read_overlap(run_travel(world, lambda *_: None, behaviour={}).progress)


def read_overlap(progress: Progress) -> Overlap:
    """The training visits, as the orchestrator told of them."""
    visits = [(dict(visit.marks), visit) for visit in progress.trained]
    visits.sort(key=lambda each: each[0]["train"])
    return Overlap(
        tuple(Stretch(at["wait"], at["train"], at["scrub"]) for at, _ in visits),
        tuple(
            sum(visit.phases_s.get(name, 0.0) for name in ("handshake", "load"))
            for _, visit in visits
        ),
    )


def exposed_share(stretches: Sequence[Stretch]) -> float:
    """Share of the time from the second visit on in which loading held training up.

    Args:
        stretches: In the order of training.
    """
    waits = (max(0.0, b.loaded - a.ended) for a, b in pairwise(stretches))
    return sum(waits) / (stretches[-1].ended - stretches[0].ended)


def idle_share(stretches: Sequence[Stretch]) -> float:
    """Share of the same time in which nothing trained, for whatever reason."""
    waits = (b.began - a.ended for a, b in pairwise(stretches))
    return sum(waits) / (stretches[-1].ended - stretches[0].ended)


def _train_s(runs: Sequence[Overlap]) -> float:
    return median(each.ended - each.began for run in runs for each in run.stretches)


def _exposed(runs: Sequence[Overlap]) -> float:
    return max(exposed_share(run.stretches) for run in runs)


def _row(buffers: int, runs: Sequence[Overlap], rows: int) -> Row:
    load_s = median(each for run in runs for each in run.load_s)
    return {
        "buffers": buffers,
        "mib": rows * ROW_BYTES >> 20,
        "visits": sum(len(run.stretches) for run in runs),
        "train_s": round(_train_s(runs), 4),
        "load_s": round(load_s, 4),
        "exposed_share": round(_exposed(runs), 5),
        "idle_share": round(max(idle_share(run.stretches) for run in runs), 4),
    }
