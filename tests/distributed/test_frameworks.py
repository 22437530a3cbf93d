"""Scripts of other frameworks under torchrun, sealed and as they were: the same numbers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sealift.cli.main import main
from tests.sim.torchranks import variables

pytestmark = [pytest.mark.distributed, pytest.mark.long]
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/frameworks"
PAGES = [
    each.read_text("utf-8") for each in (ROOT / "docs/howto/frameworks").glob("*.md")
]
MOST_CHANGED = 5


def diff_of(name: str) -> tuple[list[str], list[str]]:
    """Lines that the page adds to a script, and those that it takes out."""
    (page,) = (each for each in PAGES if f"examples/frameworks/{name}" in each)
    (found,) = re.findall(r"^```diff\n(.*?)^```$", page, re.M | re.S)
    lines = found.splitlines()
    return (
        [each[1:] for each in lines if each.startswith("+")],
        [each[1:] for each in lines if each.startswith("-")],
    )


def before(name: str) -> str:
    """The script as it was, by the page's diff."""
    text = (EXAMPLES / name).read_text()
    for line in re.findall(r"  # (?:noqa: F401 - )?(?:new|was [^\n]*)$", text, re.M):
        text = text.replace(line, "")
    added, taken = diff_of(name)
    assert len(added) <= MOST_CHANGED
    for number, line in enumerate(added):
        assert text.count(f"{line}\n") == 1, line
        text = text.replace(
            f"{line}\n", "" if number < len(added) - 1 else "\n".join([*taken, ""])
        )
    return text


def launch(folder: Path, text: str, *words: str) -> list[str]:
    """What the first rank printed at the end.

    ``folder`` takes torchrun's temporary folders, too: it leaves them behind.
    """
    (folder / "script.py").write_text(text)
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--local-addr", "127.0.0.1", "--nproc-per-node", "2"),
            *("script.py", *words),
        ],
        cwd=folder,
        env=os.environ | variables() | {"HF_HUB_OFFLINE": "1", "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return [
        each for each in ran.stdout.splitlines() if each.startswith(("steps", "kept"))
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Token rows, sealed as an owner would, and as torch saves them."""
    monkeypatch.chdir(tmp_path)
    tokens = torch.arange(64 * 16).reshape(64, 16) * 7 % 64
    save_file({"input_ids": tokens, "labels": tokens.clone()}, "rows.safetensors")
    Path("pass").write_text("correct horse battery\n")
    for words in (
        "key new north -o . --passphrase-file pass",
        "data seal rows.safetensors --name rows --part train --vault vault.db --key north.key "
        "--passphrase-file pass -o sealed",
    ):
        assert main(words.split()) == 0
    torch.save(
        [{"input_ids": each, "labels": each} for each in tokens], tmp_path / "rows.pt"
    )
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
