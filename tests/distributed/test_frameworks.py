"""Scripts of other frameworks under torchrun, sealed and as they were: the same numbers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.sim.frameworks import EXAMPLES, before, launch, make_rows

pytestmark = [pytest.mark.distributed, pytest.mark.long]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where rows are, sealed and plain."""
    monkeypatch.chdir(tmp_path)
    make_rows(tmp_path)
    return tmp_path


def test_the_trainer_of_transformers_with_lora(folder: Path) -> None:
    ours = launch(folder, (EXAMPLES / "trainer.py").read_text())
    assert ours == launch(folder, before("trainer.py"))
    assert ours[0].startswith("steps 8, loss ")


def test_a_loop_with_accelerate(folder: Path) -> None:
    ours = launch(folder, (EXAMPLES / "accelerate_loop.py").read_text())
    assert ours == launch(folder, before("accelerate_loop.py"))
    assert ours[0].startswith("steps 4, loss ")


def test_a_loop_with_shards(folder: Path) -> None:
    ours = launch(folder, (EXAMPLES / "fsdp2_loop.py").read_text())
    assert ours == launch(folder, before("fsdp2_loop.py"))
    assert ours[0].startswith("steps 8, loss ")


def test_lightning_with_its_callbacks_goes_on_from_a_checkpoint(folder: Path) -> None:
    text = (EXAMPLES / "lightning_fit.py").read_text()
    whole = launch(folder, text, "2")
    assert whole[0] == launch(folder, before("lightning_fit.py"), "2")[0]
    shutil.rmtree("trained")
    first = launch(folder, text, "1")
    kept = first[-1].removeprefix("kept ")
    assert launch(folder, text, "2", kept)[0] == whole[0]
