"""Every way to an owner's vault and log from outside the audited core.

Nobody else opens either (``scripts/core.py``). What comes out is a broker, or
keys that cannot be read; what goes in is a path and the identity that opens it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

from sealift.crypto.identity import Identity
from sealift.crypto.keys import SecretKey
from sealift.errors import UnavailableError
from sealift.events import Sink, discard
from sealift.ids import Digest
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.broker.server import Broker
from sealift.release.broker.statements import StatementDesk
from sealift.release.files import write_failed
from sealift.release.log.auditlog import AuditLog
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
        desk = StatementDesk(verified, statements, clock=clock)
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
            raise _taken(path, file.read(20)) from None
        file.truncate(0)
        file.write(str(os.getpid()).encode())
        yield


def _taken(path: Path, holder: bytes) -> UnavailableError:
    return UnavailableError(
        f"another broker works with {path}",
        why=f"its process is {holder.decode('ascii', 'replace') or 'just beginning'}",
        code="broker-running",
    )
