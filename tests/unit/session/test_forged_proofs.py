"""What a peer could say that it cannot prove: each is refused by a check of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sealift import codec
from sealift.attest.development import DevelopmentAttester
from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.errors import AuthenticationError, EvidenceError, PolicyError, UsageError
from sealift.ids import Role
from sealift.session.transcript import Answer, Done, Hello, KeySchedule, Reply
from tests.sim.attested import BUNDLE, Cast, run_handshake


@pytest.fixture
def cast() -> Cast:
    return Cast()


class Claimed:
    """Signs with a key of its own, and names another one."""

    def __init__(self, public_key: PublicKey) -> None:
        self.public_key = public_key
        self.sign = SigningKey.generate().sign


def test_a_party_cannot_be_claimed_without_its_key(cast: Cast) -> None:
    run_handshake(cast.initiator(), cast.responder())  # control: with the key it can
    claimed = Claimed(cast.identity.public_key)
    with pytest.raises(AuthenticationError):
        run_handshake(cast.initiator(identity=claimed), cast.responder())


def test_a_responder_cannot_claim_a_party_either(cast: Cast) -> None:
    lab = SigningKey.generate()
    cast.of_accelerator = replace(
        cast.of_accelerator,
        require_identity=True,
        identities={"accelerator-0": lab.public_key},
    )
    run_handshake(cast.initiator(), cast.responder(identity=lab))
    claimed = Claimed(lab.public_key)
    with pytest.raises(AuthenticationError):
        run_handshake(cast.initiator(), cast.responder(identity=claimed))


def test_a_named_identity_comes_with_its_signature(cast: Cast) -> None:
    initiator, responder = cast.initiator(), cast.responder()
    said = codec.decode(
        Answer, initiator.answer(responder.reply(initiator.hello())), max_bytes=1 << 20
    )
    silent = replace(said, proof=replace(said.proof, identity=None))
    with pytest.raises(PolicyError) as refusal:
        responder.finish(codec.encode(silent))
    assert refusal.value.code == "identity-incomplete"


def test_evidence_of_another_role_is_refused(cast: Cast) -> None:
    broker = DevelopmentAttester(
        cast.attester_key, role=Role.BROKER, code_bundle=BUNDLE
    )
    with pytest.raises(EvidenceError) as refusal:
        run_handshake(cast.initiator(), cast.responder(attester=broker))
    assert refusal.value.code == "evidence-role"


def flipped(mac: bytes) -> bytes:
    return bytes([mac[0] ^ 1]) + mac[1:]


def test_the_initiator_shows_that_it_has_the_keys(cast: Cast) -> None:
    initiator, responder = cast.initiator(), cast.responder()
    said = codec.decode(
        Answer, initiator.answer(responder.reply(initiator.hello())), max_bytes=1 << 20
    )
    wrong = replace(said, finished=flipped(said.finished))
    with pytest.raises(AuthenticationError):
        responder.finish(codec.encode(wrong))


def test_the_responder_shows_that_it_has_the_keys(cast: Cast) -> None:
    initiator, responder = cast.initiator(), cast.responder()
    done, _ = responder.finish(initiator.answer(responder.reply(initiator.hello())))
    finished = flipped(codec.decode(Done, done).finished)
    with pytest.raises(AuthenticationError):
        initiator.finish(codec.encode(Done(finished)))


@pytest.mark.parametrize("suites", [(3,), (1, 2)])
def test_the_suite_that_is_chosen_was_offered(
    cast: Cast, suites: tuple[int, ...]
) -> None:
    initiator = cast.initiator()
    reply = codec.decode(
        Reply, cast.responder().reply(initiator.hello()), max_bytes=1 << 20
    )
    other = replace(reply, params=replace(reply.params, suites=suites))
    with pytest.raises(PolicyError) as refusal:
        initiator.answer(codec.encode(other))
    assert refusal.value.code == "no-common-suite"


@pytest.mark.parametrize("field", ["challenge", "exchange", "hpke"])
def test_what_must_be_fresh_is(cast: Cast, field: str) -> None:
    def said(make: Callable[[], bytes]) -> object:
        return getattr(codec.decode(Hello, make()).params, field)

    assert said(cast.initiator().hello) != said(cast.initiator().hello)


def test_the_shared_secret_is_not_kept() -> None:
    shared = SecretKey.generate()
    KeySchedule(shared, bytes(32))
    with pytest.raises(UsageError, match="wiped"):
        KeySchedule(shared, bytes(32))
