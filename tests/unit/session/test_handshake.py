from __future__ import annotations

from dataclasses import replace

import pytest

from sealift import codec
from sealift.attest import Appraiser, Level
from sealift.crypto.aead import Suite
from sealift.crypto.hpke import X25519_BYTES
from sealift.crypto.keys import TOKEN, Label
from sealift.crypto.sign import SigningKey
from sealift.errors import (
    AuthenticationError,
    EvidenceError,
    MalformedError,
    PolicyError,
    RefusedError,
    UsageError,
)
from sealift.ids import Digest, Role
from sealift.session.endpoint import Endpoint, PeerPolicy
from sealift.session.handshake import Initiator, Responder
from sealift.session.transcript import MAX_HELLO_BYTES, Hello
from tests.sim.attested import Cast, accepting, run_handshake


@pytest.fixture
def cast() -> Cast:
    return Cast()


def test_both_sides_agree_on_everything(cast: Cast) -> None:
    here, there = run_handshake(cast.initiator(), cast.responder())
    assert here.th2 == there.th2
    assert here.suite == there.suite == Suite.AES_256_GCM
    assert here.peer.name == "accelerator-0"
    assert here.peer.result is not None
    assert here.peer.result.level is Level.DEVELOPMENT
    assert here.peer.hpke == there.hpke.public
    assert there.peer.hpke == here.hpke.public
    assert there.peer.identity == cast.identity.public_key
    assert there.peer.instance == cast.holder.instance.public_key
    assert there.peer.result is None


def test_keys_pair_up_and_differ_by_direction(cast: Cast) -> None:
    here, there = run_handshake(cast.initiator(), cast.responder())
    sent = here.send_key().reveal(TOKEN)
    assert sent == there.receive_key().reveal(TOKEN)
    assert here.receive_key().reveal(TOKEN) == there.send_key().reveal(TOKEN)
    assert sent != there.send_key().reveal(TOKEN)


def test_exports_agree_and_are_separated(cast: Cast) -> None:
    here, there = run_handshake(cast.initiator(), cast.responder())
    first = here.export(Label.VISIT_FRAME, b"1").reveal(TOKEN)
    assert first == there.export(Label.VISIT_FRAME, b"1").reveal(TOKEN)
    assert first != here.export(Label.VISIT_FRAME, b"2").reveal(TOKEN)
    assert first != here.export(Label.LEASE, b"1").reveal(TOKEN)


def test_every_session_has_its_own_keys(cast: Cast) -> None:
    first, _ = run_handshake(cast.initiator(), cast.responder())
    second, _ = run_handshake(cast.initiator(), cast.responder())
    assert first.th2 != second.th2
    assert first.hpke.public != second.hpke.public
    assert first.send_key().reveal(TOKEN) != second.send_key().reveal(TOKEN)


def test_agreements_must_be_one(cast: Cast) -> None:
    other = Digest.of(b"another agreement")
    with pytest.raises(PolicyError) as refusal:
        run_handshake(cast.initiator(agreement=other), cast.responder())
    assert refusal.value.code == "agreement-differs"
    assert other.short in str(refusal.value)
    assert refusal.value.fix


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"role": Role.BROKER}, "role-refused"),
        ({"name": "hospital-b"}, "identity-differs"),
        ({"identity": None}, "identity-missing"),
        ({"identity": SigningKey.generate()}, "identity-differs"),
    ],
)
def test_initiator_is_refused(
    cast: Cast, changes: dict[str, object], code: str
) -> None:
    with pytest.raises(PolicyError) as refusal:
        run_handshake(cast.initiator(**changes), cast.responder())
    assert refusal.value.code == code


def test_missing_evidence_is_refused(cast: Cast) -> None:
    with pytest.raises(EvidenceError) as refusal:
        run_handshake(cast.initiator(), cast.responder(attester=None))
    assert refusal.value.code == "evidence-missing"


def test_development_is_refused_where_not_asked_for(cast: Cast) -> None:
    cast.of_accelerator = accepting(cast.of_accelerator, Level.TEE)
    with pytest.raises(PolicyError) as refusal:
        run_handshake(cast.initiator(), cast.responder())
    assert refusal.value.code == "development-refused"


def test_unasked_evidence_is_refused(cast: Cast) -> None:
    cast.of_accelerator = PeerPolicy(
        roles=frozenset({Role.ACCELERATOR}),
        instance=cast.accelerator.instance.public_key,
    )
    with pytest.raises(PolicyError) as refusal:
        run_handshake(cast.initiator(), cast.responder())
    assert refusal.value.code == "evidence-refused"


def test_expected_names_and_instances(cast: Cast) -> None:
    policy = cast.of_accelerator
    cast.of_accelerator = replace(policy, names=frozenset({"accelerator-2"}))
    with pytest.raises(PolicyError) as refusal:
        run_handshake(cast.initiator(), cast.responder())
    assert refusal.value.code == "name-refused"
    other = SigningKey.generate().public_key
    cast.of_accelerator = replace(policy, instance=other)
    with pytest.raises(PolicyError) as refusal:
        run_handshake(cast.initiator(), cast.responder())
    assert refusal.value.code == "instance-differs"
    instance = cast.accelerator.instance.public_key
    cast.of_accelerator = replace(policy, instance=instance)
    run_handshake(cast.initiator(), cast.responder())


def test_an_instance_key_cannot_be_borrowed(cast: Cast) -> None:
    """Naming another process's instance key fails: possession is proven."""

    class Borrowed:
        public_key = cast.accelerator.instance.public_key
        sign = SigningKey.generate().sign

    with pytest.raises(AuthenticationError):
        run_handshake(cast.initiator(), cast.responder(instance=Borrowed()))


def test_suites_are_negotiated(cast: Cast) -> None:
    chacha = (Suite.CHACHA20_POLY1305,)
    responder = Responder(cast.accelerator, cast.of_holder, suites=chacha)
    here, there = run_handshake(cast.initiator(), responder)
    assert here.suite == there.suite == Suite.CHACHA20_POLY1305
    initiator = Initiator(cast.holder, cast.of_accelerator, suites=chacha)
    only_gcm = Responder(cast.accelerator, cast.of_holder, suites=(Suite.AES_256_GCM,))
    with pytest.raises(PolicyError) as refusal:
        run_handshake(initiator, only_gcm)
    assert refusal.value.code == "no-common-suite"


def test_other_versions_are_refused(cast: Cast) -> None:
    hello = codec.decode(Hello, cast.initiator().hello())
    later = Hello(replace(hello.params, version=2))
    with pytest.raises(PolicyError) as refusal:
        cast.responder().reply(codec.encode(later))
    assert refusal.value.code == "handshake-version"


def test_predecessors_must_match(cast: Cast) -> None:
    earlier, _ = run_handshake(cast.initiator(), cast.responder())
    initiator = Initiator(cast.holder, cast.of_accelerator, renews=earlier)
    with pytest.raises(PolicyError) as refusal:
        run_handshake(initiator, cast.responder())
    assert refusal.value.code == "predecessor-differs"


def test_steps_have_an_order_and_happen_once(cast: Cast) -> None:
    initiator, responder = cast.initiator(), cast.responder()
    with pytest.raises(UsageError):
        initiator.finish(b"")
    with pytest.raises(UsageError):  # that ended it
        initiator.hello()
    initiator = cast.initiator()
    hello = initiator.hello()
    responder.reply(hello)
    with pytest.raises(UsageError):
        responder.reply(hello)


def test_a_failed_step_ends_the_handshake(cast: Cast) -> None:
    initiator, responder = cast.initiator(), cast.responder()
    reply = responder.reply(initiator.hello())
    with pytest.raises(MalformedError):
        initiator.answer(b"{}")
    with pytest.raises(UsageError):
        initiator.answer(reply)


def test_low_order_points_are_refused(cast: Cast) -> None:
    hello = codec.decode(Hello, cast.initiator().hello())
    exchange = bytes(X25519_BYTES) + hello.params.exchange[X25519_BYTES:]
    low = Hello(replace(hello.params, exchange=exchange))
    with pytest.raises(AuthenticationError):
        cast.responder().reply(codec.encode(low))


@pytest.mark.parametrize("message", [b"", b"{}", b"null", b"[" * 1000, bytes(1 << 21)])
def test_garbage_is_malformed(cast: Cast, message: bytes) -> None:
    with pytest.raises(MalformedError):
        cast.responder().reply(message)


def test_a_long_hello_is_refused_unparsed(cast: Cast) -> None:
    message = cast.initiator().hello()
    assert len(message) < MAX_HELLO_BYTES // 2
    with pytest.raises(MalformedError, match=f"limit is {MAX_HELLO_BYTES:,}"):
        cast.responder().reply(message + b" " * MAX_HELLO_BYTES)


def test_own_message_sent_back_is_refused(cast: Cast) -> None:
    """A process is no peer of itself, whatever its policy allows."""
    both_ways = replace(cast.of_holder, roles=frozenset(Role))
    responder = Responder(cast.holder, both_ways)
    with pytest.raises(RefusedError):
        responder.reply(cast.initiator().hello())


@pytest.mark.parametrize(
    "demands",
    [
        {},
        {"require_identity": True},
        {"roles": frozenset(), "require_evidence": True},
    ],
)
def test_policies_that_take_anybody_are_refused(demands: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        PeerPolicy(**{"roles": frozenset({Role.HOLDER}), **demands})  # type: ignore[arg-type]


def test_policies_check_accept() -> None:
    with pytest.raises(MalformedError):
        Appraiser(accept=(Level.TEE, Level.DEVELOPMENT))
    with pytest.raises(UsageError):
        PeerPolicy(roles=frozenset({Role.HOLDER}), require_evidence=True)


def test_endpoints_have_proper_names() -> None:
    with pytest.raises(MalformedError):
        Endpoint(role=Role.HOLDER, name="Hospital A", agreement=Digest.of(b""))
