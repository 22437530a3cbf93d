"""How the time of a job that travels grows with its holders, each with a broker beside it.

All roles are processes on this machine. The accelerator visits every holder once, in one
pass; a visit's time is what its phases took, from the load to the scrub.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from benchmarks.growth.meetings import RECIPE, SCHEMA, names
from benchmarks.report import BenchReport, Row, start_report
from sealift.demo.job import DemoTask, TaskSchedule, make_world
from sealift.demo.run import run_travel
from sealift.demo.tasks import write_parts

ROWS: Final = 64
ROW_BYTES: Final = 2 * 4 + 8


def run(*, quick: bool = False) -> BenchReport:
    """Measure 8 and 62 holders; with ``quick`` 2 and 8.

    62 are, with the model's owner and the operator, as many as an agreement takes.
    """
    report = start_report("growth")
    report.real = ["all roles as processes on this machine"]
    for holders in (2, 8) if quick else (8, 62):
        measure(report, holders)
    return report


def measure(report: BenchReport, holders: int) -> None:
    """One job with so many holders."""
    visits: list[float] = []
    with tempfile.TemporaryDirectory(prefix="sealift-growth-") as folder:
        world = make_world(Path(folder) / "world", _task(folder, names(holders)))
        began_s = time.monotonic()
        run_travel(world, partial(_watch, visits), behaviour={})
        seconds = time.monotonic() - began_s
    row: Row = {
        "holders": holders,
        "visits": len(visits),
        "seconds": round(seconds, 1),
        "visit_ms": round(median(visits) * 1e3, 1),
    }
    report.rows.append(row)


def _watch(visits: list[float], _progress: object, event: Any) -> None:
    if event.kind == "visit.ended" and event.fields["outcome"] == "verified":
        phases = (each for name, each in event.fields.items() if name.endswith("_s"))
        visits.append(sum(map(float, phases)))


def _task(folder: str, owners: list[str]) -> DemoTask:
    bundle = Path(folder) / "bundle"
    bundle.mkdir()
    (bundle / "recipe.py").write_text(RECIPE, encoding="utf-8")
    return DemoTask(
        name="growth",
        bundle=bundle,
        write_tables=partial(_write_tables, owners),
        owners=tuple(owners),
        baseline_alone=False,
        schedule=TaskSchedule(
            epochs=1,
            batch_rows=ROWS,
            rows_per_visit=ROWS,
            row_bytes=ROW_BYTES,
            evaluate_every=1,
            checkpoint_every=0,
        ),
    )


def _write_tables(owners: list[str], folder: Path) -> None:
    drawn = np.random.default_rng(7)
    parts = []
    for owner in owners:
        for part in ("train", "heldout"):
            age, dose = drawn.normal(size=(2, ROWS)).astype(np.float32)
            healed = (age + dose > 0).astype(np.int64)
            parts.append((owner, part, {"age": age, "dose": dose, "healed": healed}))
    write_parts(folder, SCHEMA, parts)
