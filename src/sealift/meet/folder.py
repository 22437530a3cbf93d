"""One party's folder for a meeting: its identity, and which files the commands may write."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from sealift.crypto.identity import (
    Identity,
    create_identity,
    draw_passphrase,
    load_identity,
    save_identity,
)
from sealift.errors import UsageError
from sealift.ids import Digest
from sealift.release.agreement.code import ASSETS, digest_of, read_bundle
from sealift.release.agreement.terms import RecipeKind
from sealift.release.files import (
    make_folder,
    read_secret_line,
    read_whole,
    said_of_others,
    write_whole,
)

Written = Mapping[str, Collection[Digest]]
# Where the agreed recipe lies, so that a host's own program keeps its folder beside a graph.
BUNDLES: Final[Mapping[RecipeKind, str]] = {"code": "recipe", "graph": "graph"}
DECLARED_SCHEMA: Final = "host.schema.toml"
_MAX_READ: Final = 1 << 20
_WRITTEN: Final = (
    "agreement.json", "audit.db", "graph", "heads.json", DECLARED_SCHEMA, "job.toml", "meeting.json", "receipt.json",
    "receipts", "recipe", "report.html", "sealed", "state", "vault.db",
)  # fmt: skip


@dataclass
class PartyFolder:
    """A folder of one party.

    Attributes:
        folder: Where all lies.
        name: The party's.
        ask: Whether the key's passphrase is asked for, and kept in memory alone.
        kind: Of the recipe, which has a folder of its own for each.
        say: Shows a person a line.
        read_passphrase: Asks a person, with this prompt, for a passphrase that stands in
            no file; twice for one that is being chosen.
        passphrase_file: Has the passphrase, if the person has such a file elsewhere.
    """

    folder: Path
    name: str
    ask: bool = False
    kind: RecipeKind = field(default="code", init=False)
    say: Callable[[str], None] = field(kw_only=True)
    read_passphrase: Callable[[str, bool], str] = field(kw_only=True)
    passphrase_file: Path | None = field(default=None, kw_only=True)
    _memory: str = field(default="", init=False)
    _told: set[str] = field(default_factory=set, init=False)

    def __getitem__(self, name: str) -> Path:
        """The file or folder of that name."""
        return self.folder / name

    @property
    def recipe(self) -> Path:
        """The folder of the agreed recipe."""
        return self.folder / BUNDLES[self.kind]

    @property
    def key(self) -> Path:
        """The identity."""
        return self.folder / f"{self.name}.key"

    @property
    def passphrase(self) -> str:
        """The file with what opens it, as a command in this folder names it."""
        return str(self.passphrase_file or self._memory or f"{self.name}.pass")

    def identity(self) -> Identity:
        """The party's; made, with a passphrase of its own, if there is none.

        Raises:
            SealiftError: as ``load_identity``; or the disk refuses.
        """
        made = not self.key.exists()
        kept = self.passphrase_file or self[f"{self.name}.pass"]
        passphrase = ""
        if self.passphrase_file is not None:
            pass  # it is read below, or missed
        elif not self._memory and (self.ask or not (made or kept.exists())):
            self._memory = _hold(
                self.read_passphrase(f"passphrase of {self.key.name}", made)
            )
        elif made and not kept.exists():  # it exists if this was killed before the key
            # Saved as a drawn one: nobody can guess it, so it need not be stretched.
            passphrase = draw_passphrase()
            write_whole(kept, f"{passphrase}\n".encode())
        passphrase = passphrase or read_secret_line(self.folder / self.passphrase)
        if made:
            save_identity(create_identity(self.name), self.key, passphrase)
            self.say(f"created {self.key.name}, the private key of {self.name}")
            if self._memory:
                self.say("its passphrase is in no file: remember it")
            else:
                self.say(
                    f"its passphrase is in {kept.name}; back up both, share neither"
                )
        identity = load_identity(self.key, passphrase)
        for sentence in said_of_others(self.key, self.folder / self.passphrase):
            if sentence not in self._told:  # once, however often a command asks
                self.say(sentence)
                self._told.add(sentence)
        return identity

    def require_free(self) -> None:
        """Before anything is written: nothing lies here that would be replaced.

        Raises:
            UsageError: ``file-in-the-way``, with the file's name.
        """
        for name in _WRITTEN:
            if os.path.lexists(self[name]):
                raise file_exists(name)

    def require_own(
        self,
        beside: Mapping[str, bytes],
        recipe: Mapping[str, bytes],
        written: Written,
    ) -> dict[str, tuple[Digest, ...]]:
        """What is to be written replaces nothing but what this command wrote before.

        Args:
            beside: What is to be written to the folder.
            recipe: What the whole of recipe/ is to be.
            written: Digests of what this command wrote here before, by path.

        Returns:
            The same with what it writes now; a file that lies there already, with the very
            bytes that are to be written, is not its own.

        Raises:
            UsageError: ``file-in-the-way``, with the file's name.
        """
        there = self._recipe()
        found = {
            f"{self.recipe.name}/{path}": content for path, content in there.items()
        }
        wanted = {
            f"{self.recipe.name}/{path}": content for path, content in recipe.items()
        }
        for name, content in beside.items():
            wanted[name] = content
            if os.path.lexists(self[name]):
                found[name] = read_whole(self[name], _MAX_READ)
        own = {name: tuple(digests) for name, digests in written.items()}
        foreign = set()
        for name, content in found.items():
            if Digest.of(content) in written.get(name, ()):
                continue
            if content != wanted.get(name):
                raise file_exists(name)
            foreign.add(name)
        for name in wanted.keys() - foreign:
            own[name] = tuple({*own.get(name, ()), Digest.of(wanted[name])})
        return own

    def _recipe(self) -> dict[str, bytes]:
        """What lies in recipe/ now."""
        folder = self.recipe
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return {}
        return read_bundle(folder)

    def require_own_assets(
        self, declared: Mapping[str, Digest], fetched: Mapping[str, Digest]
    ) -> list[Path]:
        """Below recipe/assets/ lies nothing but what is declared, or was fetched before.

        Args:
            declared: Digests of what is to lie there, by path in the recipe.
            fetched: Digests of what this command itself put there, by path.

        Returns:
            What it put there and is declared no more.

        Raises:
            UsageError: ``file-in-the-way``, with the file's name.
            UnavailableError: a file cannot be read.
        """
        gone = []
        for path in sorted((self.recipe / ASSETS).rglob("*")):
            if path.is_dir() and not path.is_symlink():
                continue
            name = path.relative_to(self.recipe).as_posix()
            plain = path.is_file() and not path.is_symlink()
            found = digest_of(path) if plain else None
            if found is None or found not in (declared.get(name), fetched.get(name)):
                raise file_exists(f"{self.recipe.name}/{name}")
            if found != declared.get(name):
                gone.append(path)
        return gone

    def write_recipe(
        self, files: Mapping[str, bytes], written: Written = MappingProxyType({})
    ) -> None:
        """Write the recipe's files to be read; what was written before and is no part goes.

        Raises:
            UsageError: ``file-in-the-way``: another file lies in recipe/.
        """
        self.require_own({}, files, written)
        folder, there = self.recipe, self._recipe()
        for path in there.keys() - files.keys():
            (folder / path).unlink()
        for path, content in files.items():
            if there.get(path) != content:
                make_folder((folder / path).parent)
                write_whole(folder / path, content)


def file_exists(name: str) -> UsageError:
    """What is there is not replaced."""
    return UsageError(
        f"{name} exists and was not written by this meeting",
        code="file-in-the-way",
    )


def _hold(passphrase: str) -> str:
    """In a file without a name, for this process and those that it hands it to."""
    descriptor = os.memfd_create("passphrase", 0)
    os.write(descriptor, f"{passphrase}\n".encode())
    return f"/dev/fd/{descriptor}"
