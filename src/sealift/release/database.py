"""SQLite as this room uses it: durable, private to its owner, with our errors.

A committed transaction is on the disk: write-ahead log with ``synchronous=FULL``, which
syncs the log at every commit (a tenth of a rollback journal's time here). While a file is
open, part of it lies in ``-wal`` beside it: a copy is made by ``copy_database``. Changes
that come while the disk is busy share the next sync (``GroupCommit``).
Source: sqlite.org/wal.html, sqlite.org/pragma.html#pragma_synchronous.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final, Generic, TypeVar

from sealift.errors import (
    MalformedError,
    SealiftError,
    UnavailableError,
    UsageError,
    require_value,
    unreadable,
)
from sealift.release.files import write_failed

BUSY_TIMEOUT_S: Final = 10.0
SHARED_BYTES: Final = 32 << 10  # of the index beside a write-ahead log
_FAILED: Final = "SQLITE_IOERR"


def _nothing(connection: sqlite3.Connection) -> None:
    """The content of a database that may be empty."""


def create_database(
    path: Path,
    schema: str,
    application_id: int,
    fill: Callable[[sqlite3.Connection], None] = _nothing,
) -> sqlite3.Connection:
    """A fresh database file of mode 0600; it appears with its first content or never.

    Args:
        path: The file.
        schema: SQL, run first.
        application_id: Marks the kind of file.
        fill: Writes what the file must never be without.

    Raises:
        UsageError: if the file exists.
        UnavailableError: if it cannot be written.
    """
    with _appearing(path) as partial:
        _fill_database(partial, path, f"{_mark(application_id)}; {schema}", fill)
    return open_database(path, application_id)


def open_database(
    path: Path, application_id: int, *, read_only: bool = False
) -> sqlite3.Connection:
    """An existing database file of the kind ``application_id``.

    Raises:
        UnavailableError: if it cannot be read.
        MalformedError: if it is something else.
    """
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise unreadable(path, error) from None
    with database_errors(path):
        connection = _connect(path, read_only=read_only)
    try:
        with database_errors(path):
            found = connection.execute("PRAGMA application_id").fetchone()[0]
        if found != application_id:
            raise _not_ours(path)
    except SealiftError:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    """All of it on the disk, or none of it.

    Raises:
        UnavailableError: ``disk-full``, or whatever else the file system says.
    """
    with database_errors(path):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def copy_database(source: Path, target: Path, application_id: int) -> None:
    """A whole copy of a database as it stands now, also while it is in use.

    Raises:
        UsageError: if ``target`` exists.
        UnavailableError: if one cannot be read or the other not be written.
        MalformedError: if ``source`` is something else.
    """
    with (
        closing(open_database(source, application_id, read_only=True)) as found,
        _appearing(target) as partial,
        database_errors(target),
        closing(_connect(partial, read_only=False)) as copy,
    ):
        found.backup(copy)


@contextmanager
def database_errors(path: Path) -> Iterator[None]:
    """Map what SQLite says to our errors: the one boundary."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translated(path, error) from None


@contextmanager
def _appearing(path: Path) -> Iterator[Path]:
    """A file of mode 0600 under another name, which becomes ``path`` at the end."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield partial
        os.link(partial, path)
    except FileExistsError:
        raise UsageError(f"{path} exists already", code="output-exists") from None
    except OSError as error:
        raise write_failed(path, error) from None
    finally:
        for suffix in ("", "-wal", "-shm"):  # SQLite leaves them where a disk is full
            with suppress(OSError):  # why it cannot be there is what is told
                partial.with_name(f"{partial.name}{suffix}").unlink()


def _fill_database(
    partial: Path, path: Path, script: str, fill: Callable[[sqlite3.Connection], None]
) -> None:
    with database_errors(path):
        connection = _connect(partial, read_only=False)
        try:
            connection.executescript(f"BEGIN; {script};")
            fill(connection)
            connection.execute("COMMIT")
        finally:
            connection.close()


def _mark(application_id: int) -> str:
    return f"PRAGMA application_id = {application_id}"


def _connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{_mode(path, read_only=read_only)}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        if not read_only:
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA secure_delete = ON")  # overwrite what is deleted
    except sqlite3.Error:  # a damaged file is noticed here
        connection.close()
        raise
    return connection


def _mode(path: Path, *, read_only: bool) -> str:
    if not read_only:
        return "mode=rw"
    # Without a log beside it nobody has the file open, and all of it is in the file:
    # so it can be read where nothing may be written, too.
    beside = path.with_name(f"{path.name}-wal")
    return "mode=ro" if beside.exists() else "mode=ro&immutable=1"


def _translated(path: Path, error: sqlite3.Error) -> SealiftError:
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_FULL" or (name.startswith(_FAILED) and _is_full(path.parent)):
        return UnavailableError(
            f"cannot write {path}", why="the disk is full", code="disk-full"
        )
    if name in ("SQLITE_BUSY", "SQLITE_LOCKED"):
        return UnavailableError(f"{path} is in use", code="in-use")
    if name in ("SQLITE_READONLY_RECOVERY", "SQLITE_READONLY_CANTINIT"):
        return UnavailableError(
            f"the last write to {path} was interrupted",
            why="its process was killed",
            code="interrupted-write",
        )
    if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        return _not_ours(path)
    if name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
        return _closed_to_us(path, error)
    return UnavailableError(f"cannot use {path}", why=error, code="database-unusable")


def _closed_to_us(path: Path, error: sqlite3.Error) -> SealiftError:
    """SQLite does not say what it could not open: the system does, when it is asked."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with ExitStack() as held:  # as many at once as SQLite opens
            for place, flags in (
                (path, os.O_RDWR),
                (beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL),
                (path.parent, os.O_RDONLY | os.O_DIRECTORY),
            ):
                descriptor = os.open(place, flags | os.O_CLOEXEC, 0o600)
                held.callback(os.close, descriptor)
    except OSError as found:
        return write_failed(path if found.filename == str(path) else path.parent, found)
    finally:
        with suppress(OSError):
            beside.unlink()
    return UnavailableError(f"cannot use {path}", why=error, code="database-unusable")


def _is_full(folder: Path) -> bool:
    """SQLite calls it a failure where it is not a write to the file that finds no room."""
    try:
        room = os.statvfs(folder)
    except OSError:
        return False
    return room.f_bavail * room.f_frsize < SHARED_BYTES


def _not_ours(path: Path) -> MalformedError:
    return MalformedError(
        f"{path} is not a database of the expected kind, or it is damaged",
        code="bad-database",
    )


C = TypeVar("C")
R = TypeVar("R")


class _Waiting(Generic[C, R]):
    """A change, and what became of it."""

    __slots__ = ("change", "done", "error", "outcome")

    def __init__(self, change: C) -> None:
        self.change = change
        self.done = False
        self.error: BaseException | None = None
        self.outcome: R | None = None


class GroupCommit(Generic[C, R]):
    """Brings changes to ``commit`` in the order in which they came.

    Args:
        commit: Makes all of them last, or raises and none of them does; gives an
            outcome for each, in order. An outcome that is an exception is raised to the
            one whose change it was.
    """

    def __init__(
        self, commit: Callable[[Sequence[C]], Sequence[R | Exception]]
    ) -> None:
        self._commit = commit
        self._queue: deque[_Waiting[C, R]] = deque()
        self._committing = threading.Lock()

    def run(self, change: C) -> R:
        """Make a change last.

        Raises:
            Exception: what ``commit`` raised, or gave for this change.
        """
        mine: _Waiting[C, R] = _Waiting(change)
        self._queue.append(mine)
        with self._committing:
            if not mine.done:
                self._commit_all()
        if mine.error is not None:
            raise mine.error
        return require_value(mine.outcome, "a commit gives an outcome for each change")

    def _commit_all(self) -> None:
        batch = [self._queue.popleft() for _ in range(len(self._queue))]
        try:
            outcomes = self._commit([each.change for each in batch])
        except BaseException as error:
            for each in batch:
                each.error, each.done = error, True
            return
        for each, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Exception):
                each.error = outcome
            else:
                each.outcome = outcome
            each.done = True
