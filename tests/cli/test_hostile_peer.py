"""What a hostile accelerator says reaches neither the terminal raw nor the run's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from sealift.cli.roles import open_events
from sealift.errors import MalformedError
from sealift.events import emit
from sealift.ids import Digest
from sealift.release.agreement.signed import load_signed, verify
from sealift.train.output.runfolder import RunFolder, RunName
from sealift.travel.orchestrator.job import RunSummary
from sealift.travel.settings import JobSettings
from sealift.travel.visit.messages import JobFinished, Output
from tests.sim.jobworld import Wishes, fresh_world


def test_no_control_character_reaches_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    emit(open_events(""), "visit.ended", line="bad\x1b[2J\rgood\u202e")
    assert "\x1b" not in (told := capsys.readouterr().err)
    assert "\r" not in told
    assert "\\x1b[2J" in told


@pytest.mark.parametrize("manifest", [b"", b"[]", b"{}", b"\xff" * 40])
def test_a_manifest_of_nobody_leaves_no_run(tmp_path: Path, manifest: bytes) -> None:
    world = fresh_world(tmp_path / "world", Wishes())
    agreement = verify(load_signed(world.agreement))
    summary = RunSummary(1, 0, JobFinished(manifest, b"x" * 64), b"", ())
    place = tmp_path / "run"
    with RunFolder(place, RunName("digits", Digest.of(b"agreement"))) as folder:
        folder.write_output(Output("model.sealed", b"x", last=True))
        with pytest.raises(MalformedError):
            folder.finish(summary, agreement, JobSettings(), lambda _: None)
    assert not place.exists()
    assert list(tmp_path.glob(".run*")) == []
