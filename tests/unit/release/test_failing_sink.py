"""A broker whose events go nowhere, by a full disk or a closed terminal, still revokes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sealift.crypto.sign import SigningKey
from sealift.events import Event
from sealift.release.agreement import KeyLease
from sealift.release.broker.server import Broker
from sealift.release.log.auditlog import AuditLog
from sealift.release.log.heads import read_entries
from sealift.release.vault.vault import Vault
from tests.sim.owners import NOW_S
from tests.sim.watching import watching
from tests.worlds.consortium import Consortium, make_consortium


def fail(event: Event) -> None:
    raise OSError(32, "Broken pipe")


class Box:
    """ada's broker, and the seconds that its leases see."""

    def __init__(self, consortium: Consortium, folder: Path) -> None:
        ada = consortium.identities["ada"]
        self.path = folder / "log"
        self.vault = Vault.create(folder / "vault", ada)
        self.log = AuditLog.create(self.path, ada, lambda: NOW_S)
        self.now_s = 0.0
        self.broker = Broker(
            consortium.verified(),
            ada,
            vault=self.vault,
            log=self.log,
            clock=lambda: NOW_S,
            monotonic=lambda: self.now_s,
            sink=fail,
        )

    def kinds(self) -> list[str]:
        return [entry.kind for entry in read_entries(self.path)]


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    box = Box(make_consortium(), tmp_path)
    yield box
    box.vault.close()
    box.log.close()


def test_who_falls_silent(box: Box) -> None:
    """The thread that watches leases goes on, too."""
    leases = box.broker.leases
    for lease_s in (1.0, 2.0):
        terms = KeyLease(lease_s=lease_s, heartbeat_s=1.0)
        leases.grant(SigningKey.generate().public_key, terms, box.now_s, "host")
    with watching(box.broker.leases.look):
        for count, at_s in ((1, 1.9), (2, 9.0)):
            box.now_s = at_s
            wait = threading.Event()
            for _ in range(500):
                if box.kinds().count("revocation") == count:
                    break
                wait.wait(0.01)
            assert box.kinds().count("revocation") == count
