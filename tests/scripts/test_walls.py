"""`make walls` notices what grows, and what has one user only."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BROKER = "class Broker:\n    def release(self): ...\n\n\ndef start(): ...\n"
DOOR = "from sealift.release.broker import Broker, start\n"
TABLE = """
[rooms]
release = { code = 5, public = 2 }
[alone]
"""


def complaints(folder: Path, files: dict[str, str], table: str = TABLE) -> str:
    (folder / "scripts").mkdir()
    for script in ("walls.py", "sizes.py"):
        shutil.copy(ROOT / "scripts" / script, folder / "scripts")
    (folder / "scripts" / "walls.toml").write_text(table)
    room = folder / "src" / "sealift" / "release"
    room.mkdir(parents=True)
    for name, source in files.items():
        (room / f"{name}.py").write_text(source)
    command = [sys.executable, folder / "scripts" / "walls.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode == 1) is bool(done.stderr)
    return done.stderr


HOUSE = {"broker": BROKER, "door": DOOR, "gate": DOOR}


def test_a_house_within_its_walls_passes(tmp_path: Path) -> None:
    assert complaints(tmp_path, HOUSE) == ""


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"broker": BROKER + "x = 1\ny = 2\nz = 3\n"}, "release: code 8, the table"),
        ({"broker": "", "door": "", "gate": ""}, "and the table still says"),
        ({"broker": BROKER + "class B: ...\n"}, "release: public 3, the table"),
        (
            {"broker": BROKER + "class P(Protocol):\n    def release(self): ...\n"},
            "protocol sealift.release.broker.P has one user",
        ),
        ({"gate": DOOR + "def lonely(): ...\n"}, "gate.lonely has one user"),
    ],
)
def test_what_does_not_fit_is_said(
    tmp_path: Path, files: dict[str, str], complaint: str
) -> None:
    assert complaint in complaints(tmp_path, HOUSE | files)


def test_a_reason_is_taken_out_with_what_it_was_for(tmp_path: Path) -> None:
    table = TABLE + '"function sealift.release.broker.start" = "the gate is to come"\n'
    assert "start has other users now" in complaints(tmp_path, HOUSE, table)
