"""How the time from the first command to the model grows with the number of owners.

All parties are processes on this machine, so its cores are shared by all of them: the time
of parties with machines of their own grows less. A party's memory is its own.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.growth.meetings import names, peaks_in, train
from benchmarks.report import BenchReport, Row, start_report

ROUNDS: Final = 5


def run(*, quick: bool = False) -> BenchReport:
    """Measure 4 and 16 owners; with ``quick`` 2 and 4."""
    report = start_report("growth")
    report.real = ["host and owners as processes on this machine"]
    few, many = (2, 4) if quick else (4, 16)
    took = {owners: _measure(report, owners) for owners in (few, many)}
    report.ratios[f"owners{many}_vs_{few}"] = round(took[many] / took[few], 2)
    return report


def _measure(report: BenchReport, owners: int) -> float:
    with tempfile.TemporaryDirectory(prefix="sealift-growth-") as folder:
        place, before = Path(folder), os.times()
        began_s = time.monotonic()
        with peaks_in(place) as peaks:
            seconds = train(place, owners, ROUNDS)
        after = os.times()
        cpu_s = sum(after[2:4]) - sum(before[2:4])
        row: Row = {
            "owners": owners,
            "rounds": ROUNDS,
            "to_model_s": round(seconds, 1),
            "all_ended_s": round(time.monotonic() - began_s, 1),
            "processor_s": round(cpu_s, 1),
            "host_mib": round(peaks.get("host", 0) / (1 << 20)),
            "owner_mib": round(median(peaks[n] for n in names(owners)) / (1 << 20)),
        }
        report.rows.append(row)
    return seconds
