"""One party's folder: what lies where, under names that a person understands."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sealift.cli.arguments import Parser
from sealift.cli.console import read_passphrase, say
from sealift.crypto.identity import (
    Identity,
    create_identity,
    draw_passphrase,
    load_identity,
    save_identity,
)
from sealift.meet.invitation import PREFIX, Invitation, parse_invitation
from sealift.release.files import read_secret_line, read_whole, write_whole

_MAX_READ: Final = 1 << 16


def add_ask_argument(parser: Parser) -> None:
    """Add ``--passphrase``."""
    parser.add_flag("--passphrase", "ask for the key's passphrase; no file keeps it")


def read_invitation(text: str) -> Invitation:
    """The invitation in a file, from standard input for ``-``, or the line itself.

    Raises:
        MalformedError: code ``bad-invitation``.
        UnavailableError: the file cannot be read.
    """
    if text.startswith(PREFIX):
        say(
            "every user of this machine can read this invitation in the list of processes; "
            "save it in a file and name the file"
        )
    elif text == "-":
        source = sys.stdin  # at a terminal, answers follow on it
        text = source.readline(_MAX_READ) if source.isatty() else source.read(_MAX_READ)
    else:
        text = read_whole(Path(text), _MAX_READ).decode("utf-8", "replace")
    return parse_invitation(text)


@dataclass
class Place:
    """A folder of one party.

    Attributes:
        folder: Where all lies.
        name: The party's.
        ask: Whether the key's passphrase is asked for, and kept in memory alone.
    """

    folder: Path
    name: str
    ask: bool = False
    _memory: str = field(default="", init=False)

    def __getitem__(self, name: str) -> Path:
        """The file or folder of that name."""
        return self.folder / name

    @property
    def key(self) -> Path:
        """The identity."""
        return self.folder / f"{self.name}.key"

    @property
    def passphrase(self) -> str:
        """The file with what opens it, as a command in this folder names it."""
        return self._memory or f"{self.name}.pass"

    def identity(self) -> Identity:
        """The party's; made, with a passphrase of its own, if there is none.

        Raises:
            SealiftError: as ``load_identity``; or the disk refuses.
        """
        made = not self.key.exists()
        kept = self[f"{self.name}.pass"]
        if not self._memory and (self.ask or not (made or kept.exists())):
            self._memory = _hold(
                read_passphrase(
                    None, prompt=f"passphrase of {self.key.name}", twice=made
                )
            )
        elif made:
            write_whole(kept, f"{draw_passphrase()}\n".encode())
        passphrase = read_secret_line(self.folder / self.passphrase)
        if made:
            save_identity(create_identity(self.name), self.key, passphrase)
            say(f"made {self.key.name}, the identity of {self.name}")
            held = (
                "your memory"
                if self._memory
                else f"{kept.name}: keep both, show neither"
            )
            say(f"what opens it is in {held}")
        return load_identity(self.key, passphrase)

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


def _hold(passphrase: str) -> str:
    """In a file without a name, for this process and those that it hands it to."""
    descriptor = os.memfd_create("passphrase", 0)
    os.write(descriptor, f"{passphrase}\n".encode())
    return f"/dev/fd/{descriptor}"
