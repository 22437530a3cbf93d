"""Whoever should not be at an end of a link, or between the two, gets nothing.

Each refusal stands beside the control that the same link works without the attack.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from sealift.channel.transport.memfd import MemfdTransport
from sealift.crypto.identity import create_identity
from sealift.errors import (
    AuthenticationError,
    PeerError,
    PolicyError,
    RefusedError,
    SealiftError,
    UnavailableError,
    UsageError,
)
from sealift.feed import sending
from sealift.feed.form import form_of, last_word
from sealift.feed.handover import FeedConnection, FeedConsent, Proposal
from sealift.ids import Role
from sealift.release.agreement import Agreement, ReleaseRule
from sealift.session.endpoint import Endpoint
from tests.sim.linked import FORM, LinkedParties, Other, both, linked

ROOT = Path(__file__).parents[2]
BATCH = {
    "x": np.ones((4, 3), dtype=np.float32),
    "y": np.zeros(4, dtype=np.int64),
}


@pytest.fixture
def parties(tmp_path: Path) -> LinkedParties:
    return LinkedParties(tmp_path)


def test_the_link_works_for_whom_it_is_for(parties: LinkedParties) -> None:
    with linked(parties) as (sender, receiver):
        got = Other(receiver.receive)
        sender.send(BATCH)
        assert got.join()["x"].sum() == 12


def test_development_is_asked_for_or_refused_before_anybody_is_dialled(
    parties: LinkedParties,
) -> None:
    with pytest.raises(PolicyError) as caught:
        parties.offer(development=False, wait_s=0)
    assert caught.value.code == "development-refused"


@pytest.mark.parametrize("mode", ["plain", "reencrypt", "direct", ""])
def test_there_is_no_weaker_mode(
    parties: LinkedParties, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Also where an owner's changed program proposes one."""
    with pytest.raises(UsageError) as caught:
        parties.offer(mode=mode, wait_s=0)
    assert caught.value.code == "no-such-mode"
    proposed = SimpleNamespace(value=mode)
    monkeypatch.setattr(sending, "parse_mode", lambda name: proposed)
    here, there = both(parties, {"mode": mode}, {})
    assert (here.code, there.code) == ("link-refused", "no-such-mode")


def test_who_is_no_owner_gets_no_link(
    parties: LinkedParties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At home it is told at once; a program that skips that is refused by the device."""
    forged, cloud = create_identity("north"), parties.cloud
    for identity, code in ((forged, "owner-unsigned"), (cloud, "not-a-data-owner")):
        with pytest.raises(PolicyError) as caught:
            parties.offer(identity=identity, wait_s=0)
        assert caught.value.code == code
    monkeypatch.setattr(sending, "owner_endpoint", careless_endpoint)
    for identity, code in ((forged, "identity-differs"), (cloud, "name-refused")):
        here, there = both(parties, {"identity": identity}, {})
        assert (here.code, there.code) == ("peer-refused", code)
        assert code in str(here)


def careless_endpoint(agreement: Any, identity: Any) -> Endpoint:
    return Endpoint(
        role=Role.HOLDER,
        name=identity.name,
        agreement=agreement.digest,
        identity=identity,
    )


def test_the_device_may_want_one_owner(parties: LinkedParties) -> None:
    here, there = both(parties, {}, {"owner": "east"})
    assert (here.code, there.code) == ("peer-refused", "name-refused")
    for owner, code in (("cloud", "not-a-data-owner"), ("west", "not-a-party")):
        with pytest.raises(PolicyError) as caught:
            parties.accept_link(owner=owner)
        assert caught.value.code == code


def test_both_work_under_one_agreement(parties: LinkedParties) -> None:
    here, there = both(parties, {}, {"agreement": parties.another()})
    assert (here.code, there.code) == ("peer-refused", "agreement-differs")


def test_a_device_without_proof_gets_nothing(
    parties: LinkedParties, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PolicyError) as caught:
        parties.accept_link(identity=parties.east)
    assert caught.value.code == "attester-unknown"
    with pytest.raises(UnavailableError) as missing:
        parties.accept_link(identity=None)
    assert missing.value.code == "no-evidence"
    (parties.code / "train.py").write_text("print('something else')\n")
    with pytest.raises(RefusedError) as differs:
        parties.accept_link()
    assert differs.value.code == "code-bundle-differs"


def test_unproven_devices_are_refused_by_the_owner(parties: LinkedParties) -> None:
    """Not by the device's own checks: its attester is another's, and says other code."""
    from sealift.attest.development import DevelopmentAttester
    from sealift.ids import Digest

    said: list[str] = []
    for signer, code in (
        (parties.east, parties.agreement.agreement.code.digest),
        (parties.cloud, Digest.of(b"other code")),
    ):
        attester = DevelopmentAttester(signer, role=Role.ACCELERATOR, code_bundle=code)
        here, there = both(parties, {}, {"attester": attester})
        assert isinstance(here, RefusedError)
        assert there.code == "peer-refused"
        said.append(here.code)
    assert len(set(said)) == 2


class LaterParties(LinkedParties):
    """Under an agreement for another time."""

    times: ClassVar[dict[str, int]] = {}

    def document(self) -> Agreement:
        return replace(super().document(), **self.times)


@pytest.mark.parametrize(
    ("times", "code"),
    [
        ({"not_after": 1}, "agreement-expired"),
        ({"not_before": 1 << 37}, "agreement-not-yet"),
        ({"not_before": 1, "not_after": 1 << 37}, "peer-"),  # the control: nobody came
    ],
)
def test_an_agreement_must_be_in_force(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    times: dict[str, int],
    code: str,
) -> None:
    """Also one that was verified before, and is given as it is."""
    monkeypatch.setattr(LaterParties, "times", times)
    parties = LaterParties(tmp_path)
    for end in (parties.offer, parties.accept_link):
        with pytest.raises((PolicyError, PeerError)) as caught:
            end(wait_s=0)
        assert caught.value.code.startswith(code)


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        (ReleaseRule(not_after=1), "resource-expired"),
        (ReleaseRule(not_before=1 << 37), "resource-not-yet"),
        (ReleaseRule(not_before=1, not_after=1 << 37), "peer-unreachable"),  # control
    ],
)
def test_the_time_of_an_owners_own_rule_counts(
    tmp_path: Path, rule: ReleaseRule, code: str
) -> None:
    with pytest.raises((PolicyError, PeerError)) as caught:
        LinkedParties(tmp_path, rule=rule).offer(wait_s=0)
    assert caught.value.code == code


def test_an_agreement_is_equipped_once(parties: LinkedParties) -> None:
    with pytest.raises(UsageError, match="already has"):
        parties.offer(references=[parties.folder / "references.json"])


def test_the_two_ends_mean_the_same_batches(parties: LinkedParties) -> None:
    for form in (
        {**FORM, "y": ("int32", (4,))},
        {**FORM, "x": ("float32", (3, 4))},
        {"y": FORM["y"], "x": FORM["x"]},
        {"x": FORM["x"]},
        {**FORM, "z": ("bool", (1,))},
    ):
        other = Other(parties.accept_link)
        with pytest.raises(PolicyError) as here:
            parties.offer(form)
        with pytest.raises(PolicyError) as there:
            other.join()
        assert (here.value.code, there.value.code) == ("link-refused", "form-differs")
        assert "this end has" in str(here.value)


def test_keys_are_those_of_what_was_agreed() -> None:
    """Another proposal or consent gives other keys, and each direction has its own."""
    exported: list[bytes] = []
    session: Any = SimpleNamespace(
        export=lambda label, c: exported.append(label.encode() + c)
    )
    connection = FeedConnection(session, None, None)  # type: ignore[arg-type]
    proposal = Proposal(
        version=1, mode="seal-ahead", form=form_of(FORM), record_bytes=64, process=1
    )
    consent = FeedConsent(version=1, slots=8, process=2)
    for one, two in (
        (proposal, consent),
        (replace(proposal, mode="plain"), consent),
        (replace(proposal, form=form_of({"x": FORM["x"]})), consent),
        (proposal, replace(consent, slots=9)),
    ):
        connection.keys(one, two)
    assert len(set(exported)) == 8


class Flipping:
    """Changes one bit of one frame in the memory that the two ends share."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.count = 0
        self.commit = MemfdTransport.commit

    def on(self) -> Callable[[MemfdTransport], None]:
        """A method in the place of ``commit``."""

        def commit(transport: MemfdTransport) -> None:
            self.flip(transport)

        return commit

    def flip(self, transport: MemfdTransport) -> None:
        self.count += 1
        if self.count == self.number:
            start = transport._outgoing.slot_start() + 32
            transport.memory[start + 40] ^= 1
        self.commit(transport)


@pytest.mark.parametrize("flipped", [False, True])
def test_no_step_on_a_batch_that_did_not_verify(
    parties: LinkedParties, monkeypatch: pytest.MonkeyPatch, flipped: bool
) -> None:
    """Header, announcement, batch, announcement, batch: the fifth frame is the second's."""
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    steps: list[float] = []

    def train(receiver: Any) -> None:
        for batch in receiver:
            optimizer.zero_grad()
            (batch["x"] @ weight).sum().backward()
            optimizer.step()
            steps.append(weight[0].item())

    with linked(parties) as (sender, receiver):
        memory = receiver._memory
        got = Other(lambda: train(receiver))
        # Counted from here: the stream's header went before.
        attack = Flipping(4 if flipped else 0)
        monkeypatch.setattr(MemfdTransport, "commit", attack.on())
        if not flipped:
            with sender:
                sender.send_ahead([BATCH, BATCH])
            got.join()
            assert steps == [-4.0, -8.0]
            return
        with pytest.raises(PeerError) as here:
            sender.send_ahead([BATCH, BATCH])
        with pytest.raises(AuthenticationError):
            got.join()
        assert here.value.code == "device-left"
        assert steps == [-4.0]
        assert not any(memory.view)


@pytest.mark.parametrize(
    ("transfer", "code"),
    [
        (bytes(64), "bad-batch"),  # genuine, and as long as no batch of this form
        (bytes(1 << 20), "transfer-too-long"),
        (last_word(1), "bad-batch"),  # none came
        (bytes(16), "bad-batch"),
        (last_word(0), ""),  # the control
    ],
)
def test_what_an_owner_seals_is_held_to_the_form(
    parties: LinkedParties, transfer: bytes, code: str
) -> None:
    with linked(parties) as (sender, receiver):
        got = Other(receiver.receive)
        with suppress(PeerError):
            sender._link.send(transfer)
        if not code:
            assert got.join() is None
            return
        with pytest.raises(SealiftError) as caught:
            got.join()
        assert caught.value.code == code
        with pytest.raises(UsageError):
            receiver.receive()
