"""SQLite ends the process if a connection is closed while another thread uses it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from sealift.crypto.identity import create_identity
from sealift.errors import UnavailableError
from sealift.release.log.auditlog import AuditLog
from sealift.release.vault.vault import Vault

PAUSE_S = 0.1


def require_waits(
    close: Callable[[], None], use: AbstractContextManager[object]
) -> None:
    """``close`` returns once ``use`` is over, and not before."""
    closing = threading.Thread(target=close, daemon=True)
    with use:
        closing.start()
        closing.join(PAUSE_S)
        assert closing.is_alive()
    closing.join(300)
    assert not closing.is_alive()


@pytest.mark.parametrize("way", ["writing", "reading"])
def test_a_vault_in_use(tmp_path: Path, way: str) -> None:
    vault = Vault.create(tmp_path / "v", create_identity("ada"))
    require_waits(vault.close, getattr(vault._file, way)())
    with pytest.raises(UnavailableError):
        vault.ledger.epoch()
    with pytest.raises(UnavailableError):
        vault.ledger.debit("line", "resource", 0, create_identity("x").public_key)


def test_a_log_in_use(tmp_path: Path) -> None:
    log = AuditLog.create(tmp_path / "log", create_identity("ada"), lambda: 0.0)

    @contextmanager
    def writing() -> Iterator[None]:
        with log._lock:
            yield

    require_waits(log.close, writing())
    with pytest.raises(UnavailableError):
        log.head()
