"""Copies of a broker's memory: made while it runs, checked before they are used again.

An older copy brings older memory back (rule H6): uses that were counted since, instances
that were revoked, agreements that came into force. So a restore compares the log with a
head that somebody else kept, and vault and log with each other; what it cannot compare it
says. The identity file is no part of it: without it a copy is worth nothing.
Source: spec/release.md section Copies.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealift.codec import encode
from sealift.errors import IntegrityError, UsageError, unreadable
from sealift.release.database import copy_database, database_errors, open_database
from sealift.release.files import write_failed, write_whole
from sealift.release.log import logfile
from sealift.release.log.entries import LogEntry, SignedTreeHead
from sealift.release.log.verify import LogReport, read_entries, read_head, verify_log
from sealift.release.vault import vault

VAULT: Final = "vault"
LOG: Final = "log"
HEAD: Final = "head.json"


@dataclass(frozen=True, slots=True)
class Copy:
    """What a backup holds, or what was restored.

    Attributes:
        form: Of the vault's schema.
        log: What checking the log found.
    """

    form: int
    log: LogReport


def back_up(vault_path: Path, log_path: Path, folder: Path) -> Copy:
    """Copy vault and log into a new folder, and check the copies.

    The log first: the vault counts a use before the log says so, and what is copied
    later may only know more.

    Raises:
        UsageError: ``output-exists``.
        IntegrityError: ``log-damaged`` and others, if what is there does not hold
            together; the copies stay, to be looked at.
        SealiftError: if a file cannot be read or written.
    """
    _make_new(folder)
    copy_database(log_path, folder / LOG, logfile.APPLICATION_ID)
    copy_database(vault_path, folder / VAULT, vault.APPLICATION_ID)
    write_whole(folder / HEAD, encode(read_head(folder / LOG)))
    return check_copy(folder)


def restore(
    folder: Path,
    vault_path: Path,
    log_path: Path,
    outside: SignedTreeHead | None = None,
) -> Copy:
    """Put a backup in the place of vault and log, if it may be used.

    Args:
        folder: From ``back_up``.
        vault_path: Where the vault goes; must not exist.
        log_path: Where the log goes; must not exist.
        outside: A head of this log that somebody else kept.

    Raises:
        UsageError: ``output-exists``: nothing is overwritten.
        IntegrityError: ``log-rolled-back`` or ``log-forked``: others saw more, or
            something else; ``copies-differ``: vault and log are not of one time.
        MalformedError: ``vault-version``, ``bad-database``.
    """
    found = check_copy(folder, outside)
    for target in (vault_path, log_path):
        if target.exists():
            raise UsageError(
                f"{target} exists already",
                fix="Move it away first; keep it, it may know more than the copy",
                code="output-exists",
            )
    copy_database(folder / LOG, log_path, logfile.APPLICATION_ID)
    copy_database(folder / VAULT, vault_path, vault.APPLICATION_ID)
    return found


def check_copy(folder: Path, outside: SignedTreeHead | None = None) -> Copy:
    """Check a backup by itself, and against a head from outside.

    Raises:
        IntegrityError, MalformedError: see ``restore``.
    """
    report = verify_log(folder / LOG, outside)
    with _reading(folder / VAULT) as connection:
        form = vault.require_known_form(connection, folder / VAULT)
        _require_whole(connection, folder / VAULT)
        uses, revoked = _memory(connection, form)
    _require_one_time(folder, uses, revoked)
    return Copy(form, report)


def upgrade(vault_path: Path, copy: Path) -> tuple[int, int]:
    """Bring a vault's schema forward, after a copy of it was made.

    Returns:
        The form before, and now.

    Raises:
        UsageError: ``output-exists``, for the copy.
        MalformedError: ``vault-version``.
    """
    copy_database(vault_path, copy, vault.APPLICATION_ID)
    with _reading(copy) as connection:
        before = vault.require_known_form(connection, copy)
        _require_whole(connection, copy)
    vault.bring_up(vault_path)
    return before, vault.FORM


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    opened = open_database(path, vault.APPLICATION_ID, read_only=True)
    with closing(opened) as connection, database_errors(path):
        yield connection


def _require_whole(connection: sqlite3.Connection, path: Path) -> None:
    found = connection.execute("PRAGMA integrity_check").fetchone()[0]
    if found != "ok":
        raise IntegrityError(
            f"{path} is damaged", why=str(found).splitlines()[0], code="vault-damaged"
        )


def _memory(connection: sqlite3.Connection, form: int) -> tuple[dict[str, int], int]:
    """Uses by resource, and the number of revocations."""
    if form < vault.FORM_WITH_LEDGER:
        return {}, 0
    query = "SELECT resource, sum(count) FROM uses GROUP BY resource"
    uses = {str(name): int(count) for name, count in connection.execute(query)}
    revoked = connection.execute("SELECT count(*) FROM revocations").fetchone()[0]
    return uses, int(revoked)


def _require_one_time(folder: Path, uses: dict[str, int], revoked: int) -> None:
    """The vault knows every use and revocation that the log speaks of."""
    for entry in read_entries(folder / LOG):
        if not isinstance(entry, LogEntry):
            continue
        if entry.use > uses.get(entry.resource, 0) or entry.epoch > revoked:
            raise IntegrityError(
                f"{folder / VAULT} and {folder / LOG} are not of one time",
                why="the log speaks of uses or revocations that the vault forgot",
                code="copies-differ",
            )


def _make_new(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        raise UsageError(f"{folder} exists already", code="output-exists") from None
    except FileNotFoundError as error:
        raise unreadable(folder.parent, error) from None
    except OSError as error:
        raise write_failed(folder, error) from None
