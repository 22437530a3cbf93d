"""What the long commands' page, and the page about fed devices, show before a job is run.

Each line is typed as it stands, by a shell, in one folder for everybody; what is written
for one party is typed for the others with their names.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli.test_text import SOURCE
from tests.docs.test_boxes import boxes
from tests.docs.test_together import README, write_rows

pytestmark = [pytest.mark.distributed, pytest.mark.long]


def lines(page: str) -> list[str]:
    """Every command of the page's boxes, continued lines joined, without comments."""
    typed = "".join(text for kind, text in boxes(f"docs/howto/{page}") if not kind)
    joined = re.sub(r"\\\n\s*", "", typed).splitlines()
    return [line.split("  #")[0].strip() for line in joined if line.strip()]


def one(page: str, start: str) -> str:
    """The first command that begins so."""
    return next(line for line in lines(page) if line.startswith(start))


class Shell:
    """A folder in which `sealift` is what is tested, with a passphrase for all keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = folder / "bin" / "sealift"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m sealift "$@"\n')
        program.chmod(0o755)
        self._environment = {
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(SOURCE),
            "SEALIFT_PASSPHRASE": "a passphrase",
        }

    def type(self, line: str) -> str:
        """What it said; it has to succeed."""
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    write_rows(tmp_path / "train.csv", 0)
    return shell


def test_an_agreement_by_hand(shell: Shell) -> None:
    page = "by-hand.md"
    (shell.folder / "recipe").mkdir()
    recipe = re.findall(r"(?ms)^```python\n(.*?)^```$", README)[0]
    (shell.folder / "recipe" / "recipe.py").write_text(recipe)
    for party in ("north", "east", "lab", "cloud", "gpu-host"):
        shell.type(one(page, "sealift key new").replace("north", party))
    shell.type(one(page, "sealift data schema"))
    schema = shell.folder / "schema.toml"
    schema.write_text(f"{schema.read_text()}classes = 2\n")  # as the draft's page says
    for party in ("north", "east"):
        seal = one(page, "sealift data seal").replace("sealed/", f"{party}-sealed/")
        seal = seal.replace("north", party).replace("vault.db", f"{party}.db")
        shell.type(seal)
    shell.type(one(page, "sealift agreement new"))
    assert "rows" in shell.type(one(page, "sealift agreement check"))
    assert "def training_step" in shell.type(one(page, "sealift agreement show"))
    for party in ("north", "east", "lab", "cloud"):
        sign = one(page, "sealift agreement sign").replace("north", party)
        shell.type(f"{sign} --yes")
    assert "north" in shell.type(one(page, "sealift agreement verify"))
    assert "loss" in shell.type(one(page, "sealift try"))


def test_a_recipe_as_a_graph(shell: Shell) -> None:
    page = "graph-recipes.md"
    (shell.folder / "recipe").mkdir()
    for kind, name in (("python", "recipe.py"), ("toml", "schema.toml")):
        text = re.findall(rf"(?ms)^```{kind}\n(.*?)^```$", README)[0]
        (shell.folder / "recipe" / name).write_text(text)
    shell.type(one(page, "sealift recipe export"))
    short, whole = (
        shell.type(each)
        for each in lines(page)
        if each.startswith("sealift recipe show")
    )
    assert "operations" in short
    assert len(whole.splitlines()) > len(short.splitlines())


def test_an_agreement_for_a_fed_device(shell: Shell) -> None:
    page = "feed-a-device-process.md"
    (shell.folder / "device").mkdir()
    (shell.folder / "device" / "train.py").write_text("")
    np.savez(shell.folder / "train.npz", x=np.ones((64, 4), np.float32))
    for party in ("north", "cloud"):
        (shell.folder / f"{party}.pass").write_text("a passphrase\n")
    commands = [line for line in lines(page) if line.startswith("sealift ")]
    assert [" ".join(line.split()[1:3]) for line in commands] == [
        "key new", "key new", "data seal", "agreement new", "agreement sign",
        "agreement sign",
    ]  # fmt: skip
    for line in commands:
        shell.type(f"{line} --yes" if " sign " in line else line)
    assert (shell.folder / "agreement.json").exists()
