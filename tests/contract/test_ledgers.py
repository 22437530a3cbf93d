"""Every ledger behaves alike: the one in the vault's file, and one in memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sealift.crypto.identity import Identity
from sealift.crypto.sign import SigningKey
from sealift.errors import PolicyError
from sealift.release.vault.ledger import Ledger
from sealift.release.vault.vault import Vault
from tests.sim.memory_ledger import MemoryLedger
from tests.worlds.consortium import make_consortium

LEDGERS = ("vault", "memory")
ONE, TWO = (SigningKey.generate().public_key for _ in range(2))


@pytest.fixture(scope="module")
def identity() -> Identity:
    return make_consortium().identities["ada"]


@pytest.fixture(params=LEDGERS)
def ledger(
    request: pytest.FixtureRequest, tmp_path: Path, identity: Identity
) -> Iterator[Ledger]:
    if request.param == "memory":
        yield MemoryLedger()
        return
    vault = Vault.create(tmp_path / "vault", identity)
    yield vault.ledger
    vault.close()


def test_uses_are_counted_up_to_the_limit(ledger: Ledger) -> None:
    assert [ledger.debit("line", "rows", 2, ONE) for _ in range(2)] == [1, 2]
    for _ in range(2):
        with pytest.raises(PolicyError) as refusal:
            ledger.debit("line", "rows", 2, ONE)
        assert refusal.value.code == "uses-exhausted"
    assert ledger.uses("line", "rows") == 2
    assert ledger.debit("line", "rows", 3, ONE) == 3  # a successor allows more
    assert ledger.debit("line", "other", 1, TWO) == 1
    assert ledger.debit("other-line", "rows", 1, ONE) == 1
    assert ledger.debit("line", "rows", 0, ONE) == 4  # no limit counts all the same
    assert ledger.held("line", ONE) == {"rows"}
    assert ledger.held("line", TWO) == {"other"}
    assert ledger.held("other-line", TWO) == frozenset()


def test_revoked_once_is_revoked_for_good(ledger: Ledger) -> None:
    first, second = (SigningKey.generate().public_key for _ in range(2))
    assert (ledger.epoch(), ledger.revoked(first)) == (0, "")
    assert ledger.revoke(first, "ima-not-allowed") == 1
    assert ledger.revoke(first, "something-else") == 1
    assert ledger.revoked(first) == "ima-not-allowed"
    assert ledger.revoke(second, "heartbeat-missing") == 2
    assert ledger.epoch() == 2


def test_numbers_never_fall(ledger: Ledger) -> None:
    assert ledger.remembered("hosts") == 0
    for number in (3, 5, 4):
        ledger.remember("hosts", number)
    assert ledger.remembered("hosts") == 5
    assert ledger.remembered("other") == 0


KILLED: dict[str, tuple[str, Callable[[Ledger], bool]]] = {
    "debit": (
        "debit('line', 'rows', 9, identity.public_key)",
        lambda kept: kept.uses("line", "rows") == 1,
    ),
    "remember": ("remember('hosts', 7)", lambda kept: kept.remembered("hosts") == 7),
}


@pytest.mark.parametrize(("change", "kept"), KILLED.values(), ids=KILLED.keys())
def test_killed_after_a_change_has_kept_it(
    tmp_path: Path, change: str, kept: Callable[[Ledger], bool]
) -> None:
    """A process that dies the moment the call returned, and one just before."""
    consortium = make_consortium()
    program = (
        "import os, signal, sys, pathlib\n"
        "from tests.worlds.consortium import make_consortium\n"
        "from sealift.release.vault.vault import Vault\n"
        "identity = make_consortium().identities['ada']\n"
        f"vault = Vault.create(pathlib.Path(sys.argv[1]), identity)\n"
        f"vault.ledger.{change}\n"
        "vault._file.connection.execute('BEGIN IMMEDIATE')\n"
        "vault._file.connection.execute('DELETE FROM uses')\n"
        "vault._file.connection.execute('DELETE FROM seen')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "vault")],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        check=False,
        capture_output=True,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    vault = Vault.open(tmp_path / "vault", consortium.identities["ada"])
    assert kept(vault.ledger)
    vault.close()
