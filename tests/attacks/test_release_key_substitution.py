"""Planting a key: whoever sees the accelerator's public key sends it one (rule C9).

HPKE's base mode cannot tell who sealed. Signature and key commitment can. Each defence
is taken away once, alone and together, to show that the attack is a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sealift.codec import decode, encode
from sealift.crypto.keys import TOKEN, Label, SecretKey
from sealift.crypto.sign import SigningKey, sign_document
from sealift.errors import IntegrityError, PolicyError, RefusedError, StaleError
from sealift.ids import Digest
from sealift.release import grant
from sealift.release.broker.messages import BrokerAnswer
from sealift.release.client import collect_release
from sealift.release.grant import KeyRelease, SealedKey, seal_grant
from tests.sim.owners import AcceleratorSide, BrokerBox, make_broker, session_pair
from tests.worlds.consortium import RUN, Consortium, make_consortium

PLANTED = bytes(range(32))


@pytest.fixture(scope="module")
def consortium() -> Consortium:
    return make_consortium()


@pytest.fixture
def box(consortium: Consortium, tmp_path: Path) -> Iterator[BrokerBox]:
    box = make_broker(consortium, "ada", tmp_path)
    yield box
    box.close()


def collect(consortium: Consortium, session: AcceleratorSide) -> bytes:
    key, _ = collect_release(
        session, consortium.verified(), "ada-train", clock=lambda: 0.0, run=RUN
    )
    return key.reveal(TOKEN)


def intercept(
    session: AcceleratorSide, change: Callable[[KeyRelease], KeyRelease]
) -> None:
    """Let ``change`` rewrite the release on its way."""

    def tamper(raw: bytes) -> bytes:
        answer = decode(BrokerAnswer, raw)
        assert answer.release is not None
        return encode(replace(answer, release=change(answer.release)))

    session.tamper = tamper  # type: ignore[method-assign]


def plant(session: AcceleratorSide, signer: SigningKey) -> None:
    """Replace the sealed key by one of our own, for the same info."""
    recipient = session.other.peer.hpke

    def change(release: KeyRelease) -> KeyRelease:
        planted = SecretKey(PLANTED)
        info = release.key.info
        sealed, signature = seal_grant(
            planted, info, recipient=recipient, signer=signer, label=Label.RELEASE
        )
        return replace(release, key=SealedKey(info, sealed, signature))

    intercept(session, change)


def keep_signature(session: AcceleratorSide) -> None:
    """Replace the sealed key, keep the owner's signature."""
    recipient = session.other.peer.hpke

    def change(release: KeyRelease) -> KeyRelease:
        sealed = recipient.seal(encode(release.key.info), PLANTED)
        return replace(release, key=replace(release.key, sealed=sealed))

    intercept(session, change)


@pytest.mark.parametrize("own_signature", [True, False])
def test_planted_key_is_refused(
    consortium: Consortium, box: BrokerBox, own_signature: bool
) -> None:
    session = session_pair(consortium, box.broker, "ada")
    if own_signature:
        plant(session, SigningKey.generate())
    else:
        keep_signature(session)
    with pytest.raises(RefusedError) as caught:
        collect(consortium, session)
    assert caught.value.code == "release-unsigned"


def test_the_owner_itself_cannot_give_another_key(
    consortium: Consortium, box: BrokerBox
) -> None:
    """Chosen key and chosen data: the agreement's key commitment is in the way."""
    session = session_pair(consortium, box.broker, "ada")
    plant(session, consortium.identities["ada"])  # type: ignore[arg-type]
    with pytest.raises(IntegrityError) as caught:
        collect(consortium, session)
    assert caught.value.code == "other-key"


def test_mutant_without_both_checks_takes_the_planted_key(
    consortium: Consortium, box: BrokerBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: the attack works where the two checks are missing."""
    monkeypatch.setattr(grant, "verify_owner", lambda *args: None)
    monkeypatch.setattr(grant, "_verify_commitment", lambda *args: None)
    session = session_pair(consortium, box.broker, "ada")
    plant(session, SigningKey.generate())
    assert collect(consortium, session) == PLANTED


def test_mutant_without_commitment_takes_the_owners_other_key(
    consortium: Consortium, box: BrokerBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grant, "_verify_commitment", lambda *args: None)
    session = session_pair(consortium, box.broker, "ada")
    plant(session, consortium.identities["ada"])  # type: ignore[arg-type]
    assert collect(consortium, session) == PLANTED


def test_release_for_another_session_is_refused(
    consortium: Consortium, box: BrokerBox
) -> None:
    """A recorded release does not fit another session, nor another challenge."""
    recorded: list[bytes] = []
    first = session_pair(consortium, box.broker, "ada")
    first.tamper = lambda raw: recorded.append(raw) or raw  # type: ignore[func-returns-value, method-assign]
    collect(consortium, first)
    for session in (session_pair(consortium, box.broker, "ada"), first):
        session.tamper = lambda raw: recorded[0]  # type: ignore[method-assign]
        with pytest.raises(StaleError) as caught:
            collect(consortium, session)
        assert caught.value.code == "release-foreign"


def test_key_sealed_to_somebody_else_does_not_open(
    consortium: Consortium, box: BrokerBox
) -> None:
    """A relay puts its own HPKE key in the peer's place: it gets what it cannot use."""
    session = session_pair(consortium, box.broker, "ada")
    other = session_pair(consortium, box.broker, "ada")
    session.other.peer = other.other.peer
    with pytest.raises(RefusedError) as caught:
        collect(consortium, session)
    assert caught.value.code == "authentication"


def test_a_broker_that_is_not_the_owners_is_not_asked(
    consortium: Consortium, box: BrokerBox
) -> None:
    session = session_pair(consortium, box.broker, "bern")
    with pytest.raises(PolicyError) as caught:
        collect(consortium, session)
    assert caught.value.code == "not-the-owner"
    assert not session.other.inbox


def test_a_broker_under_another_agreement_is_not_asked(
    consortium: Consortium, box: BrokerBox
) -> None:
    session = session_pair(consortium, box.broker, "ada")
    session.peer = replace(session.peer, agreement=Digest.of(b"another"))
    with pytest.raises(PolicyError) as caught:
        collect(consortium, session)
    assert caught.value.code == "other-agreement"
    assert not session.other.inbox


def test_a_release_in_another_owners_log_is_refused(
    consortium: Consortium, box: BrokerBox
) -> None:
    """The same tree under the head of a party that could have any log."""
    bern = consortium.identities["bern"]

    def move(release: KeyRelease) -> KeyRelease:
        head = replace(release.head.body, log=bern.public_key)
        return replace(release, head=sign_document(head, bern))

    session = session_pair(consortium, box.broker, "ada")
    intercept(session, move)
    with pytest.raises(PolicyError) as caught:
        collect(consortium, session)
    assert caught.value.code == "other-log"


def test_a_release_that_the_log_does_not_include_is_refused(
    consortium: Consortium, box: BrokerBox
) -> None:
    """The entry says what it should, and stands nowhere under the head."""

    def drop(release: KeyRelease) -> KeyRelease:
        index = release.inclusion.index - 1
        return replace(release, inclusion=replace(release.inclusion, index=index))

    session = session_pair(consortium, box.broker, "ada")
    intercept(session, drop)
    with pytest.raises(IntegrityError) as caught:
        collect(consortium, session)
    assert caught.value.code == "entry-not-in-log"


def test_challenge_cannot_be_used_twice(consortium: Consortium, box: BrokerBox) -> None:
    """Replaying a recorded request to the broker gets a logged refusal."""
    session = session_pair(consortium, box.broker, "ada")
    collect(consortium, session)
    asked: list[bytes] = []
    session.send_message = lambda message: (  # type: ignore[method-assign]
        asked.append(encode(message)),
        session.other.inbox.append(asked[0]),
    )[1]
    collect(consortium, session)
    with pytest.raises(PolicyError, match="challenge-replayed"):
        collect(consortium, session)
