"""The how-to for serving, typed: its boxes in their order, in one folder for everybody.

What differs from the page is in ``REPLACED``: where the server listens, and that rows of
several clients may share a batch. Identities and code are what the page says one has.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file

from sealift.cli.main import main
from sealift.release.files import PASSPHRASE_VARIABLE
from tests.sim.ownaddress import own_address
from tests.sim.terminals import FENCE

HOWTO: Final = Path(__file__).parents[2] / "docs/howto/serve-a-model.md"
PASSPHRASE: Final = "a passphrase"
SLOW: Final = 12  # rows of these take their time
RECIPE: Final = """
import time

import torch
from torch import nn


def build():
    return nn.Linear(64, 10)


def predict(model, batch):
    pixels = batch["pixels"]
    if bool((pixels == 13).all(dim=1).any()):
        raise ValueError(f"secret row {pixels}")
    probability = torch.softmax(model(pixels), dim=1)
    return {"probability": probability, "digit": probability.argmax(1), "hidden": pixels}


def generate(model, batch):
    total = batch["pixels"].sum(dim=1).long()
    slow = bool((batch["pixels"] == 12).all())
    for step in range(1000):
        time.sleep(0.05 * slow)
        yield {"next": total + step}
"""


def make_layer() -> torch.nn.Linear:
    torch.manual_seed(5)
    return torch.nn.Linear(64, 10)


def boxes(language: str) -> list[str]:
    """The page's boxes of a language, as they stand there."""
    return [
        text for found, text in FENCE.findall(HOWTO.read_text()) if found == language
    ]


def say(words: list[str]) -> None:
    """Type one command; whoever reads a passphrase from the environment takes it out."""
    os.environ[PASSPHRASE_VARIABLE] = PASSPHRASE
    try:
        assert main(words) == 0, words
    finally:
        os.environ.pop(PASSPHRASE_VARIABLE, None)


@dataclass
class ServingHowTo:
    """A folder in which the page is followed."""

    path: Path
    address: str = field(default_factory=own_address)
    lease: str = ""  # of the model's owner's rule

    def adapted(self, text: str) -> str:
        replaced: Mapping[str, str] = {
            "0.0.0.0:7420": self.address,
            "server:7420": self.address,
            "mixed = false": "mixed = true",
        }
        for old, new in replaced.items():
            text = text.replace(old, new)
        return text

    def commands(self, *start: str) -> list[list[str]]:
        """Words of the page's commands that begin so, without their comments."""
        lines = self.adapted("\n".join(boxes(""))).replace("\\\n", "")
        found = re.findall(r"^sealift (.*)$", lines, flags=re.M)
        words = [shlex.split(each, comments=True) for each in found]
        return [each for each in words if tuple(each[: len(start)]) == start]

    def type(self, *start: str) -> None:
        """Type every such command, as whoever stands in the folder."""
        for words in self.commands(*start):
            more = ["--yes"] if start[-1] == "sign" else []
            say([*words, *more])

    def prepare(self) -> None:
        """Up to the server's start: seal, agree, sign."""
        for name in ("lab", "cloud"):
            say(["key", "new", name])
        (self.path / "recipe").mkdir()
        (self.path / "recipe/recipe.py").write_text(RECIPE)
        save_file(dict(make_layer().state_dict()), self.path / "model.safetensors")
        form, job = (self.adapted(text) for text in boxes("toml"))
        (self.path / "form.toml").write_text(form)
        (self.path / "serve.toml").write_text(job)
        self.type("model", "seal")
        self.type("agreement", "new")
        toml = self.path / "serving.toml"
        text, line = toml.read_text(), "# lease_s = 60.0"
        assert line in text
        toml.write_text(text.replace(line, f"{self.lease}\n# "))
        for verb in ("check", "sign"):
            self.type("agreement", verb)
        say([*self._sign_as_cloud(), "--yes"])  # "and cloud"

    def agree_again(self, name: str) -> None:
        """Sign another agreement about the same model."""
        text = (self.path / "serving.toml").read_text()
        text = text.replace('name = "digits-served"', f'name = "{name}"')
        (self.path / f"{name}.toml").write_text(text)
        with contextlib.chdir(self.path):
            for words in (self.commands("agreement", "sign")[0], self._sign_as_cloud()):
                other = [word.replace("serving.toml", f"{name}.toml") for word in words]
                say([*other, "--yes"])

    def _sign_as_cloud(self) -> list[str]:
        sign = self.commands("agreement", "sign")[0]
        return [word.replace("lab.key", "cloud.key") for word in sign]
