"""A demo's folder: for one demo at a time, and rid of its secrets afterwards."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sealift.errors import UsageError
from sealift.lab.worlds.folder import World
from sealift.release.files import write_failed

MARK: Final = ".sealift-demo"  # whoever finds it may replace the folder


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
        _lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def remove_secrets(path: Path) -> None:
    """Keys, passphrases and data of a demo go; receipts, logs and heads stay."""
    if not (path / MARK).is_file():
        return  # no demo made anything here
    world = World(path)
    shutil.rmtree(path / "tables", ignore_errors=True)
    for home in world.homes():
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
            _remove(left)
    if any(path.iterdir()):
        raise UsageError(
            f"{path} is not empty", why="no earlier demo made it", code="exists"
        )
    (path / MARK).touch()


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"another demo is running in {path}", code="exists") from None


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
