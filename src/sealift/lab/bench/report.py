"""What every benchmark writes: rows, ratios, and what in them is real.

The format is the same for all (DESIGN section 6), so that results can be compared over
commits and machines.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sealift.errors import UnavailableError

Row = dict[str, str | int | float | bool]


@dataclass(slots=True)
class BenchReport:
    """The result of one benchmark.

    Attributes:
        real: What was measured on this machine.
        modelled: What was computed from a model, each with its source.
        recorded: What was read from files of other machines.
        ratios: Named as in DESIGN section 6.
    """

    bench: str
    commit: str
    machine: dict[str, str | int | float]
    real: list[str] = field(default_factory=list)
    modelled: list[str] = field(default_factory=list)
    recorded: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    ratios: dict[str, float] = field(default_factory=dict)

    def to_text(self) -> str:
        """What is real and what is not, rows and ratios, a line each."""
        said = {"modelled": self.modelled, "recorded": self.recorded}
        notes = (f"{name}: {each}" for name, found in said.items() for each in found)
        rows = (
            "  ".join(f"{name}={value}" for name, value in row.items())
            for row in self.rows
        )
        ratios = (f"{name} {ratio:.2f}" for name, ratio in self.ratios.items())
        return "\n".join((*notes, *rows, *ratios))

    def to_json(self) -> str:
        """One JSON document."""
        return json.dumps(asdict(self), indent=2)

    def write(self, path: str | Path) -> None:
        """Write the JSON document.

        Raises:
            UnavailableError: if the file cannot be written.
        """
        try:
            Path(path).write_text(self.to_json() + "\n")
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise UnavailableError(f"cannot write {path}", why=why) from error


def start_report(bench: str) -> BenchReport:
    """An empty report about this commit and this machine."""
    return BenchReport(bench, _commit(), _machine())


def _machine() -> dict[str, str | int | float]:
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.machine()


def _commit() -> str:
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    folder = Path(__file__).parent
    try:
        found = subprocess.run(  # noqa: S603 - fixed command
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return found.stdout.strip() or "unknown"
