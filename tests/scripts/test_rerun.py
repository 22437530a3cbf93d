"""What fails and passes alone is flaky; all else that fails stays a failure."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from scripts import rerun
from tests.scripts.test_skips import CONFIGURATION, ROOT, run_pytest

pytestmark = pytest.mark.long

TODAY = date(2026, 11, 26)
LOG = """\
FAILED tests/a.py::one - TimeoutError
=========== 2 failed, 20 passed, 3 skipped, 1 error in 812.30s (0:13:32) ===========
make: *** [Makefile:53: test-all] Error 1
"""


def failure(test: str, *phases: str, processes: bool = True) -> dict[str, Any]:
    return {"test": test, "phases": list(phases), "starts_processes": processes}


class Runs:
    """A run that ended, and what its failed tests do when they run alone."""

    def __init__(self, folder: Path) -> None:
        self.noted = folder / "flaky.toml"
        self.noted.write_text("# nothing yet\n")
        self.again: list[str] = []

    def judge(
        self, *failed: dict[str, Any], passes: bool = True, **record: Any
    ) -> tuple[int, list[str]]:
        def alone(test: str) -> bool:
            self.again.append(test)
            return passes

        whole = {"exit_status": 1, "left": [], "failed": list(failed), **record}
        return rerun.conclude(whole, LOG, self.noted, alone, TODAY)

    def notes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = tomllib.loads(self.noted.read_text()).get(
            "flaky", []
        )
        return found


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


ALL = (failure("a", "call"), failure("b[1-x]", "call"), failure("c", "setup"))


def test_what_passes_alone_is_flaky_and_noted(runs: Runs) -> None:
    status, lines = runs.judge(*ALL)
    assert status == 0
    assert runs.again == ["a", "b[1-x]", "c"]
    assert runs.notes() == [{"test": t, "date": TODAY} for t in runs.again]
    assert [line for line in lines if line.startswith("flaky: ")] == lines[:3]
    counts = rerun.counts_in(lines[-1])
    assert counts == {"passed": 23, "skipped": 3, "flaky": 3}


def test_failing_twice_is_a_failure(runs: Runs) -> None:
    status, lines = runs.judge(*ALL, passes=False)
    assert status == 1
    assert runs.notes() == []
    assert rerun.counts_in(lines[-1]) == rerun.counts_in(rerun.closing_line(LOG))


def test_the_last_line_counts_what_still_failed(runs: Runs) -> None:
    status, lines = runs.judge(ALL[0], failure("b", "call", processes=False), ALL[2])
    assert status == 1
    assert runs.again == ["a", "c"]
    assert rerun.counts_in(lines[-1]) == {
        "failed": 1, "passed": 22, "skipped": 3, "flaky": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    "failed",
    [
        failure("a", "call", processes=False),
        failure("a", "teardown"),
        failure("a", "call", "teardown"),
        failure("a", "???"),
    ],
    ids=["no-process", "teardown", "both", "crash"],
)
def test_nothing_else_is_run_again(runs: Runs, failed: dict[str, Any]) -> None:
    status, _ = runs.judge(failed)
    assert (status, runs.again, runs.notes()) == (1, [], [])


@pytest.mark.parametrize(
    "record",
    [{"exit_status": 2}, {"exit_status": 7}, {"exit_status": None}, {"left": ["x"]}],
)
def test_a_run_that_failed_otherwise_stays_failed(
    runs: Runs, record: dict[str, Any]
) -> None:
    status, _ = runs.judge(*ALL, **record)
    assert (status, runs.again) == (1, [])


def test_many_failures_are_no_chance(runs: Runs) -> None:
    status, _ = runs.judge(*(failure(f"t{n}", "call") for n in range(11)))
    assert (status, runs.again) == (1, [])


def test_the_third_time_is_a_failure(runs: Runs) -> None:
    statuses = [runs.judge(ALL[0])[0] for _ in range(3)]
    # Two other failures of the log are not this test's, and count nothing here.
    assert statuses == [0, 0, 1]
    assert runs.again == ["a", "a"]
    assert len(runs.notes()) == 2


def test_no_record_and_no_closing_line_is_a_failure(runs: Runs) -> None:
    assert rerun.conclude({}, "make: no", runs.noted, lambda _: True, TODAY)[0] == 1


def test_the_last_line_of_a_flaky_run_names_no_failure() -> None:
    flaky = [rerun.Failure("a", ["call"], True)]
    line = rerun.add_flaky(
        "=== 1 failed, 2 passed, 2 warnings in 3.00s ===", flaky, 1.5
    )
    assert line.strip("= ") == "3 passed, 2 warnings, 1 flaky in 4.50s"
    assert rerun.closing_line(f"before\n{line}\nafter") == line


FLAKY = """
import os, pytest
@pytest.mark.distributed
def test_it():
    if not os.path.exists(MARK):
        open(MARK, "w").close()
        raise OSError("the machine was busy")
def test_other():
    pass
"""


@pytest.mark.parametrize("options", [("-n", "0"), ("-n", "1")], ids=["alone", "xdist"])
def test_a_run_records_its_failures(tmp_path: Path, options: tuple[str, ...]) -> None:
    path = tmp_path / "failures.json"
    configuration = CONFIGURATION + "    distributed\n"
    status, _ = run_pytest(
        tmp_path,
        FLAKY.replace("MARK", repr(str(tmp_path / "ran"))),
        "true",
        options=(*options, f"--failures={path}"),
        configuration=configuration,
    )
    assert status == 1
    record = json.loads(path.read_text())
    assert (record["exit_status"], record["left"]) == (1, [])
    [failed] = record["failed"]
    assert failed["test"].endswith("::test_it")
    assert (failed["phases"], failed["starts_processes"]) == (["call"], True)


def test_the_script_runs_a_flaky_test_alone_and_ends_well(tmp_path: Path) -> None:
    """A project of one flaky test, as `.ci/run` treats this one."""
    for name in ("scripts", "tests"):
        (tmp_path / name).mkdir()
    for name in ("rerun.py", "offline.py"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    (tmp_path / "tests/flaky.toml").write_text("")
    markers = "distributed\n    soak\n    online\n"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers =\n    {markers}")
    test = "tests/test_one.py::test_it"
    text = FLAKY.replace("MARK", repr(str(tmp_path / "ran")))
    (tmp_path / "tests/test_one.py").write_text(text)
    (tmp_path / "tests/conftest.py").write_text(
        "from hypothesis import settings\nsettings.register_profile('thorough')\n"
    )
    (tmp_path / "ran").touch()  # it failed before
    (tmp_path / "log").write_text("===== 1 failed, 1 passed in 0.10s =====\n")
    record = {"exit_status": 1, "left": [], "failed": [failure(test, "call")]}
    (tmp_path / "failures.json").write_text(json.dumps(record))
    ran = subprocess.run(
        [sys.executable, "scripts/rerun.py", "failures.json", "log"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    last = ran.stdout.splitlines()[-1]
    assert rerun.counts_in(last) == {"passed": 2, "flaky": 1}
    assert tomllib.loads((tmp_path / "tests/flaky.toml").read_text())["flaky"]


def test_what_is_noted_exists_and_stands_there_twice_at_most() -> None:
    entries = tomllib.loads(rerun.NOTED.read_text()).get("flaky", [])
    for each in entries:
        path, _, name = each["test"].partition("::")
        assert (
            f"def {name.partition('[')[0].split('::')[-1]}("
            in Path(ROOT, path).read_text()
        )
        assert isinstance(each["date"], date)
    counts = Counter(each["test"] for each in entries)
    assert all(count <= rerun.NOTES for count in counts.values()), counts
