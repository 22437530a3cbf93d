"""No orphans: a foreign program ends when whoever started it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.worlds.softwarehost import end_leashed, start_leashed

pytestmark = pytest.mark.distributed

PROGRAM = "echo $$ > {place}; exec sleep 60"
LEASHED = """
from tests.worlds.softwarehost import start_leashed
child = start_leashed(["sh", "-c", {program!r}])
"""
FREE = """
import subprocess
child = subprocess.Popen(["sh", "-c", {program!r}])
"""
THEN_WAIT = "child.wait()"


def test_it_ends_with_its_killed_parent(tmp_path: Path) -> None:
    assert not _survives(LEASHED, tmp_path)


def test_a_program_without_a_leash_survives(tmp_path: Path) -> None:
    """The control: the test above can fail."""
    assert _survives(FREE, tmp_path)


@pytest.mark.parametrize(("command", "code"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_its_exit_code_is_told(command: str, code: int) -> None:
    process = start_leashed(["sh", "-c", command])

    assert process.wait(300) == code
    end_leashed(process, 1)


def test_one_that_ignores_the_request_is_ended(tmp_path: Path) -> None:
    place = tmp_path / "pid"
    stubborn = f"trap '' TERM; echo $$ > {place}; while :; do sleep 0.05; done"
    process = start_leashed(["sh", "-c", stubborn])
    program = _read_pid(place)

    end_leashed(process, 0.2)

    assert _is_gone(program)


def test_a_request_that_comes_at_once_reaches_the_program() -> None:
    """The program makes it itself: the shell between has hardly begun its next line."""
    for _ in range(25):
        process = start_leashed(["eval", "kill -TERM $$; exec sleep 60"])
        assert process.wait(300) == 128 + signal.SIGTERM  # not the shell's own end
        end_leashed(process, 1)


def _survives(starter: str, folder: Path) -> bool:
    place = folder / "pid"
    text = starter.format(program=PROGRAM.format(place=place)) + THEN_WAIT
    parent = subprocess.Popen([sys.executable, "-c", text])
    program = _read_pid(place)
    parent.kill()
    parent.wait()
    survived = not _is_gone(program)
    with suppress(ProcessLookupError):
        os.kill(program, 9)
    return survived


def _read_pid(place: Path) -> int:
    until = time.monotonic() + 300
    while time.monotonic() < until:
        with suppress(OSError, ValueError):
            return int(place.read_text())
        time.sleep(0.01)
    raise AssertionError("the program did not start")


def _is_gone(program: int) -> bool:
    until = time.monotonic() + 2
    while time.monotonic() < until:
        stat = Path(f"/proc/{program}/stat")
        with suppress(OSError):
            if stat.read_text().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.01)
                continue
        return True
    return False
