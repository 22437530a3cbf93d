"""What `sealift host` leaves beside the model once the run has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from sealift.cli.meeting import host
from sealift.cli.meeting.place import open_folder
from sealift.meet.runs import MeetingRun


@pytest.mark.parametrize(
    ("code", "receipt", "ends", "left"),
    [
        (0, True, 0, ["receipt.json", "report.html"]),
        (0, False, 5, ["report.html"]),  # it was refused, and the model is kept
        (
            5,
            True,
            5,
            [],
        ),  # the model cannot be opened: nothing says that the run is over
    ],
)
def test_report_and_receipt_stand_beside_a_model_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    code: int,
    receipt: bool,
    ends: int,
    left: list[str],
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "report.html").write_text("<p>")
    if receipt:
        (run / "receipt.json").write_text("{}")
    monkeypatch.setattr(host, "long_command", lambda words, *, prints: code)
    assert host._open_model(open_folder(tmp_path, "host"), MeetingRun(1, "")) == ends
    assert sorted(each.name for each in tmp_path.iterdir() if each != run) == left
    printed = capsys.readouterr().out.split()
    assert printed == ([] if ends else ["model.safetensors"])
