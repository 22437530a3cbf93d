"""`make mutants` notices what it is there for: survivors, and mutants that are gone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
MODULE = """
class Door:
    def opens(self, key: int) -> bool:
        return key == 7

    def closes(self) -> bool:
        return True
"""
TEST = """
from room.door import Door

def test_opens():
    assert Door().opens(7) and not Door().opens(8)
"""


CAUGHT = {
    "at": "room.door.Door.opens",
    "line": "key == 7",
    "becomes": "True",
    "breaks": "one key opens",
    "tests": ["tests/test_door.py"],
}
NOT_CAUGHT = {
    "survived": {"at": "room.door.Door.closes", "line": "True", "becomes": "False"},
    "0 times": {"line": "key == 8"},
    "is not in": {"at": "room.door.Door.locks"},
    "no module": {"at": "room.gate"},
    "invalid syntax": {"becomes": "key =="},
    "tested nothing": {"at": "room.door", "line": "class Door:", "becomes": "class D:"},
}


def run_mutants(folder: Path, *mutants: dict[str, Any]) -> tuple[int, list[str]]:
    """Try mutants in a project of one module and one test."""
    for name in ("scripts", "src/room", "tests/mutants"):
        (folder / name).mkdir(parents=True)
    shutil.copy(ROOT / "scripts/mutants.py", folder / "scripts")
    (folder / "src/room/door.py").write_text(MODULE)
    (folder / "tests/test_door.py").write_text(TEST)
    entries = [
        "\n".join(["[[mutant]]", *(f"{k} = {json.dumps(v)}" for k, v in each.items())])
        for each in mutants
    ]
    (folder / "tests/mutants/door.toml").write_text("\n".join(entries))
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    quickly = "import mutants; mutants.TEST_S = 3; raise SystemExit(mutants.main())"
    ran = subprocess.run(
        [sys.executable, "-c", quickly],
        cwd=folder / "scripts",
        env={**os.environ, "WORKERS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.returncode, ran.stdout.splitlines()


def test_a_mutant_is_caught(tmp_path: Path) -> None:
    status, lines = run_mutants(tmp_path, CAUGHT)
    assert status == 0
    assert lines[1].startswith("caught")


def test_one_that_hangs_is_seen_only_where_the_list_says_so(tmp_path: Path) -> None:
    hangs = CAUGHT | {"becomes": "__import__('time').sleep(600)"}
    status, lines = run_mutants(tmp_path, hangs, hangs | {"hangs": True})
    assert status == 1
    assert lines[1].startswith("SURVIVED")
    assert "hung" in lines[2]
    assert lines[-2].startswith("caught")


def test_what_no_test_sees_and_what_is_gone_fail(tmp_path: Path) -> None:
    status, lines = run_mutants(tmp_path, *(CAUGHT | m for m in NOT_CAUGHT.values()))
    assert status == 1
    assert sum(line.startswith("SURVIVED") for line in lines) == len(NOT_CAUGHT)
    for said in NOT_CAUGHT:
        assert any(said in line for line in lines), said


def test_tests_that_fail_without_a_mutant_show_nothing(tmp_path: Path) -> None:
    status, lines = run_mutants(tmp_path, CAUGHT | {"tests": ["tests/test_gone.py"]})
    assert status == 1
    assert any("without any mutant" in line for line in lines)


def test_every_mutant_of_the_list_is_found() -> None:
    """So that who moves a line moves its mutant, long before all of them are tried."""
    listing = "import mutants\nfor m in mutants.read_list():\n"
    listing += "    m.apply((mutants.ROOT / m.path()).read_text())\nprint('all')\n"
    ran = subprocess.run(
        [sys.executable, "-c", listing],
        cwd=ROOT / "scripts",
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout == "all\n", ran.stderr


def test_help_says_what_it_does_and_runs_nothing() -> None:
    words = [sys.executable, ROOT / "scripts" / "mutants.py", "--help"]
    ran = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    assert "Break the product one line at a time" in ran.stdout
    assert "caught" not in ran.stdout
