"""Keys under an agreement that the owner did not sign: altered, unsigned, outvoted (H7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sealift.attest.level import Level
from sealift.codec import decode, encode
from sealift.crypto.identity import create_identity
from sealift.crypto.keys import TOKEN, Label
from sealift.errors import (
    IntegrityError,
    MalformedError,
    PolicyError,
    StaleError,
    UsageError,
)
from sealift.release import decision
from sealift.release.agreement import Agreement
from sealift.release.agreement.signed import (
    SignedAgreement,
    VerifiedAgreement,
    add_signature,
    verify,
)
from sealift.release.broker import server as brokerserver
from sealift.release.client import collect_release
from sealift.release.grant import ReleaseRequest
from tests.sim.owners import BrokerBox, ask, make_broker, session_pair, start_broker
from tests.worlds.consortium import OUTPUT, RUN, Consortium, make_consortium


@pytest.fixture(scope="module")
def consortium() -> Consortium:
    return make_consortium()


def collect(consortium: Consortium, box: BrokerBox) -> bytes:
    session = session_pair(consortium, box.broker, "ada")
    key, _ = collect_release(
        session, consortium.verified(), "ada-train", clock=lambda: 0.0, run=RUN
    )
    return key.reveal(TOKEN)


LOOSER: dict[str, Callable[[Agreement], Agreement]] = {
    "more digits": lambda a: replace(a, output=replace(a.output, digits=6)),
    "other attester": lambda a: replace(
        a,
        references=replace(
            a.references,
            development_attesters=(create_identity("eve").public_key,),
        ),
    ),
    "no held-out rows": lambda a: replace(
        a, resources=tuple(r for r in a.resources if r.part == "train")
    ),
    "other model owner": lambda a: replace(
        a,
        model_owner="bern",
        parties=tuple(
            replace(p, roles=("data_owner", "model_owner")) if p.name == "bern" else p
            for p in a.parties
        ),
    ),
}


@pytest.mark.parametrize("change", LOOSER.values(), ids=LOOSER.keys())
def test_altered_after_signing(
    consortium: Consortium, change: Callable[[Agreement], Agreement]
) -> None:
    signed = consortium.signed()
    altered = replace(signed, agreement=change(signed.agreement))
    with pytest.raises(IntegrityError) as caught:
        verify(altered)
    assert caught.value.code == "agreement-altered"


def test_any_changed_byte_of_the_file_is_noticed(consortium: Consortium) -> None:
    """Every 97th byte, all kinds of places: not one change goes through."""
    raw = encode(consortium.signed())
    for position in range(0, len(raw), 97):
        changed = bytearray(raw)
        changed[position] ^= 1
        with pytest.raises((MalformedError, IntegrityError, PolicyError)):
            verify(decode(SignedAgreement, bytes(changed), max_bytes=4 << 20))
    verify(decode(SignedAgreement, raw, max_bytes=4 << 20))


def test_a_majority_is_not_everybody(consortium: Consortium) -> None:
    """Two of three rewrite the third one's rule: no signature, no agreement."""
    after = consortium.successor(output=replace(OUTPUT, digits=6))
    with pytest.raises(PolicyError, match="ada") as caught:
        verify(after.signed("bern", "cleo"))
    assert caught.value.code == "agreement-unsigned"


def test_verified_agreements_cannot_be_made_by_hand(consortium: Consortium) -> None:
    with pytest.raises(UsageError):
        VerifiedAgreement(
            consortium.agreement,
            consortium.verified().backing,
            token=object(),  # type: ignore[arg-type]
        )


def test_a_signature_of_another_kind_does_not_count(consortium: Consortium) -> None:
    """The same bytes, signed by ada for another purpose."""
    signed = consortium.signed()
    message = encode(signed.agreement)
    wrong = consortium.identities["ada"].sign(Label.LEASE, message)
    with pytest.raises(IntegrityError):
        verify(replace(signed, signatures={**signed.signatures, "ada": wrong}))


def outvote(consortium: Consortium) -> Consortium:
    """The others put a key of their own in ada's place, and sign as ada."""
    eve = create_identity("ada")
    parties = tuple(
        replace(party, sign=eve.public_key) if party.name == "ada" else party
        for party in consortium.agreement.parties
    )
    agreement = replace(
        consortium.agreement, parties=parties, output=replace(OUTPUT, digits=6)
    )
    identities = {**consortium.identities, "ada": eve}
    return replace(consortium, agreement=agreement, identities=identities)


def test_outvoted_owner_keeps_its_key(consortium: Consortium, tmp_path: Path) -> None:
    """An agreement that is complete in itself, without ada's own signature."""
    verified = outvote(consortium).verified()
    box = make_broker(consortium, "ada", tmp_path)
    with pytest.raises(PolicyError) as caught:
        brokerserver.Broker(
            verified,
            consortium.identities["ada"],
            vault=box.vault,
            log=box.log,
            clock=lambda: 0.0,
        )
    assert caught.value.code == "owner-unsigned"
    box.close()


def test_mutant_that_trusts_the_agreements_own_key_releases(
    consortium: Consortium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: without the owner's own key to compare with, ada's key goes out."""
    monkeypatch.setattr(decision, "_signed", lambda state: None)
    monkeypatch.setattr(
        brokerserver,
        "bring_into_force",
        lambda verified, owner, vault: vault.activate(verified),
    )
    forged = replace_line(outvote(consortium))
    box = make_broker(consortium, "ada", tmp_path)
    box.broker = brokerserver.Broker(
        forged.verified(),
        consortium.identities["ada"],
        vault=box.vault,
        log=box.log,
        clock=lambda: 0.0,
    )
    session = session_pair(forged, box.broker, "ada")
    request = ReleaseRequest("ada-train", "train", bytes(32), RUN)
    asked = brokerserver.BrokerRequest(release=request)
    assert ask(box.broker, session.other, asked).release is not None
    box.close()


def replace_line(forged: Consortium) -> Consortium:
    """The forgery as a line of its own, so that the vault knows no older one."""
    return replace(forged, agreement=replace(forged.agreement, name="another-line"))


def test_no_way_back_to_an_earlier_agreement(
    consortium: Consortium, tmp_path: Path
) -> None:
    """Rule by rule stricter, then the old one again: refused, while running and after."""
    box = make_broker(consortium, "ada", tmp_path)
    assert collect(consortium, box) == consortium.keys["ada-train"].reveal(TOKEN)
    stricter = consortium.successor(output=replace(OUTPUT, digits=1))
    still_running = box.broker
    box.broker = start_broker(stricter, "ada", box.vault, box.log)
    collect(stricter, box)
    with pytest.raises(StaleError) as caught:
        start_broker(consortium, "ada", box.vault, box.log)
    assert caught.value.code == "agreement-superseded"
    box.broker = still_running
    with pytest.raises(PolicyError, match="agreement-superseded"):
        collect(consortium, box)
    box.close()


def test_a_fork_of_the_line_is_refused(consortium: Consortium, tmp_path: Path) -> None:
    box = make_broker(consortium, "ada", tmp_path)
    start_broker(consortium.successor(), "ada", box.vault, box.log)
    fork = consortium.successor(output=replace(OUTPUT, digits=1))
    with pytest.raises(StaleError):
        start_broker(fork, "ada", box.vault, box.log)
    with pytest.raises(StaleError) as caught:
        start_broker(fork.successor().successor(), "ada", box.vault, box.log)
    assert caught.value.code == "agreement-line"
    start_broker(consortium.successor().successor(), "ada", box.vault, box.log)
    box.close()


def test_development_stands_alone(consortium: Consortium) -> None:
    """Rule H7: beside it every other level would be void."""
    with pytest.raises(MalformedError) as caught:
        replace(consortium.agreement, accept=(Level.TEE, Level.DEVELOPMENT))
    assert caught.value.code == "development-not-alone"


def test_signing_something_else_than_shown(consortium: Consortium) -> None:
    """One party cannot sign for another, nor with another key."""
    signed = SignedAgreement(consortium.agreement)
    with pytest.raises(PolicyError) as caught:
        add_signature(signed, create_identity("ada"))
    assert caught.value.code == "other-key"
