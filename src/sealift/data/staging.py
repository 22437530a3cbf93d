"""Files of one sealing, made in a folder of their own and put in place together.

``OUT/.NAME.sealing`` holds all of them until each is whole and the data keys are kept;
then a mark is set in it, and they move. Whoever is killed leaves that folder behind:
the next sealing of that name moves what was kept, and removes what was not.
Guarantees: without a mark no file of a sealing stands in OUT, with one its keys are
kept; a card stands there after all sealed files; no file of others is replaced or
removed. Everything is done relative to the descriptors of OUT and of the folder that was
locked, which must be this user's alone: what others plant in OUT meanwhile, links too,
changes nothing.
Not promised: two processes that place one name at the same moment on a file system
without locks. Whoever may write to OUT can remove and replace what stands there.
"""

from __future__ import annotations

import fcntl
import fnmatch
import glob
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealift.channel.record.outputfile import (
    FOLDER,
    PARTIAL_SUFFIX,
    demand_free,
    write_failed,
)
from sealift.data.schema.card import (
    CARD_SUFFIX,
    MAX_CARD_BYTES,
    SEALED_SUFFIX,
    ResourceCard,
    parse_card,
)
from sealift.data.urls import local_path
from sealift.errors import MalformedError, SealiftError, UnavailableError
from sealift.ids import check_name

SCHEMA_SUFFIX: Final = ".schema.toml"
STAGING_SUFFIX: Final = ".sealing"
MARK: Final = "placing"
_FOLDER: Final = FOLDER | os.O_NOFOLLOW
_MARK: Final = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_CARD: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
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


@dataclass(frozen=True, slots=True)
class Staging:
    """A sealing's locked folder; made by ``staged``.

    Attributes:
        out_dir: Where its files will stand, for what people read.
        out: A descriptor of that.
        descriptor: Of the locked folder itself.
    """

    out_dir: Path
    out: int
    descriptor: int

    def demand_free(self, paths: Iterator[Path]) -> None:
        """Demand that none of these files stands where it will be put.

        Raises:
            UsageError: ``output-exists``.
        """
        demand_free(paths, self.out)

    def place(self) -> None:
        """Move the files to where they will stand, once their data keys are kept.

        Raises:
            UsageError: ``output-exists``, if one would replace a file; none was moved.
            UnavailableError: if they cannot be moved; the next sealing goes on.
        """
        files = [each for each in self._names() if each.endswith(_IN_ORDER)]
        files.sort(key=_rank)
        self.demand_free(self.out_dir / file for file in files)
        with _writing(self.out_dir):
            os.close(os.open(MARK, _MARK, 0o600, dir_fd=self.descriptor))
            os.fsync(self.descriptor)
            for file in files:
                os.rename(file, file, src_dir_fd=self.descriptor, dst_dir_fd=self.out)
            os.fsync(self.out)
            os.unlink(MARK, dir_fd=self.descriptor)

    def settle(self, kept: Kept) -> bool:
        """Move what is whole and kept, remove what is not; whether it was kept."""
        names = self._names()
        if MARK in names or self._is_kept(names, kept):
            self.place()
            return True
        with _writing(self.out_dir):
            for name in names:
                os.unlink(name, dir_fd=self.descriptor)
        return False

    def _is_kept(self, names: list[str], kept: Kept) -> bool:
        """Keys are kept in one step, after every card was written: one tells of all."""
        for name in sorted(names):
            if name.endswith(CARD_SUFFIX):
                try:
                    return kept(parse_card(self._read_card(name), source=name))
                except MalformedError:
                    return False
        return False

    def _read_card(self, name: str) -> bytes:
        with _writing(self.out_dir):
            descriptor = os.open(name, _CARD, dir_fd=self.descriptor)
            with open(descriptor, "rb") as file:
                return file.read(MAX_CARD_BYTES + 1)

    def _names(self) -> list[str]:
        """What is in the folder, all of it a sealing's.

        Raises:
            UnavailableError: if something else is: nobody's files are removed.
        """
        names = os.listdir(self.descriptor)
        for name in names:
            if name != MARK and not name.endswith((*_IN_ORDER, PARTIAL_SUFFIX)):
                raise _not_ours(self.out_dir, f"{name} is not from a sealing")
        return names


@contextmanager
def staged(out_dir: Path, name: str, kept: Kept) -> Iterator[Staging]:
    """An empty folder for the files of ``name``, for this process alone.

    What an interrupted sealing left in it is settled first. Where the block ends in an
    error, so is what the block made.

    Args:
        out_dir: Where the files will stand.
        name: Of the table, or of all its shards.
        kept: Whether a card's data key is kept.

    Raises:
        UnavailableError: ``in-use``, if another process seals that name here; or if
            the folder cannot be written, or is not this user's alone.
        UsageError: if what is to be moved would replace a file.
    """
    with _claimed(out_dir, staging_folder(out_dir, name).name) as staging:
        staging.settle(kept)
        try:
            yield staging
        except BaseException:
            with suppress(SealiftError):  # what it says would hide why we are here
                staging.settle(kept)
            raise


def finish_interrupted(out_dir: Path, name: str, kept: Kept) -> bool:
    """Settle what an interrupted sealing of ``name`` left; whether its keys are kept.

    Raises:
        UnavailableError, UsageError: as ``staged``.
    """
    folder = staging_folder(out_dir, name)
    if not os.path.isdir(folder):  # not where nobody may look, either
        return False
    with _claimed(out_dir, folder.name) as staging:
        return staging.settle(kept)


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
                f"some files of {_name_of(folder.name)} are not in {folder.parent} yet",
                why="sealing was interrupted while it moved them into place",
                code="sealing-unfinished",
            )


def _name_of(folder: str) -> str:
    return folder.removesuffix(STAGING_SUFFIX).removeprefix(".")


def _rank(name: str) -> tuple[int, str]:
    return next(
        (order, name) for order, suffix in enumerate(_IN_ORDER) if name.endswith(suffix)
    )


@contextmanager
def _claimed(out_dir: Path, folder: str) -> Iterator[Staging]:
    """The folder, made if it is not there, locked, and removed again if it is empty."""
    with ExitStack() as stack:
        with _writing(out_dir):
            out = os.open(out_dir, FOLDER)
            stack.callback(os.close, out)
            descriptor = _locked(out, folder, out_dir)
            stack.callback(os.close, descriptor)
        try:
            yield Staging(out_dir, out, descriptor)
        finally:
            with suppress(OSError):  # not empty: for the next one
                os.rmdir(folder, dir_fd=out)


def _locked(out: int, folder: str, out_dir: Path) -> int:
    """A descriptor of the folder that holds its lock; the lock dies with its process."""
    while True:
        with suppress(FileExistsError):
            os.mkdir(folder, mode=0o700, dir_fd=out)
        os.fsync(out)
        try:
            descriptor = os.open(folder, _FOLDER, dir_fd=out)
        except FileNotFoundError:
            continue
        try:
            _require_ours(descriptor, out_dir)
            _lock(descriptor, folder, out_dir)
            with suppress(FileNotFoundError):
                found = os.stat(folder, dir_fd=out, follow_symlinks=False)
                if os.path.samestat(found, os.fstat(descriptor)):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # whoever had it has removed it


def _require_ours(descriptor: int, out_dir: Path) -> None:
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid():
        raise _not_ours(out_dir, "it belongs to another user")
    if found.st_mode & _OTHERS_WRITE:
        raise _not_ours(out_dir, "other users may write to it")


def _lock(descriptor: int, folder: str, out_dir: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UnavailableError(
            f"another process is sealing {_name_of(folder)} in {out_dir}", code="in-use"
        ) from None
    except OSError:  # a file system without locks
        pass


def _not_ours(out_dir: Path, why: str) -> UnavailableError:
    return UnavailableError(
        f"the working folder of the sealing in {out_dir} cannot be trusted",
        why=why,
        fix=f"Check *{STAGING_SUFFIX} there, or seal into a folder that only you can write to",
        code="cannot-write",
    )


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise write_failed(folder, error) from error
