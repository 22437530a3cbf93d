"""Links that somebody put where a run's files will stand: none of them is followed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sealift.errors import UnavailableError
from sealift.ids import Digest
from sealift.train.output.runfolder import RunFolder, RunName
from sealift.travel.visit.messages import Output

NAME = RunName("digits", Digest.of(b"agreement"))
OUTPUT = Output("model.sealed", b"weights", last=True)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A file of the same user that has nothing to do with the run."""
    path = tmp_path / "other"
    path.write_text("precious")
    return path


def test_in_the_place_of_the_marker(tmp_path: Path, other: Path) -> None:
    (tmp_path / ".run.running").symlink_to(other)
    with pytest.raises(UnavailableError) as caught:
        RunFolder(tmp_path / "run", NAME)
    assert (caught.value.code, other.read_text()) == ("cannot-write", "precious")


def test_in_the_place_of_an_output(tmp_path: Path, other: Path) -> None:
    with RunFolder(tmp_path / "run", NAME) as run:
        (partial,) = tmp_path.glob(".run.*.partial")
        (partial / OUTPUT.name).symlink_to(other)
        with pytest.raises(UnavailableError):
            run.write_output(OUTPUT)
        (partial / OUTPUT.name).unlink()
        run.write_output(OUTPUT)  # control
    assert other.read_text() == "precious"
