"""An owner's folder as another version left it: what is read on, and what is refused in one line.

`tests/worlds/kept` has the folder of a made-up owner after a meeting and its job, as it was
on 27 November 2026, before agreements said more about sums, runs and privacy.
"""

from __future__ import annotations

import hashlib
import sqlite3
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

KEPT = Path(__file__).parents[1] / "worlds/kept/owner-2026-11-27.tar.gz"


@pytest.fixture
def owner(tmp_path: Path) -> Path:
    with tarfile.open(KEPT) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "north"


def sealift(folder: Path, *words: str) -> tuple[int, str]:
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "sealift", *words],
        cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return ran.returncode, ran.stdout + ran.stderr


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_vault_and_log_of_an_older_version_go_on(owner: Path) -> None:
    """They are upgraded, copied, and restored on another machine."""
    stores = ("--vault", "vault.db", "--log", "audit.db")
    code, said = sealift(owner, "broker", "upgrade", *stores[:2], "-o", "before")
    assert code == 0, said
    code, said = sealift(owner, "broker", "backup", *stores, "-o", "copy")
    assert code == 0, said
    machine = owner.parent / "machine"
    machine.mkdir()
    (owner / "copy").rename(machine / "copy")
    code, said = sealift(machine, "broker", "restore", "copy", *stores)
    assert code == 0, said
    before = sealift(owner, "audit", "verify", "audit.db", "--json")
    after = sealift(machine, "audit", "verify", "audit.db", "--json")
    assert before[0] == after[0] == 0
    assert before[1].splitlines()[0] == after[1].splitlines()[0]
    assert '"releases": 1' in after[1]


def test_a_meeting_of_another_version_is_refused_and_left_as_it_is(owner: Path) -> None:
    before = digests(owner)
    code, said = sealift(owner, "join", "invitation", "table.csv")
    assert code == 6
    assert said.count("\n") == 1
    assert said.rstrip().endswith("[state-version]")
    assert digests(owner) == before


def test_a_vault_of_a_newer_version_is_refused_and_left_as_it_is(owner: Path) -> None:
    with sqlite3.connect(owner / "vault.db") as newer:
        newer.execute("PRAGMA user_version = 99")
    newer.close()
    before = digests(owner)
    code, said = sealift(
        owner, "broker", "backup", "--vault", "vault.db", "--log", "audit.db", "-o", "c"
    )
    assert code == 6
    assert said.count("\n") == 1
    assert said.rstrip().endswith("[vault-version]")
    assert {n: d for n, d in digests(owner).items() if n in before} == before
