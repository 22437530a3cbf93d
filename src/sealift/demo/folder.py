"""A world of real processes: one folder, and one in it for each party.

Where everything lies, who takes part, whose folder it is, and what goes at the end.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sealift.errors import UsageError
from sealift.release.files import write_failed

OWNERS: Final = ("north", "east", "south")  # bring data
MODEL_OWNER: Final = "lab"  # brings the recipe, gets the model
OPERATOR: Final = "cloud"  # runs the orchestrator
HOST: Final = "gpu-host"  # runs the accelerator
SERVERS: Final = {"P": "cloud-a", "M": "cloud-b", "Z": "cloud-c"}  # multiply shares
_NOBODY: Final[Mapping[str, str]] = {}
MARK: Final = ".sealift-demo"  # whoever finds it may replace the folder
Words = list[str | Path]


class Home:
    """One party's own folder: keys and cards, an owner's stores, sealed files, receipts.

    Args:
        path: The folder.
        act: Of the demo; empty for the first one. Each has receipts of its own.
    """

    def __init__(self, path: Path, act: str = "") -> None:
        self.path = path
        self.key = path / "identity.key"
        self.card = path / "party.card.json"
        self.passphrase = path / "passphrase"  # what people keep in their heads
        self.vault = path / "vault.db"
        self.log = path / "audit.db"
        self.heads = path / "heads.json"
        self.sealed = path / "sealed"
        self.receipts = path / f"receipts{act}"

    # What its party types, beside the command and the job.

    @property
    def unlocking(self) -> Words:
        """How its key is opened."""
        return ["--key", self.key, "--passphrase-file", self.passphrase]

    @property
    def stores(self) -> Words:
        """Where an owner's broker keeps what it keeps."""
        return ["--vault", self.vault, "--log", self.log]

    @property
    def cargo(self) -> Words:
        """What an owner's holder brings, and where it keeps what it gets."""
        kept: Words = ["--receipts", self.receipts, "--heads", self.heads]
        return ["--sealed", self.sealed, *kept]


class World:
    """The folder of all.

    Args:
        path: The folder.
        act: Of the demo; empty for the first one. Each has a job and results of its own.
        owners: Who bring data.
        servers: Who multiplies shares, by share; empty where nobody does.
    """

    def __init__(
        self,
        path: Path,
        act: str = "",
        owners: tuple[str, ...] = OWNERS,
        servers: Mapping[str, str] = _NOBODY,
    ) -> None:
        self.path, self.act, self.owners, self.servers = path, act, owners, servers
        self.parties = (*owners, MODEL_OWNER, OPERATOR, HOST, *servers.values())
        self.job = path / f"job{act}.toml"
        self.agreement = path / "agreement.json"  # signed
        self.bundle = path / "recipe"  # the code that all parties agreed on
        self.tables = path / "tables"  # what the owners seal, in plaintext
        self.run = path / f"run{act}"  # the results
        self.model = path / "model.safetensors"  # as its owner opened it
        self.report = path / "report.html"
        self.kernels = path / "kernels"  # as the servers compiled them

    def home(self, party: str) -> Home:
        """A party's folder."""
        return Home(self.path / party, self.act)

    def again(self, act: str) -> World:
        """The same parties, for another job."""
        return World(self.path, act, self.owners, self.servers)


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Make a demo's folder, and keep other demos out of it while the block runs.

    Raises:
        UsageError: if another demo is running there.
        UnavailableError: if the disk refuses.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise write_failed(path, error) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another demo is running in {path}", code="exists"
            ) from None
        yield
    finally:
        os.close(descriptor)


def remove_secrets(path: Path) -> None:
    """Keys, passphrases and data of a demo go; receipts, logs and heads stay."""
    if not (path / MARK).is_file():
        return  # no demo made anything here
    world = World(path, servers=SERVERS)
    shutil.rmtree(world.tables, ignore_errors=True)
    for home in map(world.home, world.parties):
        shutil.rmtree(home.sealed, ignore_errors=True)
        for secret in (home.key, home.passphrase, home.vault):
            secret.unlink(missing_ok=True)


def clear(path: Path) -> None:
    """Make the folder; what an earlier demo left there goes, nothing else.

    Raises:
        UsageError: if it is not empty and no earlier demo's.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    if (path / MARK).is_file():
        for left in path.iterdir():
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:
                left.unlink()
    if any(path.iterdir()):
        raise UsageError(
            f"{path} is not empty", why="no earlier demo made it", code="exists"
        )
    (path / MARK).touch()
