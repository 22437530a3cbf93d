"""Write a file whole or not at all: a partial name, fsync, then one rename.

All of it relative to one descriptor of the folder: whoever moves the folder meanwhile
and plants another in its place changes nothing. An error or an interruption removes the
partial file. What stood under the final name before stays until the rename. A killed process may leave ``.NAME.*.partial`` behind;
nothing reads such a file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from sealift.errors import (
    SealiftError,
    UnavailableError,
    UsageError,
    is_out_of_descriptors,
    no_descriptors,
)
from sealift.ids import Buffer

FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
PARTIAL_SUFFIX: Final = ".partial"
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class OutputFile:
    """A file that is being written."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path
        self.written_bytes = 0

    def write(self, part: Buffer) -> None:
        """Append bytes.

        Raises:
            UnavailableError: if the disk is full, or the file cannot be written.
        """
        view = memoryview(part).cast("B")
        try:
            while view:
                count = os.write(self._descriptor, view)
                self.written_bytes += count
                view = view[count:]
        except OSError as error:
            raise write_failed(self._path, error) from error


@contextlib.contextmanager
def open_output(
    path: Path, *, replace: bool = False, folder: int | None = None
) -> Iterator[OutputFile]:
    """Open ``path`` for writing; it appears when the block ends without an error.

    Args:
        path: The final name.
        replace: Whether an existing file of that name is replaced.
        folder: A descriptor of the folder, where it was opened before.

    Raises:
        UsageError: if the file exists and ``replace`` is False.
        UnavailableError: if the disk is full, or the folder cannot be written.
    """
    with _folder_of(path, folder) as within:
        if not replace:
            demand_free((path,), within)
        partial = f".{path.name}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}"
        descriptor = _create(partial, within, path)
        try:
            try:
                yield OutputFile(descriptor, path)
                _sync(descriptor, path)
            finally:
                os.close(descriptor)
            _rename(partial, within, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial, dir_fd=within)
            raise


def demand_free(paths: Iterable[Path], folder: int) -> None:
    """Demand that nothing of these names stands in a folder, not even a dead link.

    Raises:
        UsageError: ``output-exists``.
    """
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.stat(path.name, dir_fd=folder, follow_symlinks=False)
            raise UsageError(f"{path} already exists", code="output-exists")


def write_failed(path: Path, error: OSError) -> SealiftError:
    """The one error for everything that goes wrong while writing ``path``."""
    if is_out_of_descriptors(error):
        return no_descriptors(error)
    if error.errno in _FULL:
        return UnavailableError(
            f"cannot write {path}", why="the disk is full", code="disk-full"
        )
    return UnavailableError(f"cannot write {path}", why=error, code="cannot-write")


@contextlib.contextmanager
def _folder_of(path: Path, folder: int | None) -> Iterator[int]:
    if folder is not None:
        yield folder
        return
    try:
        descriptor = os.open(path.parent, FOLDER)
    except OSError as error:
        raise write_failed(path, error) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _create(partial: str, folder: int, path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(partial, flags, 0o600, dir_fd=folder)
    except OSError as error:
        raise write_failed(path, error) from error


def _sync(descriptor: int, path: Path) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise write_failed(path, error) from error


def _rename(partial: str, folder: int, path: Path) -> None:
    try:
        os.replace(partial, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    except OSError as error:
        raise write_failed(path, error) from error
