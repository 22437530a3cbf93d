"""One party's folder: what lies where, under names that a person understands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sealift.cli.console import say
from sealift.crypto.identity import (
    Identity,
    create_identity,
    draw_passphrase,
    load_identity,
    save_identity,
)
from sealift.release.files import read_secret_line, write_whole


@dataclass(frozen=True)
class Place:
    """A folder of one party.

    Attributes:
        folder: Where all lies.
        name: The party's.
    """

    folder: Path
    name: str

    def __getitem__(self, name: str) -> Path:
        """The file or folder of that name."""
        return self.folder / name

    @property
    def key(self) -> Path:
        """The identity."""
        return self.folder / f"{self.name}.key"

    @property
    def passphrase(self) -> Path:
        """What opens it, for whoever may read it."""
        return self.folder / f"{self.name}.pass"

    def identity(self) -> Identity:
        """The party's; made, with a passphrase of its own, if there is none.

        Raises:
            SealiftError: as ``load_identity``; or the disk refuses.
        """
        if not self.key.exists():
            passphrase = draw_passphrase()
            write_whole(self.passphrase, f"{passphrase}\n".encode())
            save_identity(create_identity(self.name), self.key, passphrase)
            say(f"made {self.key.name}, the identity of {self.name}")
            say(f"what opens it is in {self.passphrase.name}: keep both, show neither")
        return load_identity(self.key, read_secret_line(self.passphrase))

    def write_recipe(self, files: dict[str, bytes]) -> None:
        """Write the recipe's files to be read; what lies there and is no part of it goes."""
        folder = self["recipe"]
        for path, content in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.is_file() or target.read_bytes() != content:
                write_whole(target, content)
        for found in [each for each in folder.rglob("*") if each.is_file()]:
            if found.relative_to(folder).as_posix() not in files:
                found.unlink()
