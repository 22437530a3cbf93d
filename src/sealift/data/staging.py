"""Files of one sealing, made in a folder of their own and put in place together.

``OUT/.NAME.sealing`` holds all of them until each is whole and the data keys are kept;
then a mark is set in it, and they move. Whoever is killed leaves that folder behind:
the next sealing of that name moves what was kept, and removes what was not.
Guarantees: without a mark no file of a sealing stands in OUT, with one its keys are
kept; a card stands there after all sealed files; no file of others is replaced.
Not promised: two processes that place one name at the same moment on a file system
without locks.
"""

from __future__ import annotations

import fcntl
import fnmatch
import glob
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealift.channel.outputfile import write_failed
from sealift.data.card import CARD_SUFFIX, SEALED_SUFFIX, ResourceCard, read_card
from sealift.data.urls import local_path
from sealift.errors import MalformedError, SealiftError, UnavailableError, UsageError
from sealift.ids import check_name

SCHEMA_SUFFIX: Final = ".schema.toml"
STAGING_SUFFIX: Final = ".sealing"
MARK: Final = "placing"
# Not through a link: what is removed there was not put there by a sealing.
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_IN_ORDER: Final = (SEALED_SUFFIX, SCHEMA_SUFFIX, CARD_SUFFIX)

Kept = Callable[[ResourceCard], bool]


@dataclass(frozen=True, slots=True)
class SealedPaths:
    """The files that sealing a table makes; the schema only where it was inferred."""

    sealed: Path
    card: Path
    schema: Path


def sealed_paths(folder: Path, name: str) -> SealedPaths:
    """Where a resource's files stand in ``folder``."""
    return SealedPaths(
        folder / f"{name}{SEALED_SUFFIX}",
        folder / f"{name}{CARD_SUFFIX}",
        folder / f"{name}{SCHEMA_SUFFIX}",
    )


def staging_folder(out_dir: Path, name: str) -> Path:
    """Where the files of ``name`` are made, which is a name: all in it is ours."""
    check_name(name, what="resource name")
    return out_dir / f".{name}{STAGING_SUFFIX}"


@contextmanager
def staged(out_dir: Path, name: str, kept: Kept) -> Iterator[Path]:
    """An empty folder for the files of ``name``, for this process alone.

    What an interrupted sealing left in it is settled first. Where the block ends in an
    error, so is what the block made.

    Args:
        out_dir: Where the files will stand.
        name: Of the table, or of all its shards.
        kept: Whether a card's data key is kept.

    Raises:
        UnavailableError: ``in-use``, if another process seals that name here; or if
            the folder cannot be written.
        UsageError: if what is to be moved would replace a file.
    """
    folder = staging_folder(out_dir, name)
    with _claimed(folder):
        _settle(folder, out_dir, kept)
        try:
            yield folder
        except BaseException:
            with suppress(SealiftError):  # what it says would hide why we are here
                _settle(folder, out_dir, kept)
            raise


def finish_interrupted(out_dir: Path, name: str, kept: Kept) -> bool:
    """Settle what an interrupted sealing of ``name`` left; whether its keys are kept.

    Raises:
        UnavailableError, UsageError: as ``staged``.
    """
    folder = staging_folder(out_dir, name)
    if not os.path.isdir(folder):  # not where nobody may look, either
        return False
    with _claimed(folder):
        return _settle(folder, out_dir, kept)


def place(folder: Path, out_dir: Path) -> None:
    """Move the files of ``folder`` to ``out_dir``, once their data keys are kept.

    Raises:
        UsageError: ``output-exists``, if one would replace a file; none was moved.
        UnavailableError: if they cannot be moved; the next sealing goes on.
    """
    files = sorted(_finished(folder), key=_rank)
    demand_free(out_dir / file.name for file in files)
    mark = folder / MARK
    with _writing(folder):
        mark.touch(mode=0o600)
        sync_folder(folder)
        for file in files:
            file.rename(out_dir / file.name)
        sync_folder(out_dir)
        mark.unlink()


def demand_free(paths: Iterator[Path]) -> None:
    """Demand that nothing stands at any of the paths.

    Raises:
        UsageError: ``output-exists``.
    """
    for path in paths:
        if os.path.lexists(path):
            raise UsageError(
                f"{path} exists already",
                fix="Choose another name, or remove it first",
                code="output-exists",
            )


def demand_all_placed(place: str) -> None:
    """Demand that no shard that a path or a pattern names, nor its card, still has to move.

    Raises:
        UnavailableError: ``sealing-unfinished``: what stands there is not all of it.
    """
    path = local_path(place)
    if path is None:
        return
    wanted = (path.name, path.name.removesuffix(SEALED_SUFFIX) + CARD_SUFFIX)
    for mark in glob.iglob(str(path.parent / f".*{STAGING_SUFFIX}" / MARK)):
        folder = Path(mark).parent
        try:
            names = os.listdir(folder)
        except FileNotFoundError:  # done meanwhile
            continue
        if any(fnmatch.filter(names, pattern) for pattern in wanted):
            raise UnavailableError(
                f"not all files of {_name_of(folder)} are in {folder.parent}",
                why="sealing was stopped while they were put in place",
                fix="Run the same `sealift data seal` again: it goes on",
                code="sealing-unfinished",
            )


def sync_folder(folder: Path) -> None:
    """Bring a folder's entries to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _settle(folder: Path, out_dir: Path, kept: Kept) -> bool:
    """Move what is whole and kept, remove what is not; whether it was kept."""
    if (folder / MARK).exists() or _is_kept(folder, kept):
        place(folder, out_dir)
        return True
    with _writing(folder):
        for path in folder.iterdir():
            path.unlink()
    return False


def _is_kept(folder: Path, kept: Kept) -> bool:
    """Keys are kept in one step, after every card was written: one tells of all."""
    for path in sorted(folder.glob(f"*{CARD_SUFFIX}")):
        try:
            return kept(read_card(path))
        except MalformedError:
            return False
    return False


def _finished(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if path.name.endswith(_IN_ORDER))


def _name_of(folder: Path) -> str:
    return folder.name.removesuffix(STAGING_SUFFIX).removeprefix(".")


def _rank(path: Path) -> tuple[int, str]:
    return next(
        (order, path.name)
        for order, suffix in enumerate(_IN_ORDER)
        if path.name.endswith(suffix)
    )


@contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """The folder, made if it is not there, locked, and removed again if it is empty."""
    with _writing(folder):
        descriptor = _locked(folder)
    try:
        yield
    finally:
        with suppress(OSError):  # not empty: for the next one
            folder.rmdir()
        os.close(descriptor)


def _locked(folder: Path) -> int:
    """A descriptor of the folder that holds its lock; the lock dies with its process."""
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)
        try:
            descriptor = os.open(folder, _FOLDER)
        except FileNotFoundError:
            continue
        try:
            _lock(descriptor, folder)
            with suppress(FileNotFoundError):
                if os.path.samestat(folder.lstat(), os.fstat(descriptor)):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # whoever had it has removed it


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UnavailableError(
            f"another process is sealing {_name_of(folder)} in {folder.parent}",
            fix="Wait until it ends, or seal into another folder",
            code="in-use",
        ) from None
    except OSError:  # a file system without locks
        pass


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise write_failed(folder, error) from error
