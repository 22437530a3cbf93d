"""How a run treats skips, what is left behind, and which files come first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.sim.durations import longest_first
from tests.sim.runfolder import LEFT_BEHIND

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
HIDDEN = "import pytest\ndef test_it():\n    pytest.skip('not today')\n"
HIDDEN_FILE = "import pytest\nno = pytest.importorskip('no_such_module')\n"
EXPECTED = "import pytest\n@pytest.mark.tpm\ndef test_it():\n    pass\n"
CONFIGURATION = "[pytest]\nmarkers =\n    tpm\n"


def run_pytest(
    folder: Path,
    test: str,
    ci: str,
    *,
    options: tuple[str, ...] = (),
    configuration: str = CONFIGURATION,
    more: str = "",
) -> tuple[int, str]:
    """Run one test file under this project's conftest; return status and last line."""
    conftest = (ROOT / "tests/conftest.py").read_text()
    (folder / "conftest.py").write_text(conftest + more)
    (folder / "test_one.py").write_text(test)
    (folder / "pytest.ini").write_text(configuration)
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            *options,
            str(folder),
        ],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"CI": ci},
    )
    return run.returncode, run.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_a_hidden_skip_fails_in_ci(tmp_path: Path, options: tuple[str, ...]) -> None:
    status, summary = run_pytest(tmp_path, HIDDEN, "true", options=options)
    assert status == 1
    assert "1 failed" in summary


def test_a_file_skipped_for_a_missing_module_fails_in_ci(tmp_path: Path) -> None:
    status, summary = run_pytest(tmp_path, HIDDEN_FILE, "true")
    assert status != 0
    assert "1 error" in summary


def test_a_hidden_skip_is_allowed_at_a_desk(tmp_path: Path) -> None:
    status, summary = run_pytest(tmp_path, HIDDEN, "")
    assert status == 0
    assert "1 skipped" in summary


def test_a_lacking_machine_is_accepted_in_ci(tmp_path: Path) -> None:
    status, summary = run_pytest(tmp_path, EXPECTED, "true")
    has_tpm = os.access("/dev/tpmrm0", os.R_OK | os.W_OK)
    assert status == 0
    assert ("1 passed" if has_tpm else "1 skipped") in summary


ASKED = """

def _counted() -> str:
    with open(Path(__file__).with_name("asked"), "a") as file:
        file.write("once ")
    return "a TPM of this test"

NEEDS["tpm"] = _counted
"""


@pytest.mark.parametrize(
    ("options", "asked"),
    [((), "once "), (("-n", "2"), "once "), (("-k", "nothing"), "")],
    ids=["alone", "xdist", "deselected"],
)
def test_a_machine_is_asked_once_a_run_and_only_for_tests_that_run(
    tmp_path: Path, options: tuple[str, ...], asked: str
) -> None:
    _status, summary = run_pytest(
        tmp_path, EXPECTED * 2, "true", options=options, more=ASKED
    )
    found = tmp_path / "asked"
    assert (found.read_text() if found.exists() else "") == asked
    assert ("skipped" in summary) is bool(asked)


LEAVES = "import tempfile\ndef test_it():\n    tempfile.mkdtemp(prefix='world-')\n"


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_a_run_that_leaves_something_behind_fails(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """By a status of its own: no test of it failed. (A tidy one: the tests above.)"""
    status, summary = run_pytest(tmp_path, LEAVES, "", options=options)
    assert status == LEFT_BEHIND
    assert "1 passed" in summary


def test_files_that_took_long_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a.py::x[1]", "b.py::x", "a.py::y", "new.py::x", "c.py::x"]
    items: Any = [SimpleNamespace(nodeid=name) for name in names]
    monkeypatch.setattr(
        "tests.sim.durations.recorded", lambda: {"b.py": 2.0, "c.py": 30.5}
    )
    longest_first(items)
    assert [item.nodeid for item in items] == [
        *("c.py::x", "b.py::x", "a.py::x[1]", "a.py::y", "new.py::x"),
    ]
