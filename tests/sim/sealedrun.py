"""`sealift model seal RUN`, and what it leaves in a folder of its own."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from sealift.cli.main import main
from sealift.data.schema.card import read_card
from sealift.demo.job import World
from sealift.release.vault.vault import Vault
from sealift.serve.sealedmodel import ModelSource
from tests.sim.jobworld import identities

FORM: Final = """
[[inputs]]
name = "pixels"
dtype = "float32"
shape = [64]

[[outputs]]
name = "digit"
dtype = "int64"
"""
NAME: Final = "digits"


class Sealing:
    """Seals the model of a run, by its owner if nobody else is named."""

    def __init__(
        self, world: World, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.world, self.folder, self._capsys = world, folder, capsys
        self.form = folder / "form.toml"
        folder.mkdir()
        self.form.write_text(FORM)

    def seal(self, run: Path, party: str = "lab", **other: Path) -> int:
        """Type the command; its exit code."""
        files = {
            "agreement": self.world.agreement,
            "form": self.form,
            "vault": self.folder / "vault.db",
            "out": self.folder / "sealed",
            **other,
        }
        words = ["model", "seal", str(run), "--name", NAME]
        words += map(str, self.world.home(party).unlocking)
        for name, path in files.items():
            words += [f"--{name}", str(path)]
        self._capsys.readouterr()
        return main(words)

    def refused(self, run: Path, party: str = "lab", **other: Path) -> str:
        """The one line that it says, once it is sure that nothing was written."""
        before = self.there()
        assert self.seal(run, party, **other) > 1
        said = self._capsys.readouterr()
        assert said.out == ""
        (line,) = said.err.splitlines()
        assert self.there() == before
        return line

    def there(self) -> dict[str, bytes]:
        """Every file, with its content."""
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in files}

    def opened(self) -> bytes:
        """The model as a server opens it, with the key of its owner's vault."""
        card = read_card(self.folder / f"sealed/{NAME}.resource.json")
        vault = Vault.open(self.folder / "vault.db", identities()["lab"])
        with closing(vault):
            key = vault.fetch(NAME)
        path = self.folder / f"sealed/{NAME}.sealed"
        with closing(ModelSource(card.resource, path, card.leaves, key).open()) as made:
            return bytes(made.view)
