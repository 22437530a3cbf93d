"""All access to an owner's vault and log from outside the audited core, and copies of both.

No other module opens them (``scripts/core.py``). Callers give a path and the identity that
opens it, and get a broker, or keys that they cannot read.

An older copy lacks later uses, revocations and agreements (rule H6). So a restore compares
the log with a head that somebody else saved, and the vault with the log, and reports what
it could not compare. A backup does not contain the identity file, without which nobody can
open it.
Source: spec/release.md section Copies.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealift.codec import encode
from sealift.crypto.identity import Identity
from sealift.crypto.keys import SecretKey
from sealift.errors import IntegrityError, UnavailableError, UsageError, unreadable
from sealift.events import Sink, discard
from sealift.ids import Digest
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.broker.inforce import StatementsInForce
from sealift.release.broker.server import Broker
from sealift.release.database import copy_database, database_errors, open_database
from sealift.release.files import write_failed, write_whole
from sealift.release.log import auditlog as logfile
from sealift.release.log.auditlog import AuditLog
from sealift.release.log.entries import LogEntry, SignedTreeHead
from sealift.release.log.heads import LogReport, read_entries, read_head, verify_log
from sealift.release.vault import vault
from sealift.release.vault.file import APPLICATION_ID as VAULT_ID
from sealift.release.vault.ledger import Ledger
from sealift.release.vault.vault import Vault

LOCK_SUFFIX: Final = ".lock"


@contextmanager
def opened_broker(
    vault: Path,
    log: Path,
    identity: Identity,
    equipped: Callable[[Ledger], VerifiedAgreement],
    *,
    clock: Callable[[], float],
    sink: Sink = discard,
    statements: Path | None = None,
) -> Iterator[Broker]:
    """The broker of one owner, alone with its vault and log while it is open.

    Args:
        vault: The owner's.
        log: The owner's; a first broker makes it.
        identity: The owner's.
        equipped: The agreement, with what this broker judges evidence with.
        clock: Seconds since 1970.
        sink: Where events go.
        statements: Folder in which statements about the agreement count.

    Raises:
        UnavailableError: ``broker-running``, or if a file cannot be used.
        SealiftError: as ``Broker``.
    """
    with ExitStack() as stack:
        for path in (vault, log):
            stack.enter_context(_alone(path))
        keys = stack.enter_context(closing(Vault.open(vault, identity)))
        make = AuditLog.open if log.exists() else AuditLog.create
        entries = stack.enter_context(closing(make(log, identity, clock)))
        verified = equipped(keys.ledger)
        desk = StatementsInForce(verified, statements, clock=clock)
        yield Broker(
            verified,
            identity,
            vault=keys,
            log=entries,
            clock=clock,
            sink=sink,
            statements=desk,
        )


@contextmanager
def opened_vault(path: Path, identity: Identity) -> Iterator[Vault]:
    """An owner's vault, for work with its own keys.

    Raises:
        UnavailableError, MalformedError: as ``Vault.open``.
    """
    with closing(Vault.open(path, identity)) as vault:
        yield vault


def keep_keys(
    path: Path, identity: Identity, keys: Mapping[str, SecretKey]
) -> dict[str, Digest]:
    """Keep all keys in one step; the vault is made if there is none.

    Raises:
        UsageError, UnavailableError: as ``Vault.store_all``; none is kept then.
    """
    make = Vault.open if os.path.exists(path) else Vault.create
    with closing(make(path, identity)) as vault:
        return vault.store_all(keys)


def destroy_keys(path: Path, identity: Identity, names: Iterable[str]) -> Iterator[str]:
    """Destroy the keys of these names that are held; each name once it is done."""
    with opened_vault(path, identity) as vault:
        held = vault.resources()
        for name in names:
            if name in held:
                vault.destroy(name)
                yield name


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One broker at a time, by a lock that dies with its process.

    Not on the file itself: SQLite has locks of its own there. Links to it are the same.
    """
    place = Path(os.path.realpath(path) + LOCK_SUFFIX)
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(place, flags, 0o600)
    except OSError as error:
        raise write_failed(place, error) from None
    with closing(os.fdopen(descriptor, "r+b", buffering=0)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = file.read(20).decode("ascii", "replace")
            raise UnavailableError(
                f"another broker uses {path}",
                why=f"its process id is {holder or 'not written yet'}",
                code="broker-running",
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()).encode())
        yield


VAULT: Final = "vault"
LOG: Final = "log"
HEAD: Final = "head.json"


@dataclass(frozen=True, slots=True)
class StoreBackup:
    """What a backup holds, or what was restored.

    Attributes:
        form: Of the vault's schema.
        log: What checking the log found.
    """

    form: int
    log: LogReport


def back_up(vault_path: Path, log_path: Path, folder: Path) -> StoreBackup:
    """Copy vault and log into a new folder, and check the copies.

    The log is copied first: the vault counts a use before the log records it, so the
    later copy of the vault can only know more.

    Raises:
        UsageError: ``output-exists``.
        IntegrityError: ``log-damaged`` and others, if what is there does not hold
            together; the copies stay, to be looked at.
        SealiftError: if a file cannot be read or written.
    """
    _make_new(folder)
    copy_database(log_path, folder / LOG, logfile.APPLICATION_ID)
    copy_database(vault_path, folder / VAULT, VAULT_ID)
    write_whole(folder / HEAD, encode(read_head(folder / LOG)))
    return check_copy(folder)


def restore(
    folder: Path,
    vault_path: Path,
    log_path: Path,
    outside: SignedTreeHead | None = None,
) -> StoreBackup:
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
                f"{target} already exists",
                fix="Move it away, and keep it: it may be newer than the copy",
                code="output-exists",
            )
    copy_database(folder / LOG, log_path, logfile.APPLICATION_ID)
    copy_database(folder / VAULT, vault_path, VAULT_ID)
    return found


def check_copy(folder: Path, outside: SignedTreeHead | None = None) -> StoreBackup:
    """Check a backup by itself, and against a head from outside.

    Raises:
        IntegrityError, MalformedError: see ``restore``.
    """
    report = verify_log(folder / LOG, *([outside] if outside else []))
    with _reading(folder / VAULT) as connection:
        form = vault.require_known_form(connection, folder / VAULT)
        _require_whole(connection, folder / VAULT)
        uses, revoked = _memory(connection, form)
    _require_one_time(folder, uses, revoked)
    return StoreBackup(form, report)


def upgrade(vault_path: Path, copy: Path) -> tuple[int, int]:
    """Bring a vault's schema forward, after a copy of it was made.

    Returns:
        The form before, and now.

    Raises:
        UsageError: ``output-exists``, for the copy.
        MalformedError: ``vault-version``.
    """
    copy_database(vault_path, copy, VAULT_ID)
    with _reading(copy) as connection:
        before = vault.require_known_form(connection, copy)
        _require_whole(connection, copy)
    vault.bring_up(vault_path)
    return before, vault.FORM


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    opened = open_database(path, VAULT_ID, read_only=True)
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
    """Refuse a vault that lacks a use or a revocation of the log."""
    for entry in read_entries(folder / LOG):
        if not isinstance(entry, LogEntry):
            continue
        if entry.use > uses.get(entry.resource, 0) or entry.epoch > revoked:
            raise IntegrityError(
                f"{folder / VAULT} and {folder / LOG} are from different times",
                why="the log has uses or revocations that the vault lacks",
                code="copies-differ",
            )


def _make_new(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        raise UsageError(f"{folder} already exists", code="output-exists") from None
    except FileNotFoundError as error:
        raise unreadable(folder.parent, error) from None
    except OSError as error:
        raise write_failed(folder, error) from None
