"""The folder of a run: whole or not there, also when its writer is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import sealift
from sealift.cli.rundir import RunFolder, RunName
from sealift.errors import UsageError
from sealift.ids import Digest
from sealift.train.manifest import MANIFEST_NAME

NAME = RunName("digits", Digest.of(b"agreement"))
OTHER = RunName("letters", NAME.agreement)
SCRIPT = """
import os, signal, sys
from pathlib import Path
from sealift.cli.rundir import RunFolder, RunName
from sealift.ids import Digest
place, when, name = sys.argv[1:]
with RunFolder(Path(place), RunName("digits", Digest.of(b"agreement"))) as run:
    run.add(name, b"{}")
    if when == "whole":
        run.appear()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(place: Path, when: str) -> None:
    source = str(Path(sealift.__file__).parent.parent)
    words = [sys.executable, "-c", SCRIPT, str(place), when, MANIFEST_NAME]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": source}, check=False)
    assert done.returncode == -signal.SIGKILL


def test_an_orderly_end_leaves_nothing_beside_it(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", NAME) as run:
        run.add(MANIFEST_NAME, b"{}")
        run.appear()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    with pytest.raises(UsageError) as caught:
        RunFolder(tmp_path / "run", NAME)
    assert caught.value.code == "output-exists"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_killed_before_it_appears(tmp_path: Path) -> None:
    killed(tmp_path / "run", "partial")
    assert len(list(tmp_path.glob(".run.*.partial"))) == 1
    with RunFolder(tmp_path / "run", NAME) as run:
        assert not run.complete
        assert len(list(tmp_path.glob(".run.*.partial"))) == 1  # its own
        run.add(MANIFEST_NAME, b"{}")
        run.appear()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_killed_after_it_appeared(tmp_path: Path) -> None:
    """The same run has nothing to do; another one finds the place taken."""
    killed(tmp_path / "run", "whole")
    with RunFolder(tmp_path / "run", NAME) as run:
        assert run.complete
    with pytest.raises(UsageError):
        RunFolder(tmp_path / "run", NAME)
    killed(tmp_path / "second", "whole")
    with pytest.raises(UsageError):
        RunFolder(tmp_path / "second", OTHER)
    with RunFolder(tmp_path / "second", NAME) as run:
        assert run.complete


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", NAME), pytest.raises(UsageError) as caught:
        RunFolder(tmp_path / "run", NAME)
    assert caught.value.code == "output-exists"


def test_folders_with_longer_names_are_left_alone(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run.two", NAME):
        partial = next(tmp_path.glob(".run.two.*.partial"))
        with RunFolder(tmp_path / "run", NAME):
            assert partial.is_dir()
