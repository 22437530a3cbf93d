"""How the time of a round, and of what is read afterwards, grows with the number of rounds.

Two owners and a host, all as processes on this machine; a linear model of two columns. A
round's seconds are those that the host's history has. Early and late are the first half,
without its first rounds, and the second one: of each the lowest decile, since whatever else
the machine does comes and goes within minutes. Afterwards every command that people type
on what is left is timed, with the start of its process; so is one that only starts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.growth.meetings import names, train
from benchmarks.report import BenchReport, Row, start_report

OWNERS: Final = 2


def run(*, quick: bool = False, rounds: int = 0) -> BenchReport:
    """Measure 20,000 rounds; with ``quick`` 200."""
    report = start_report("growth")
    report.real = ["host and owners as processes on this machine"]
    with tempfile.TemporaryDirectory(prefix="sealift-growth-") as folder:
        measure(report, Path(folder), rounds or (200 if quick else 20_000))
    return report


def measure(report: BenchReport, folder: Path, rounds: int) -> None:
    """Train so many rounds, and read what is left of them."""
    seconds = train(folder, OWNERS, rounds)
    lines = (folder / "host" / "run" / "history.jsonl").read_text().splitlines()
    took = [
        row["seconds"]
        for row in map(json.loads, lines)
        if row.get("purpose") == "train"
    ]
    half = len(took) // 2
    early, late = (
        _lowest_decile(took[len(took) // 10 : half]),
        _lowest_decile(took[half:]),
    )
    home = folder / names(OWNERS)[0]
    kept = list((home / "receipts").iterdir())
    row: Row = {
        "rounds": len(took),
        "seconds": round(seconds, 1),
        "early_ms": round(early * 1e3, 2),
        "late_ms": round(late * 1e3, 2),
        "receipt_files": len(kept),
        "receipts_mb": round(sum(each.stat().st_size for each in kept) / 1e6, 2),
        "run_receipt_mb": round((home / "receipt.json").stat().st_size / 1e6, 2),
        "report_mb": round((home / "report.html").stat().st_size / 1e6, 2),
    }
    commands = {
        "start_s": ["--version"],
        "receipt_verify_s": ["receipt", "verify", "receipt.json"],
        "audit_verify_s": ["audit", "verify", "audit.db"],
        "audit_kept_s": ["audit", "kept", "audit.db", "--receipts", "receipts"],
    }
    commands["audit_kept_s"] += ["--agreement", "agreement.json"]
    for name, words in commands.items():
        row[name] = round(_time(home, words), 2)
    report.rows.append(row)
    report.ratios["round_s_late_vs_early"] = round(late / early, 3)


def _lowest_decile(seconds: Sequence[float]) -> float:
    return sorted(seconds)[len(seconds) // 10]


def _time(home: Path, words: list[str]) -> float:
    began_s = time.monotonic()
    subprocess.run(  # noqa: S603 - ourselves
        [sys.executable, "-P", "-m", "sealift", *words],
        cwd=home,
        check=True,
        capture_output=True,
    )
    return time.monotonic() - began_s
