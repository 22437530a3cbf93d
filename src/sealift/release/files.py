"""Small files, read within a limit and written whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import stat
import tempfile
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from sealift.channel.record.outputfile import open_output, write_failed
from sealift.errors import MalformedError, UsageError, unreadable

__all__ = [
    "locked", "make_folder", "read_given_passphrase", "read_secret_line", "read_whole",
    "said_of_others", "write_failed", "write_whole",
]  # fmt: skip


STEP_BYTES: Final = 1 << 20
MAX_PASSPHRASE_BYTES: Final = 1024  # of its whole file
_NAMED: Final = "/dev/fd/"
PASSPHRASE_VARIABLE: Final = "SEALIFT_PASSPHRASE"  # noqa: S105 - its name


def read_whole(path: Path, max_bytes: int) -> bytes:
    """The bytes of a file of at most ``max_bytes``.

    Raises:
        UnavailableError: if it cannot be read.
        MalformedError: if it is longer.
    """
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > max_bytes:  # 0 of what is no file
                raise _too_large(path, max_bytes)
            raw = _read_up_to(file, max_bytes + 1)
    except OSError as error:
        raise unreadable(path, error) from None
    if len(raw) > max_bytes:
        raise _too_large(path, max_bytes)
    return raw


def read_secret_line(file: Path) -> str:
    """The first line of a file, without its end: a passphrase.

    Raises:
        UnavailableError: if the file cannot be read.
        MalformedError: code ``bad-passphrase-file``: the line is empty or not UTF-8.
    """
    lines = read_whole(file, MAX_PASSPHRASE_BYTES).splitlines()
    try:
        line = lines[0].decode("utf-8") if lines else ""
    except UnicodeDecodeError:
        raise MalformedError(
            f"{file} is not UTF-8", code="bad-passphrase-file"
        ) from None
    if not line:
        raise MalformedError(
            f"the first line of {file} is empty",
            fix="Write the passphrase on the first line",
            code="bad-passphrase-file",
        )
    return line


def read_given_passphrase(
    file: Path | None, environment: MutableMapping[str, str]
) -> str | None:
    """The first line of ``file``, or the variable, or None.

    The variable is removed, so that no child process inherits it.

    Raises:
        See ``read_secret_line``.
    """
    return (
        environment.pop(PASSPHRASE_VARIABLE, None)
        if file is None
        else read_secret_line(file)
    )


def said_of_others(*secrets: Path) -> Iterator[str]:
    """A sentence for each file of secrets that every user of the machine may read or replace."""
    for path in secrets:
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode) and mode & stat.S_IRWXO and not _is_descriptor(path):
            yield (
                f"every user of this machine can open {path.name}, which is secret; "
                f"close it: chmod go= {shlex.quote(str(path))}"
            )


def handed_on(words: Iterable[object]) -> tuple[int, ...]:
    """Descriptors that a command line names as files, for a child to inherit."""
    named = (str(each).removeprefix(_NAMED) for each in words if _is_descriptor(each))
    return tuple(int(each) for each in named)


def _is_descriptor(word: object) -> bool:
    text = str(word)
    return text.startswith(_NAMED) and text.removeprefix(_NAMED).isdecimal()


def _too_large(path: Path, max_bytes: int) -> MalformedError:
    return MalformedError(
        f"{path} is too large",
        why=f"the limit is {max_bytes:,} bytes",
        code="too-large",
    )


def _read_up_to(file: BinaryIO, most: int) -> bytes:
    """Memory follows what is there: asked for a limit at once, Python allocates it."""
    step = max(os.fstat(file.fileno()).st_size + 1, STEP_BYTES)
    parts: list[bytes] = []
    while most and (part := file.read(min(step, most))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def write_whole(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content``, synced to the disk.

    Raises:
        UnavailableError: ``disk-full`` or ``cannot-write``; ``path`` is as before.
    """
    with open_output(path, replace=True) as output:
        output.write(content)


def require_absent(path: Path) -> None:
    """Refuse to replace a file.

    Raises:
        UsageError: ``exists``.
    """
    if path.exists():
        raise UsageError(f"{path} exists already", code="exists")


def append_line(path: Path, line: bytes) -> None:
    """Add a line to a file, synced to the disk, in a time that does not grow with the file.

    What a process that was killed had begun of a line goes: nobody was told that it is there.

    Raises:
        UnavailableError: ``disk-full`` or ``cannot-write``; the file is as before.
    """
    try:
        new = not path.exists()
        with path.open("a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = _whole_lines(file.fileno())
            try:
                os.truncate(file.fileno(), size)
                for part in (line, b"\n"):
                    if file.write(part) != len(part):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fdatasync(file.fileno())
            except OSError:
                os.truncate(file.fileno(), size)
                raise
        if new:
            _sync_folder(path.parent)
    except OSError as error:
        raise write_failed(path, error) from error


def _whole_lines(descriptor: int) -> int:
    """How long a file is up to the end of its last whole line."""
    size = os.fstat(descriptor).st_size
    if not size or os.pread(descriptor, 1, size - 1) == b"\n":
        return size
    while size:
        start = max(0, size - STEP_BYTES)
        end = os.pread(descriptor, size - start, start).rfind(b"\n")
        if end >= 0:
            return start + end + 1
        size = start
    return 0


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, if it is not there; try to write to it.

    Raises:
        UnavailableError: ``disk-full`` or ``cannot-write``.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as probe:  # better now than at the end
            probe.write(b"\0")
    except FileExistsError:
        what = OSError(errno.ENOTDIR, "a file of that name exists")
        raise write_failed(path, what) from None
    except OSError as error:
        raise write_failed(path, error) from None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time, among those that ask; the lock dies with its process."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise unreadable(folder, error) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
