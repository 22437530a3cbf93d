"""A TPM's counter and the vault's memory of it: a backup brings no old agreement back."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import pytest

from sealift.attest.attesters.tpm.client import TpmClient
from sealift.attest.attesters.tpm.link import open_link
from sealift.attest.attesters.tpm.nonvolatile import remove_index
from sealift.errors import StaleError, UnavailableError
from sealift.release.rollback import require_counter
from sealift.release.tpmcounter import MAX_STEPS, TpmVersionCounter
from tests.sim.memory_ledger import MemoryLedger
from tests.sim.owners import make_consortium
from tests.sim.swtpm import software_tpm

pytestmark = pytest.mark.swtpm
FIRST = make_consortium()
SECOND = FIRST.successor()


@pytest.fixture
def client() -> Iterator[TpmClient]:
    with software_tpm() as tpm:
        client = TpmClient(open_link(tpm.name))
        client.begin()
        yield client
        client.close()


def counter(client: TpmClient, ledger: MemoryLedger, line: str = "a"):  # type: ignore[no-untyped-def]
    return TpmVersionCounter(client, ledger, line)


def test_it_only_grows(client: TpmClient) -> None:
    ledger = MemoryLedger()
    assert counter(client, ledger).read() == 0
    counter(client, ledger).advance(3)
    assert counter(client, ledger).read() == 3
    require_counter(FIRST.agreement, counter(client, ledger, "b"))
    assert counter(client, ledger, "b").read() == 1
    assert counter(client, ledger).read() == 3


def test_an_older_vault_does_not_bring_the_agreement_back(client: TpmClient) -> None:
    ledger = MemoryLedger()
    require_counter(FIRST.agreement, counter(client, ledger))
    backup = deepcopy(ledger)
    require_counter(SECOND.agreement, counter(client, ledger))
    with pytest.raises(StaleError) as refusal:
        require_counter(FIRST.agreement, counter(client, backup))
    assert refusal.value.code == "agreement-rolled-back"
    require_counter(SECOND.agreement, counter(client, backup))


@pytest.mark.parametrize("lost", ["vault", "counter"])
def test_memory_that_was_lost_is_refused(client: TpmClient, lost: str) -> None:
    ledger = MemoryLedger()
    require_counter(SECOND.agreement, counter(client, ledger))
    if lost == "counter":
        remove_index(client, counter(client, ledger).index)
    else:
        ledger = MemoryLedger()
    with pytest.raises(StaleError) as refusal:
        require_counter(SECOND.agreement, counter(client, ledger))
    assert refusal.value.code == "agreement-rolled-back"


def test_a_counter_made_anew_does_not_look_like_the_old_one(
    client: TpmClient,
) -> None:
    ledger = MemoryLedger()
    require_counter(SECOND.agreement, counter(client, ledger))
    remove_index(client, counter(client, ledger).index)
    counter(client, MemoryLedger()).advance(1)
    with pytest.raises(StaleError):
        require_counter(FIRST.agreement, counter(client, ledger))


def test_steps_are_limited(client: TpmClient) -> None:
    with pytest.raises(UnavailableError) as refusal:
        counter(client, MemoryLedger()).advance(MAX_STEPS + 1)
    assert refusal.value.code == "counter-far"
