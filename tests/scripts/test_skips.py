"""A skip is only accepted where the machine lacks what the test needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HIDDEN = "import pytest\ndef test_it():\n    pytest.skip('not today')\n"
HIDDEN_FILE = "import pytest\nno = pytest.importorskip('no_such_module')\n"
EXPECTED = "import pytest\n@pytest.mark.tpm\ndef test_it():\n    pass\n"
CONFIGURATION = "[pytest]\nmarkers =\n    tpm\n    gpu\n    distributed\n"


def run_pytest(
    folder: Path, test: str, ci: str, *, options: tuple[str, ...] = ()
) -> tuple[int, str]:
    """Run one test file under this project's conftest; return status and last line."""
    shutil.copy(ROOT / "tests/conftest.py", folder)
    (folder / "test_one.py").write_text(test)
    (folder / "pytest.ini").write_text(CONFIGURATION)
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


GROUPED = """
import os, pathlib, pytest
@pytest.mark.distributed
@pytest.mark.parametrize("number", range(12))
def test_it(number):
    here = pathlib.Path(__file__).with_name("workers")
    with here.open("a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + "\\n")
"""


def test_tests_that_start_processes_run_one_at_a_time(tmp_path: Path) -> None:
    """The group is given by a marker in conftest.py; xdist must have seen it."""
    options = ("-n", "2", "--dist", "loadgroup")
    status, _ = run_pytest(tmp_path, GROUPED, "", options=options)
    workers = (tmp_path / "workers").read_text().split()
    assert (status, len(workers), len(set(workers))) == (0, 12, 1)
