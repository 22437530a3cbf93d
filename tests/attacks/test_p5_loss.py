"""P5: a host that does something bad after the release loses its lease.

The bad acts of a real kernel (an unlisted program, a write to the bundle, LD_PRELOAD,
insmod) are done in the guest: ``tests/contract/test_guest.py`` shows that each reaches
the list, here each kind of entry ends the lease, and ``python -m benchmarks release`` times it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sealift.attest.tpm import verifier
from sealift.errors import PeerError, SealiftError
from sealift.release.broker.messages import HEARTBEAT_MISSING
from sealift.release.client import prove_lease
from sealift.release.log.heads import read_entries
from tests.attacks.scenarios.world import BrokerWorld

ACTS = {
    "an unlisted program": ("/tmp/miner", b"other"),
    "a write to the bundle": ("/usr/bin/agent", b"changed"),
    "LD_PRELOAD": ("/tmp/preload.so", b"library"),
    "insmod": ("/lib/modules/rootkit.ko", b"module"),
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerWorld]:
    with BrokerWorld(tmp_path / "o") as broker:
        yield broker


def revocations(broker: BrokerWorld) -> list[tuple[str, int | None]]:
    entries = read_entries(broker.folder / "audit.db")
    return [(each.rule, each.epoch) for each in entries if each.kind == "revocation"]


@pytest.mark.parametrize("act", ACTS)
def test_loses_its_lease_at_the_next_renewal(broker: BrokerWorld, act: str) -> None:
    with broker.session() as session:
        broker.collect(session)
        assert prove_lease(session).good  # control: it was renewed before
        broker.host.kernel.run(*ACTS[act], allow=False)
        with pytest.raises(PeerError):
            prove_lease(session)
    assert revocations(broker) == [("ima-entry-unlisted", 1)]
    assert broker.box.broker.open_leases() == 0
    assert broker.ask() == "ima-entry-unlisted"  # nor does it get another key


def test_mutant_that_judges_no_list_goes_on(
    broker: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = verifier.check_list
    monkeypatch.setattr(verifier, "check_list", lambda *args: (genuine(*args)[0], ()))
    with broker.session() as session:
        broker.collect(session)
        broker.host.kernel.run(*ACTS["an unlisted program"], allow=False)
        assert prove_lease(session).good
    assert revocations(broker) == []


def test_one_that_hides_is_silent_and_silence_revokes(broker: BrokerWorld) -> None:
    """It cannot prove itself any more, so it says nothing: that ends the lease too."""
    with broker.session() as session:
        broker.collect(session)
        desk = broker.box.broker.leases
        desk._monotonic = lambda: 10_000_000.0
        desk.look()
        with pytest.raises(SealiftError):
            prove_lease(session)
    assert revocations(broker)[0][0] == HEARTBEAT_MISSING
