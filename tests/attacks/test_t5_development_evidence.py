"""T5 for development evidence: a false accelerator, or a man in the middle.

Every attack is tried twice: against Sealift, where it must be refused before the victim
has keys, and against a mutant that lacks the one rule which stops it, where it must
succeed. So each attack is a real one, and each rule is what stops it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from sealift import codec
from sealift.attest import Evidence, Level, policy
from sealift.attest import development as verifier
from sealift.attest.development import DevelopmentAttester, DevelopmentBody
from sealift.crypto import hpke as kem
from sealift.crypto.aead import Suite
from sealift.crypto.hash import labelled
from sealift.crypto.hpke import HpkePrivateKey
from sealift.crypto.keys import TOKEN, SecretKey
from sealift.crypto.sign import SigningKey
from sealift.errors import RefusedError, SealiftError
from sealift.ids import Role
from sealift.session import endpoint, handshake, transcript
from sealift.session.endpoint import Established, make_proof
from sealift.session.handshake import Initiator, Responder
from sealift.session.transcript import (
    Answer,
    Done,
    Hello,
    KeySchedule,
    Params,
    Proof,
    Reply,
    Side,
)
from tests.sim.attested import BUNDLE, Cast, accepting, run_handshake
from tests.sim.mutants import Patch, passing, without

Attack = Callable[[Cast], object]


@dataclass
class Canned:
    """An attester that shows whatever it was given."""

    evidence: Evidence

    def collect(self, bound: bytes) -> Evidence:
        return self.evidence


@dataclass
class Spied:
    """The genuine attester, with what it was asked for and answered."""

    genuine: DevelopmentAttester
    seen: list[Evidence]

    def collect(self, bound: bytes) -> Evidence:
        self.seen.append(self.genuine.collect(bound))
        return self.seen[-1]


def impostor(cast: Cast, attester: object) -> Responder:
    """Another process with the accelerator's name and its own instance key."""
    endpoint = replace(
        cast.accelerator,
        instance=SigningKey.generate(),
        attester=attester,  # type: ignore[arg-type]
    )
    return Responder(endpoint, cast.of_holder)


# ------------------------------------------------------------------- the attacks


def wrong_challenge(cast: Cast) -> object:
    """Evidence of an earlier handshake, shown again."""
    seen: list[Evidence] = []
    attester = cast.accelerator.attester
    assert isinstance(attester, DevelopmentAttester)
    run_handshake(cast.initiator(), impostor(cast, Spied(attester, seen)))
    return run_handshake(cast.initiator(), impostor(cast, Canned(seen[0])))


def unbound_key(cast: Cast) -> object:
    """Genuine evidence for the victim's very challenges, around the attacker's keys.

    The attacker has the genuine accelerator attest in a handshake of its own, with
    the victim's challenge and name, and answers the victim with its own key exchange.
    """
    victim = cast.initiator()
    wanted = codec.decode(Hello, victim.hello()).params
    attacker = HpkePrivateKey.generate()
    offer = kem.Offer.generate()
    relayed = replace(wanted, exchange=offer.public, hpke=attacker.public)
    genuine = codec.decode(Reply, cast.responder().reply(codec.encode(Hello(relayed))))
    exchange, shared = kem.respond(wanted.exchange)
    instance = SigningKey.generate()
    own = replace(
        genuine.params,
        exchange=exchange,
        hpke=attacker.public,
        instance=instance.public_key,
    )
    th1 = handshake.hash_params(wanted, own)
    endpoint = replace(
        cast.accelerator, instance=instance, attester=Canned(genuine_evidence(genuine))
    )
    shown = make_proof(endpoint, Side.RESPONDER, th1)
    answer = codec.decode(Answer, victim.answer(codec.encode(Reply(own, shown))))
    keys = KeySchedule(shared, handshake.hash_proofs(th1, answer.proof, shown))
    done = codec.encode(Done(keys.finished(Side.RESPONDER)))
    return victim.finish(done)


def genuine_evidence(reply: Reply) -> Evidence:
    assert reply.proof.evidence is not None
    return reply.proof.evidence


def other_role(cast: Cast) -> object:
    """A process that attests as a broker poses as the accelerator."""
    attester = DevelopmentAttester(
        cast.attester_key,
        role=Role.BROKER,
        code_bundle=BUNDLE,
    )
    return run_handshake(cast.initiator(), impostor(cast, attester))


def other_side(cast: Cast) -> object:
    """Evidence that one rank made as initiator, sent back to it by another as its own.

    Both have one role, so only the side tells their evidences apart.
    """
    rank = replace(cast.of_accelerator, names=None)
    honest = Initiator(cast.accelerator, rank)
    hello = codec.decode(Hello, honest.hello()).params
    mirror = SigningKey.generate()
    endpoint = replace(cast.accelerator, instance=mirror, attester=None)
    responder = Responder(
        endpoint, replace(rank, require_evidence=False, instance=hello.instance)
    )
    reply = codec.decode(Reply, responder.reply(codec.encode(Hello(hello))))
    th1 = handshake.hash_params(hello, reply.params)
    # What the honest rank shows as initiator in this very transcript.
    mine = make_proof(cast.accelerator, Side.INITIATOR, th1)
    shown = replace(reply.proof, evidence=mine.evidence)
    return honest.answer(codec.encode(Reply(reply.params, shown)))


def other_host(cast: Cast) -> object:
    """Genuine evidence by the attester key of a host that the agreement lacks."""
    attester = DevelopmentAttester(
        SigningKey.generate(),
        role=Role.ACCELERATOR,
        code_bundle=BUNDLE,
    )
    return run_handshake(cast.initiator(), impostor(cast, attester))


def other_code(cast: Cast) -> object:
    """The right attester, with another code bundle."""
    attester = DevelopmentAttester(cast.attester_key, role=Role.ACCELERATOR)
    return run_handshake(cast.initiator(), impostor(cast, attester))


def altered_claims(cast: Cast) -> object:
    """The code digest in genuine evidence is overwritten on the way."""
    wanted = BUNDLE
    genuine = DevelopmentAttester(cast.attester_key, role=Role.ACCELERATOR)

    class Altering:
        def collect(self, bound: bytes) -> Evidence:
            evidence = genuine.collect(bound)
            body = DevelopmentBody.parse(evidence.body)
            claims = replace(body.statement.claims, code_bundle=wanted)
            statement = replace(body.statement, claims=claims)
            body = replace(body, statement=statement)
            return replace(evidence, body=codec.encode(body))

    return run_handshake(cast.initiator(), impostor(cast, Altering()))


def replayed_messages(cast: Cast) -> object:
    """A whole recorded handshake, played to the accelerator again."""
    initiator, first = cast.initiator(), cast.responder()
    hello = initiator.hello()
    answer = initiator.answer(first.reply(hello))
    first.finish(answer)
    again = cast.responder()
    again.reply(hello)
    return again.finish(answer)


@dataclass
class Middle:
    """Sits between both ends and swaps key exchanges and HPKE keys."""

    initiator: Initiator
    responder: Responder

    def run(self) -> tuple[Established, Established, SecretKey, SecretKey]:
        self.offer, self.hpke = kem.Offer.generate(), HpkePrivateKey.generate()
        hello = codec.decode(Hello, self.initiator.hello()).params
        to_responder = replace(hello, exchange=self.offer.public, hpke=self.hpke.public)
        reply = codec.decode(
            Reply, self.responder.reply(codec.encode(Hello(to_responder)))
        )
        exchange, here = kem.respond(hello.exchange)
        there = self.offer.finish(reply.params.exchange)
        to_initiator = replace(reply.params, exchange=exchange, hpke=self.hpke.public)
        forwarded = codec.encode(Reply(to_initiator, reply.proof))
        answer = codec.decode(Answer, self.initiator.answer(forwarded))
        keys_here = self.keys(here, hello, to_initiator, answer.proof, reply.proof)
        keys_there = self.keys(
            there, to_responder, reply.params, answer.proof, reply.proof
        )
        finished = keys_there.finished(Side.INITIATOR)
        _, established_there = self.responder.finish(
            codec.encode(Answer(answer.proof, finished))
        )
        done = Done(keys_here.finished(Side.RESPONDER))
        established_here = self.initiator.finish(codec.encode(done))
        return (
            established_here,
            established_there,
            keys_here.traffic_key(Side.INITIATOR),
            keys_there.traffic_key(Side.INITIATOR),
        )

    def keys(
        self,
        shared: SecretKey,
        initiator: Params,
        responder: Params,
        answer: Proof,
        reply: Proof,
    ) -> KeySchedule:
        th1 = handshake.hash_params(initiator, responder)
        return KeySchedule(shared, handshake.hash_proofs(th1, answer, reply))


def man_in_the_middle(cast: Cast) -> object:
    """Both ends' proofs are passed on, the keys are the attacker's."""
    here, there, key_here, key_there = Middle(cast.initiator(), cast.responder()).run()
    # The attack worked if the middle reads what both ends would send and receive.
    assert here.send_key().reveal(TOKEN) == key_here.reveal(TOKEN)
    assert there.receive_key().reveal(TOKEN) == key_there.reveal(TOKEN)
    return here


def suite_downgrade(cast: Cast) -> object:
    """The middle strikes the suite that both would have chosen."""
    initiator, responder = cast.initiator(), cast.responder()
    hello = codec.decode(Hello, initiator.hello())
    struck = replace(hello.params, suites=(int(Suite.CHACHA20_POLY1305),))
    answer = initiator.answer(responder.reply(codec.encode(Hello(struck))))
    done, there = responder.finish(answer)
    here = initiator.finish(done)
    assert here.suite == there.suite == Suite.CHACHA20_POLY1305
    return here


def version_downgrade(cast: Cast) -> object:
    """The middle writes an older version into both parameters."""
    initiator, responder = cast.initiator(), cast.responder()
    hello = codec.decode(Hello, initiator.hello())
    older = replace(hello.params, version=0)
    reply = codec.decode(Reply, responder.reply(codec.encode(Hello(older))))
    older_reply = replace(reply, params=replace(reply.params, version=0))
    done, _ = responder.finish(initiator.answer(codec.encode(older_reply)))
    return initiator.finish(done)


def not_asked_for(cast: Cast) -> object:
    """Development evidence under an agreement that accepts a TEE."""
    cast.of_accelerator = accepting(cast.of_accelerator, Level.TEE)
    return run_handshake(cast.initiator(), cast.responder())


# ------------------------------------------------------------------- the mutants


def evidence_binds_only_challenges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Freshness without keys: what attestation inside a certificate often does."""
    challenges: list[bytes] = []

    def hash_params(initiator: Params, responder: Params) -> bytes:
        challenges[:] = [initiator.challenge, responder.challenge]
        return transcript.hash_params(initiator, responder)

    def bound_value(side: Side, role: Role, th1: bytes) -> bytes:
        return labelled("challenges only", *challenges)

    monkeypatch.setattr(handshake, "hash_params", hash_params)
    monkeypatch.setattr(endpoint, "bound_value", bound_value)


def evidence_without_side(monkeypatch: pytest.MonkeyPatch) -> None:
    without_side = lambda side, role, th1: labelled("x", role.encode(), th1)  # noqa: E731
    monkeypatch.setattr(endpoint, "bound_value", without_side)


def transcript_covers(*fields: str) -> Patch:
    """A mutant whose th1 covers the named parameters only."""

    def hash_params(initiator: Params, responder: Params) -> bytes:
        parts = [
            codec.encode({name: getattr(params, name) for name in fields})
            for params in (initiator, responder)
        ]
        return labelled("partial", *parts)

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(handshake, "hash_params", hash_params)

    return patch


def stateless_transcript(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither fresh values in th1 nor a Finished MAC: replay is all it takes."""
    transcript_covers("role", "name", "agreement", "instance")(monkeypatch)
    monkeypatch.setattr(KeySchedule, "verify_finished", lambda *args: None)


def any_version(monkeypatch: pytest.MonkeyPatch) -> None:
    transcript_covers("name", "exchange", "hpke", "instance")(monkeypatch)
    without(handshake, "_require_version")(monkeypatch)


CASES: list[tuple[Attack, str, Patch]] = [
    (wrong_challenge, "evidence-unbound", passing(verifier, "check_bound")),
    (unbound_key, "evidence-unbound", evidence_binds_only_challenges),
    (other_role, "evidence-role", without(endpoint, "_require_role")),
    (other_side, "evidence-unbound", evidence_without_side),
    (other_host, "attester-unknown", without(verifier, "_require_pinned_attester")),
    (other_code, "code-bundle-differs", passing(verifier, "check_code_bundle")),
    (altered_claims, "authentication", without(verifier, "_verify_signature")),
    (replayed_messages, "authentication", stateless_transcript),
    (
        man_in_the_middle,
        "authentication",
        transcript_covers("role", "name", "agreement", "instance", "challenge"),
    ),
    (
        suite_downgrade,
        "authentication",
        transcript_covers("name", "exchange", "hpke", "instance", "challenge"),
    ),
    (version_downgrade, "handshake-version", any_version),
    (not_asked_for, "development-refused", without(policy, "_require_level")),
]
NAMES = [attack.__name__ for attack, _, _ in CASES]


@pytest.mark.parametrize(("attack", "code", "mutant"), CASES, ids=NAMES)
def test_attack_is_refused(attack: Attack, code: str, mutant: Patch) -> None:
    with pytest.raises(RefusedError) as refusal:
        attack(Cast())
    assert refusal.value.code == code


@pytest.mark.parametrize(("attack", "code", "mutant"), CASES, ids=NAMES)
def test_mutant_falls(
    attack: Attack, code: str, mutant: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    try:
        assert attack(Cast())
    except SealiftError as error:
        pytest.fail(f"the attack does not work even without its rule: {error!r}")


def test_version_rewritten_on_one_way_only_breaks_the_transcript() -> None:
    """Without the version check it is still in th1."""
    cast = Cast()
    initiator, responder = cast.initiator(), cast.responder()
    hello = codec.decode(Hello, initiator.hello())
    reply = codec.decode(Reply, responder.reply(codec.encode(hello)))
    older = replace(reply, params=replace(reply.params, version=0))
    with pytest.raises(RefusedError):
        initiator.answer(codec.encode(older))


def test_the_genuine_accelerator_is_accepted() -> None:
    """Positive control: the same cast, nobody in between."""
    cast = Cast()
    here, there = run_handshake(cast.initiator(), cast.responder())
    assert here.th2 == there.th2
