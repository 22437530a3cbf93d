"""The examples of docs/howto/frameworks under torchrun, sealed and as they were."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from sealift.cli.main import main
from tests.sim.torchranks import variables

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
    said = ("steps", "kept", "seconds")
    return [each for each in ran.stdout.splitlines() if each.startswith(said)]


def make_rows(folder: Path, count: int = 64) -> None:
    """Token rows, sealed as an owner would, and as torch saves them."""
    tokens = torch.arange(count * 16).reshape(count, 16) * 7 % 64
    with contextlib.chdir(folder):
        save_file({"input_ids": tokens, "labels": tokens.clone()}, "rows.safetensors")
        Path("pass").write_text("correct horse battery\n")
        for words in (
            "key new north -o . --passphrase-file pass",
            "data seal rows.safetensors --name rows --part train --vault vault.db --key north.key "
            "--passphrase-file pass -o sealed",
        ):
            assert main(words.split()) == 0
        torch.save([{"input_ids": each, "labels": each} for each in tokens], "rows.pt")
