"""How much of loading training has to wait for, and what loading beside it costs.

Real roles over one machine: orchestrator, accelerator with its training, two owners with
holder and broker, in a job made with the commands that users type; one passphrase for all:
it is a measurement. The same job runs with one buffer and with two. ``exposed_share`` is
the time from the second visit on in which the rows were not there when the training of
the visit before had ended, as a share of all time from then on. ``overlap_tax`` is the
training time of the visits while others load, beside that while nothing else happens.
Runs of both are interleaved; shares are the worst of all runs, times are medians.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from sealift.errors import JobError
from sealift.lab.bench.report import BenchReport, Row
from sealift.lab.bench.travel.table import Span, exposed_share, idle_share
from sealift.train.job.roleprocesses import Ended, RoleEvent, RoleProcesses
from sealift.train.loop.states import Settled, TrainingState

OWNERS: Final = ("north", "east")
PARTS: Final = ("train", "heldout")
LAB, HOST = "lab", "gpu-host"
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
_JOB: Final = """\
name = "overlap"
agreement = "agreement.json"
bundle = "recipe"
output = "run{name}"
orchestrator = "127.0.0.1:0"

[training]
epochs = 1
batch_rows = 128
threads = 1

[travel]
buffers = {buffers}
buffer_bytes = {buffer_bytes}
on_missing = "wait"

[run]
checkpoint_every = 0
"""
Words = list[str | Path]
SILENCE_S: Final = 120.0
ROWS: Final = 16384  # 64 MiB a visit
VISITS: Final = 4
REPEATS: Final = 3
QUICK_ROWS, QUICK_VISITS, QUICK_REPEATS = 4096, 2, 1


@dataclass(frozen=True, slots=True)
class Overlap:
    """What one run told.

    Attributes:
        spans: Of each training visit, in the order of training.
        load_s: Handshake and load of each.
    """

    spans: tuple[Span, ...]
    load_s: tuple[float, ...]


def measure_overlap(report: BenchReport, *, quick: bool = False) -> None:
    """Run the job with one and with two buffers, and report both."""
    rows, visits = (QUICK_ROWS, QUICK_VISITS) if quick else (ROWS, VISITS)
    runs: dict[int, list[Overlap]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory(prefix="sealift-bench-") as folder:
        world = OverlapWorld(Path(folder) / "world", rows, visits)
        for repeat in range(QUICK_REPEATS if quick else REPEATS):
            for buffers, found in runs.items():
                found.append(_run(world, buffers, repeat))
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


def _run(world: OverlapWorld, buffers: int, repeat: int) -> Overlap:
    roles = world.roles(world.job(buffers, repeat))
    told: list[RoleEvent] = []
    with RoleProcesses(world.path) as house:
        house.start("orchestrator", "sealift", roles.pop("orchestrator"))
        for each in house.listen(SILENCE_S):
            if isinstance(each, RoleEvent) and each.process == "orchestrator":
                told.append(each)
                if each.kind == "orchestrator.listening":
                    dial = ["--orchestrator", f"127.0.0.1:{each.fields['port']}"]
                    for name, words in roles.items():
                        house.start(name, "sealift", [*words, *dial])
            elif isinstance(each, Ended):
                house.require_success(each.process)
                if each.process == "orchestrator":
                    break
    return read_overlap(told)


def read_overlap(told: Iterable[RoleEvent]) -> Overlap:
    """Spans of the training visits from the orchestrator's events."""
    began: dict[str, dict[str, float]] = defaultdict(dict)
    load_s: dict[str, float] = {}
    for event in told:
        if event.fields.get("purpose") != "train":
            continue
        if event.kind == "visit.phase":
            began[event.text("visit")][event.text("phase")] = event.t_s
        elif event.kind == "visit.ended":
            load_s[event.text("visit")] = _load_s(event.fields)
    order = sorted(
        (visit for visit, phases in began.items() if "scrub" in phases),
        key=lambda visit: began[visit]["train"],
    )
    spans = tuple(
        Span(began[v]["wait"], began[v]["train"], began[v]["scrub"]) for v in order
    )
    return Overlap(spans, tuple(load_s[visit] for visit in order))


def _load_s(fields: Mapping[str, object]) -> float:
    parts = (fields.get("handshake_s", 0.0), fields.get("load_s", 0.0))
    return sum(float(part) for part in parts if isinstance(part, int | float))


def _train_s(runs: Sequence[Overlap]) -> float:
    return median(s.ended - s.began for run in runs for s in run.spans)


def _exposed(runs: Sequence[Overlap]) -> float:
    return max(exposed_share(run.spans) for run in runs)


def _row(buffers: int, runs: Sequence[Overlap], rows: int) -> Row:
    load_s = median(each for run in runs for each in run.load_s)
    return {
        "buffers": buffers,
        "mib": rows * ROW_BYTES >> 20,
        "visits": sum(len(run.spans) for run in runs),
        "train_s": round(_train_s(runs), 4),
        "load_s": round(load_s, 4),
        "exposed_share": round(_exposed(runs), 5),
        "idle_share": round(max(idle_share(run.spans) for run in runs), 4),
    }


class OverlapWorld:
    """A folder with everything that a job starts from.

    Args:
        path: Is made.
        rows: Training rows of one visit.
        visits: Training visits to each owner in one epoch.

    Raises:
        JobError: if a command fails; what it said is in the error.
    """

    def __init__(self, path: Path, rows: int, visits: int) -> None:
        path.mkdir()
        self.path, self.rows = path, rows
        (path / "passphrase").write_text(secrets.token_urlsafe(18) + "\n")
        (path / "schema.toml").write_text(_SCHEMA)
        (path / "recipe").mkdir()
        recipe = resources.files(__package__) / "recipe" / "recipe.py"
        with resources.as_file(recipe) as source:
            shutil.copyfile(source, path / "recipe" / "recipe.py")
        for party in (*OWNERS, LAB, HOST):
            self._sealift("key", "new", party)
        for owner in OWNERS:
            (path / owner / "receipts").mkdir(parents=True)
            self._seal(owner, "train", rows * visits)
            self._seal(owner, "heldout", HELDOUT_ROWS)
        self._agree()

    def job(self, buffers: int, repeat: int) -> Path:
        """A job with so many buffers; the results go to a folder of its own."""
        name, size = f"{buffers}-{repeat}", self.rows * ROW_BYTES
        job = self.path / f"job{name}.toml"
        job.write_text(_JOB.format(name=name, buffers=buffers, buffer_bytes=size))
        return job

    def roles(self, job: Path) -> dict[str, Words]:
        """What everybody types, the orchestrator first; the others add where to dial."""
        found: dict[str, Words] = {}
        for role, party in (("orchestrator", LAB), ("accelerator", HOST)):
            found[role] = [role, job]
            found[role] += ["--key", self.path / f"{party}.key"]
        for owner in OWNERS:
            home = self.path / owner
            words: Words = ["--key", self.path / f"{owner}.key", "--sealed", home]
            words += ["--vault", home / "vault.db", "--log", home / "audit.db"]
            words += ["--heads", home / "heads.json", "--receipts", home / "receipts"]
            found[owner] = ["join", job, *words]
        for each in found.values():
            each += ["--passphrase-file", self.path / "passphrase", "--events", "-"]
        return found

    def _seal(self, owner: str, part: str, rows: int) -> None:
        noise, table = np.random.default_rng(0), self.path / f"{owner}-{part}.npz"
        x = noise.standard_normal((rows, WIDTH), dtype=np.float32)
        np.savez(table, x=x, label=noise.integers(0, 10, rows))
        words: Words = ["--schema", "schema.toml", "--part", part, "-o", owner]
        words += ["--name", f"{owner}-{part}", "--vault", f"{owner}/vault.db"]
        self._sealift("data", "seal", table, *words, "--key", f"{owner}.key")
        table.unlink()

    def _agree(self) -> None:
        sealed = [f"{o}/{o}-{part}.resource.json" for o in OWNERS for part in PARTS]
        words: Words = ["--party", *(f"{party}.card.json" for party in (*OWNERS, LAB))]
        words += ["--resource", *sealed, "--code", "recipe", "-o", "agreement.toml"]
        words += ["--attester", f"{HOST}.card.json"]
        words += ["--model-owner", LAB, "--operator", LAB]
        self._sealift("agreement", "new", "--name", "overlap", *words)
        document = self.path / "agreement.toml"
        text = document.read_text()
        for name, value in {"metrics": '["loss"]', "buffers": "2"}.items():
            text = re.sub(rf"(?m)^{name} = [^#\n]*", f"{name} = {value} ", text)
        document.write_text(text)
        file = "agreement.toml"
        for party in (*OWNERS, LAB):
            self._sealift("agreement", "sign", file, "--yes", "--key", f"{party}.key")
            file = "agreement.json"

    def _sealift(self, *words: str | Path) -> None:
        secret = (self.path / "passphrase").read_text().strip()
        done = subprocess.run(  # noqa: S603 - ourselves
            [sys.executable, "-P", "-m", "sealift", *map(str, words)],
            cwd=self.path,
            env={**os.environ, "SEALIFT_PASSPHRASE": secret},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no word"])[-1]
            raise JobError("a command of the measurement failed", why=last)
