"""How `data schema` and `data seal` of a text table grow with it, beside pandas.

Each arm is a process as users start it, with its start: ``sealift data schema``, ``sealift data
seal`` with that schema, and plain ``pandas.read_csv`` with ``numpy.save`` of all numbers. They run in
turn over one file, which lies in the page cache; a figure is a median of wall time, with
the most memory that the process had. Tables are sixteen columns of numbers with four decimals
and four of integers; ten million rows are one million ten times over.

pandas is no dependency: without it (``SEALIFT_PANDAS`` may name an interpreter that has it) there
are no ratios.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from benchmarks.report import BenchReport, start_report

SIZES: Final = ((10_000, 20), (100_000, 20), (1_000_000, 20), (10_000, 200))
MANY_ROWS: Final = 10_000_000
COUNTED: Final = (1_000_000, 20)  # of which the ratios are
_MILLION: Final = 1_000_000
_PIECE_ROWS: Final = 50_000
_PANDAS: Final = "import sys, numpy, pandas; numpy.save(sys.argv[2], pandas.read_csv(sys.argv[1]).to_numpy())"


@dataclass
class Arm:
    """One command, and what its runs took."""

    name: str
    command: Sequence[str]
    leaves: Sequence[Path]
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    peak_mb: float = 0.0

    def run(self) -> None:
        """Start it, and wait for its end."""
        for path in self.leaves:
            path.unlink(missing_ok=True)
        began_s = time.perf_counter()
        quiet = os.open(os.devnull, os.O_WRONLY)
        moves = [(os.POSIX_SPAWN_DUP2, quiet, at) for at in (1, 2)]
        pid = os.posix_spawn(
            self.command[0], [*self.command], os.environ, file_actions=moves
        )
        _, status, used = os.wait4(pid, 0)
        os.close(quiet)
        if status:
            raise RuntimeError(f"{self.name} ended with status {status}")
        self.seconds.append(time.perf_counter() - began_s)
        self.cpu.append(used.ru_utime + used.ru_stime)
        self.peak_mb = max(self.peak_mb, used.ru_maxrss / 1024)


def run(*, quick: bool = False) -> BenchReport:
    """Measure all sizes; with ``quick`` up to a million rows, once each."""
    report = start_report("growth")
    report.real = [
        "every command a process with its start, files in the page cache",
    ]
    python = _with_pandas()
    if python is None:
        report.real.append("without pandas, so there are no ratios")
    with tempfile.TemporaryDirectory(prefix="sealift-tables-") as name:
        folder = Path(name)
        for rows, columns in SIZES:
            path = folder / f"{rows}x{columns}.csv"
            _write_elsewhere(path, rows, columns)
            _measure(report, path, rows, columns, python, 1 if quick else 3)
        if not quick:
            path = folder / "many.csv"
            _write_elsewhere(path, MANY_ROWS, 20)
            _measure(report, path, MANY_ROWS, 20, python, 1)
    return report


def _with_pandas() -> str | None:
    stated = os.environ.get("SEALIFT_PANDAS")
    return stated or (sys.executable if find_spec("pandas") else None)


def _write_elsewhere(path: Path, rows: int, columns: int) -> None:
    """In a process of its own: what this one ever had counts as a child's peak, too."""
    writer = get_context("spawn").Process(
        target=write_table, args=(path, rows, columns)
    )
    writer.start()
    writer.join()
    if writer.exitcode:
        raise RuntimeError(f"{path.name} could not be written")


def write_table(path: Path, rows: int, columns: int) -> None:
    """Write a table of numbers; rows beyond a million are those of the first million again."""
    numbers = np.random.default_rng(rows)
    header = ",".join(f"{'abcd'[place % 4]}{place}x" for place in range(columns))
    with path.open("wb") as file:
        file.write(header.encode() + b"\n")
        for start in range(0, min(rows, _MILLION), _PIECE_ROWS):
            count = min(_PIECE_ROWS, rows - start)
            kinds = [place % 5 < 4 for place in range(columns)]
            cells = [
                np.char.mod("%.4f", numbers.normal(size=count) * 10)
                if decimals
                else numbers.integers(0, 1000, count).astype(str)
                for decimals in kinds
            ]
            lines = map(",".join, zip(*cells, strict=True))
            file.write("\n".join(lines).encode() + b"\n")
    if rows > _MILLION:
        body = path.read_bytes()[len(header) + 1 :]
        with path.open("ab") as file:
            for _ in range(rows // _MILLION - 1):
                file.write(body)


def _measure(
    report: BenchReport,
    path: Path,
    rows: int,
    columns: int,
    python: str | None,
    repeats: int,
) -> None:
    """The arms over one file, in turn."""
    arms = _arms(path, python)
    for _ in range(repeats):
        for arm in arms:
            arm.run()
    took = {arm.name: median(arm.seconds) for arm in arms}
    for arm in arms:
        report.rows.append({
            "rows": rows,
            "columns": columns,
            "arm": arm.name,
            "seconds": round(took[arm.name], 2),
            "cpu_s": round(median(arm.cpu), 2),
            "peak_mb": round(arm.peak_mb),
        })  # fmt: skip
    if (rows, columns) == COUNTED and "pandas" in took:
        report.ratios["schema_vs_pandas"] = round(took["schema"] / took["pandas"], 2)
        report.ratios["seal_vs_pandas"] = round(took["seal"] / took["pandas"], 2)
    if rows == MANY_ROWS:
        report.ratios["seal_many_s"] = round(took["seal"], 1)
        report.ratios["schema_many_s"] = round(took["schema"], 1)


def _arms(path: Path, python: str | None) -> list[Arm]:
    folder = path.parent
    sealift = [sys.executable, "-P", "-m", "sealift"]
    key, passphrase = folder / "north.key", folder / "pass"
    if not key.exists():
        passphrase.write_text("only for this measurement\n")
        words = ["key", "new", "north", "--passphrase-file", str(passphrase)]
        Arm("key", [*sealift, *words, "-o", str(folder)], []).run()
    schema, name = folder / "schema.toml", "t"
    made = [folder / f"{name}{end}" for end in (".sealed", ".resource.json")]
    seal = [
        "data", "seal", str(path), "--schema", str(schema), "--name", name, "--part", "train",
        "--vault", str(folder / "vault.db"), "--key", str(key),
        "--passphrase-file", str(passphrase), "-o", str(folder),
    ]  # fmt: skip
    arms = [
        Arm(
            "schema",
            [*sealift, "data", "schema", str(path), "-o", str(schema)],
            [schema],
        ),
        Arm("seal", [*sealift, *seal], [*made, folder / "vault.db"]),
    ]
    if python is not None:
        saved = folder / "plain.npy"
        arms.append(
            Arm("pandas", [python, "-c", _PANDAS, str(path), str(saved)], [saved])
        )
    return arms
