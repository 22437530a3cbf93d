"""Run failed tests of real processes once more; say what the whole run amounts to.

`rerun.py FAILURES LOG`, after `make test-all ARGS=--failures=FAILURES | tee LOG` failed.
A test that starts real processes (`tests/sim/failures.py` says which) runs again, alone.
If it passes, it is flaky: it is noted in tests/flaky.toml, and the run has not failed
because of it. Everything else stays a failure and is not run again: another test, a
teardown, a worker that crashed, files left behind, and a test that was noted twice.

The last line has the form of pytest's closing line. Its numbers are those of the whole
run: a flaky test counts as passed and, once more, as flaky.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).resolve().parent.parent
NOTED = ROOT / "tests" / "flaky.toml"
NOTES = 2  # so often a test may be noted; then it is mended or removed
RERUNS = 10  # so many failures are no chance
TESTS_FAILED = 1  # pytest's exit status
CLOSING = re.compile(r"=+ (?P<counts>\d.*) in (?P<seconds>[0-9.]+)s.* =+")
COMMAND = [
    *(sys.executable, "scripts/offline.py", sys.executable, "-m", "pytest", "-n", "0"),
    *("-m", "not soak and not online", "--hypothesis-profile", "thorough"),
]
# What a phase's failure is called in pytest's closing line.
COUNTED_AS = {"call": "failed", "setup": "error"}


@dataclass(frozen=True)
class Failure:
    """A test that failed, the phases that did, and whether it starts processes."""

    test: str
    phases: list[str]
    starts_processes: bool

    @property
    def may_run_again(self) -> bool:
        """Not after a teardown: what that finds, others may have left."""
        return self.starts_processes and self.phases in (["call"], ["setup"])


def closing_line(log: str) -> str:
    """The last closing line of pytest in what a run printed; empty if there is none."""
    lines = [line for line in log.splitlines() if CLOSING.fullmatch(line.strip())]
    return lines[-1].strip() if lines else ""


def counts_in(line: str) -> dict[str, int]:
    """The numbers of a closing line by their word, always in the singular."""
    counts = CLOSING.fullmatch(line)
    found = re.findall(r"(\d+) ([a-z]+)", counts["counts"]) if counts else []
    return {re.sub("s$", "", word): int(number) for number, word in found}


def add_flaky(line: str, flaky: list[Failure], more_s: float) -> str:
    """The closing line of the whole run: flaky tests have passed in the end."""
    if not flaky:
        return line
    counts = Counter(counts_in(line))
    for each in flaky:
        counts[COUNTED_AS[each.phases[0]]] -= 1
        counts["passed"] += 1
        counts["flaky"] += 1
    closing = CLOSING.fullmatch(line)
    seconds = (float(closing["seconds"]) if closing else 0.0) + more_s
    words = [
        f"{number} {word}{'s' * (number > 1 and word in {'error', 'warning'})}"
        for word, number in counts.items()
        if number
    ]
    return f" {', '.join(words)} in {seconds:.2f}s ".center(80, "=")


def times_noted(noted: Path, test: str) -> int:
    """How often a test is noted as flaky."""
    entries = tomllib.loads(noted.read_text()).get("flaky", [])
    return sum(entry["test"] == test for entry in entries)


def note(noted: Path, test: str, today: date) -> None:
    """Append a test to those that failed and then passed."""
    with noted.open("a") as file:
        file.write(f"\n[[flaky]]\ntest = {json.dumps(test)}\ndate = {today}\n")


def passes_alone(test: str) -> bool:
    """Run one test by itself; its output is printed, too."""
    ran = subprocess.run(  # noqa: S603 - our own tests
        [*COMMAND, test],
        cwd=ROOT,
        env={"SEALIFT_GUEST": str(ROOT / "build/guest"), **os.environ},
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    print(ran.stdout, flush=True)
    counts = counts_in(closing_line(ran.stdout))
    counts.pop("warning", None)
    return ran.returncode == 0 and counts == {"passed": 1}


def conclude(
    record: dict[str, object],
    log: str,
    noted: Path,
    passes: Callable[[str], bool],
    today: date,
) -> tuple[int, list[str]]:
    """Run again what may; return the exit status and the last lines to print."""
    closing = closing_line(log)
    raw = record.get("failed")
    failures = [Failure(**each) for each in raw] if isinstance(raw, list) else []
    again = [each for each in failures if each.may_run_again]
    lines = []
    if record.get("exit_status") != TESTS_FAILED:
        lines.append(f"not run again: pytest ended with {record.get('exit_status')}")
    if record.get("left"):
        lines.append(f"not run again: files were left behind: {record['left']}")
    if len(again) > RERUNS:
        lines.append(
            f"not run again: {len(again)} failures of processes, over {RERUNS}"
        )
    if lines or not again:
        return 1, [*lines, closing]
    flaky = []
    began = monotonic()
    for each in again:
        if times_noted(noted, each.test) >= NOTES:
            lines.append(
                f"failed: {each.test}: was flaky {NOTES} times (tests/flaky.toml): "
                "mend or remove it"
            )
        elif passes(each.test):
            note(noted, each.test, today)
            flaky.append(each)
            lines.append(f"flaky: {each.test}: did not pass at first, but alone")
        else:
            lines.append(f"failed twice: {each.test}")
    if flaky:
        lines.append("commit tests/flaky.toml: it now has what was flaky today")
    lines.append(add_flaky(closing, flaky, monotonic() - began))
    return int(len(flaky) != len(failures)), lines


def main() -> int:
    """Judge a failed run; 0 if all that failed was flaky."""
    failures, log = (Path(argument) for argument in sys.argv[1:3])
    try:
        record = json.loads(failures.read_text())
    except (OSError, ValueError):
        record = {}  # pytest did not end: nothing is known, nothing is run again
    today = date.today()
    status, lines = conclude(record, log.read_text(), NOTED, passes_alone, today)
    print("\n".join(filter(None, lines)))
    return status


if __name__ == "__main__":
    sys.exit(main())
