"""Who proved nothing: how much of it a broker writes down, and what it is told."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path

import pytest

from sealift.attest.policy import AttestationResult
from sealift.crypto.hpke import HpkePrivateKey
from sealift.ids import Role
from sealift.release.broker import keyrelease as door
from sealift.release.broker.messages import BrokerRequest
from sealift.release.checkpoint import CheckpointRequest
from sealift.release.grant import CHALLENGE_BYTES, ReleaseRequest
from sealift.release.log.heads import read_entries
from tests.sim.owners import (
    BrokerSide,
    accelerator_peer,
    ask,
    broker_peer,
    evidence_result,
    make_broker,
)
from tests.worlds.consortium import RUN, Consortium, make_consortium

FEW = 5


@pytest.fixture(scope="module")
def consortium() -> Consortium:
    return make_consortium()


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MAX_UNPROVEN", FEW)


def asker(consortium: Consortium, result: AttestationResult | None) -> BrokerSide:
    peer = accelerator_peer(consortium, HpkePrivateKey.generate().public)
    return BrokerSide(replace(peer, result=result), secrets.token_bytes(32))


def release(name: str) -> BrokerRequest:
    challenge = secrets.token_bytes(CHALLENGE_BYTES)
    return BrokerRequest(release=ReleaseRequest(name, "train", challenge, RUN))


def refusals_after(
    consortium: Consortium, folder: Path, side: BrokerSide, *requests: BrokerRequest
) -> int:
    """How many entries it makes of 4 * FEW refused requests."""
    box = make_broker(consortium, "ada", folder)
    for request in requests * (4 * FEW // len(requests)):
        assert ask(box.broker, side, request).refusal is not None
    box.close()
    kinds = [each.kind for each in read_entries(folder / "ada.log")]
    return len(kinds) - kinds.count("agreement")


def test_strangers_cannot_fill_the_log(consortium: Consortium, tmp_path: Path) -> None:
    """A host that comes to be enrolled shows nothing, and could ask for ever."""
    side = asker(consortium, None)
    checkpoint = BrokerRequest(checkpoint=CheckpointRequest(job="digits", claim=True))
    found = refusals_after(consortium, tmp_path, side, release("ada-train"), checkpoint)
    assert found == FEW


def test_what_was_refused_to_evidence_is_all_there(
    consortium: Consortium, tmp_path: Path
) -> None:
    """Control: of a peer that shows good evidence each refusal is an entry."""
    side = asker(consortium, evidence_result(consortium))
    assert refusals_after(consortium, tmp_path, side, release("bern-train")) == 4 * FEW


def test_a_superseded_broker_does_not_say_that_it_serves_the_last(
    consortium: Consortium, tmp_path: Path
) -> None:
    box = make_broker(consortium, "ada", tmp_path)
    peer = replace(broker_peer(consortium, "bern"), role=Role.BROKER)
    side = BrokerSide(peer, secrets.token_bytes(32))
    request = BrokerRequest(sighting=True)
    assert ask(box.broker, side, request).served is not None  # control
    box.vault.activate(consortium.successor().verified())
    answer = ask(box.broker, side, request)
    assert answer.refusal is not None
    assert answer.refusal.rule == "agreement-superseded"
    box.close()
