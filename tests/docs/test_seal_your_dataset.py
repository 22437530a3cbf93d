"""The how-to: its commands, its diff and its examples are what it says they are."""

from __future__ import annotations

import difflib
import io
import re
import runpy
import shlex
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from sealift.cli.main import main
from sealift.crypto.identity import create_identity, save_identity

ROOT = Path(__file__).parents[2]
HOWTO = ROOT / "docs" / "howto" / "seal-your-dataset.md"
EXAMPLES = ROOT / "examples" / "sealed_dataset"


def losses(script: str) -> list[float]:
    said = io.StringIO()
    with redirect_stdout(said):
        runpy.run_path(str(EXAMPLES / script))
    return [float(line.rpartition(" ")[2]) for line in said.getvalue().splitlines()]


def test_a_training_script_becomes_a_sealed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(600, 8)).astype(np.float32)
    np.savez("train.npz", x=x, label=np.argmax(x[:, :3], axis=1))
    save_identity(create_identity("north"), tmp_path / "north.key", "a passphrase")
    Path("north.pass").write_text("a passphrase\n")
    command = re.search(r"^sealift (data seal .*)$", HOWTO.read_text(), re.MULTILINE)
    assert command is not None
    words = shlex.split(command[1])
    assert main([*words, "--passphrase-file", "north.pass"]) == 0
    assert 'name = "label"\ndtype = "int64"' in capsys.readouterr().err
    plain, sealed = losses("plain.py"), losses("sealed.py")
    for run in (plain, sealed):
        assert len(run) == 5
        assert run[-1] < 0.5 < run[0] + 0.5
    Path("sealed/train.sealed").rename("elsewhere")
    with pytest.raises(Exception, match=r"cannot read shard train.sealed"):
        losses("sealed.py")


def test_the_diff_is_that_of_the_examples() -> None:
    before, after = (
        EXAMPLES.joinpath(name).read_text().splitlines()
        for name in ("plain.py", "sealed.py")
    )
    assert len(after) <= 25
    shown = HOWTO.read_text().partition("```diff\n")[2].partition("```")[0]
    expected = list(difflib.unified_diff(before, after, lineterm=""))[2:]
    assert shown.splitlines() == expected
