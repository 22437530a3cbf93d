"""P2: the list of what ran is the kernel's own, whole, in order, and of now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from sealift.attest.tpm import verifier
from sealift.attest.tpm.evidence import TpmBody
from sealift.errors import StaleError
from tests.attacks.scenarios.evidence import (
    RepeatingAttester,
    SpoilingAttester,
    entries_of,
)
from tests.attacks.scenarios.world import PROGRAMS, BrokerWorld
from tests.sim.tpmhost import BOUND, appraiser, tpm_host

Entries = tuple[bytes, ...]
VIOLATION = bytes(20)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerWorld]:
    with BrokerWorld(tmp_path_factory.mktemp("o")) as broker:
        yield broker


def altered(entry: bytes) -> bytes:
    """Another digest of the same file."""
    place = entry.index(b"sha256:\0") + 8
    return entry[:place] + bytes([entry[place] ^ 1]) + entry[place + 1 :]


def violation(entry: bytes) -> bytes:
    """What the kernel writes when a file changed while it was read (ToMToU)."""
    return entry[:4] + VIOLATION + entry[24:]


SPOILT: dict[str, Callable[[Entries], Entries]] = {
    "the last one dropped": lambda e: e[:-1],
    "one in the middle dropped": lambda e: (*e[:1], *e[2:]),
    "the first dropped": lambda e: e[1:],
    "two in another order": lambda e: (e[0], e[2], e[1]),
    "one twice": lambda e: (*e[:2], *e[1:]),
    "one altered": lambda e: (*e[:-1], altered(e[-1])),
    "one made a violation": lambda e: (*e[:-1], violation(e[-1])),
    "nothing": lambda e: (),
}


def spoilt(broker: BrokerWorld, change: Callable[[Entries], Entries]) -> str:
    def spoil(body: TpmBody) -> TpmBody:
        found = entries_of(body.ima_list)
        assert len(found) == 1 + len(PROGRAMS)
        return replace(body, ima_list=b"".join(change(found)))

    return broker.ask(SpoilingAttester(broker.host.attester, spoil))


def test_control_the_whole_list(broker: BrokerWorld) -> None:
    assert spoilt(broker, lambda entries: entries) == ""


@pytest.mark.parametrize("name", SPOILT)
def test_another_list(broker: BrokerWorld, name: str) -> None:
    refused = spoilt(broker, SPOILT[name])
    assert refused in {"ima-replay-differs", "ima-boot-aggregate", "tpm-ima-list",
                       "ima-violation"}  # fmt: skip


def test_mutant_that_does_not_replay_takes_the_shorter_list(
    broker: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = verifier.check_list

    def believing(*args: object) -> object:
        progress, checks = genuine(*args)  # type: ignore[arg-type]
        return progress, tuple(replace(each, code="") for each in checks)

    monkeypatch.setattr(verifier, "check_list", believing)
    assert spoilt(broker, SPOILT["the last one dropped"]) == ""


def test_entries_that_nothing_quoted_are_not_believed(broker: BrokerWorld) -> None:
    """Appended ones wait for the next quote: they are not proved, nor refused."""
    assert spoilt(broker, lambda entries: (*entries, entries[-1])) == ""


def test_a_quote_of_before(broker: BrokerWorld) -> None:
    earlier = broker.host.attester.collect(bytes(32))
    assert TpmBody.parse(earlier.body).quote
    assert broker.ask(RepeatingAttester(earlier)) == "evidence-unbound"


def test_a_reboot_between_release_and_renewal() -> None:
    with tpm_host() as host:
        judge = appraiser(host.references())
        first = host.evidence()
        result = judge.appraise(first, BOUND)
        host.boot()
        later = host.evidence(bytes(32))
        with pytest.raises(StaleError) as caught:
            judge.appraise(later, bytes(32), earlier=result)
        assert caught.value.code == "tpm-reset"
