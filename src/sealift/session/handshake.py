"""The handshake as two pure state machines: bytes in, bytes out (spec/handshake.md).

Guarantees: when ``Established`` is there, the peer proved its instance key and what the
policy demands over one transcript that covers every parameter of both sides, and has
the same keys. A step that fails, or is called out of order, ends the object. A renewal is
the whole handshake again, chained to the th2 of the session that it renews and with the
very same process: whoever holds that session's keys cannot compute the next ones, nor take
part, since identity, evidence and instance key authenticate it as they did the first.
What it does not do: it sends nothing, reads no clock and hides no names (parameters and
proofs cross in the clear; see docs/adr/0006).
Source: rule C7; SIGMA-I's signed transcript, TLS 1.3's Finished.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final

from sealift import codec
from sealift.attest.evidence import Challenge
from sealift.crypto import hpke as kem
from sealift.crypto.aead import Suite
from sealift.crypto.hpke import HpkePrivateKey
from sealift.errors import AuthenticationError, PolicyError, UsageError
from sealift.session.endpoint import (
    Endpoint,
    Established,
    PeerPolicy,
    VerifiedPeer,
    make_proof,
    screen_params,
    verify_peer,
)
from sealift.session.transcript import (
    MAX_HANDSHAKE_BYTES,
    MAX_HELLO_BYTES,
    VERSION,
    Answer,
    Done,
    Hello,
    KeySchedule,
    Params,
    Proof,
    Reply,
    Side,
    hash_params,
    hash_proofs,
)

SUITES: Final = (Suite.AES_256_GCM, Suite.CHACHA20_POLY1305)


class _Step(Enum):
    START = auto()
    SENT = auto()
    PROVEN = auto()
    OVER = auto()


class _Party:
    """What both sides keep: endpoint, policy, fresh keys, and the step they are at."""

    def __init__(
        self,
        endpoint: Endpoint,
        policy: PeerPolicy,
        *,
        suites: Sequence[Suite] = SUITES,
        renews: Established | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._policy = policy
        self._suites = tuple(suites)
        self._predecessor = renews.th2 if renews else b""
        self._shown = renews.shown if renews else None
        self._former = renews.peer if renews else None
        self._earlier = self._former.result if self._former else None
        self._hpke = HpkePrivateKey.generate()
        self._step = _Step.START

    def _leave(self, step: _Step) -> None:
        """Demand that we are at ``step``, and be over until the step succeeds."""
        found, self._step = self._step, _Step.OVER
        if found is not step:
            raise UsageError("this handshake has ended, or is at another step")

    def _params(self, suites: tuple[int, ...], exchange: bytes) -> Params:
        own = self._endpoint
        return Params(
            version=VERSION,
            suites=suites,
            role=own.role,
            name=own.name,
            identity=own.identity.public_key if own.identity else None,
            agreement=own.agreement,
            instance=own.instance.public_key,
            challenge=Challenge.generate().raw,
            exchange=exchange,
            hpke=self._hpke.public,
            predecessor=self._predecessor,
        )

    def _screen(self, params: Params) -> None:
        _require_version(params)
        if params.instance == self._endpoint.instance.public_key:
            raise AuthenticationError  # our own message, sent back to us
        if not secrets.compare_digest(params.predecessor, self._predecessor):
            raise PolicyError(
                "the peer continues another session than this process",
                code="predecessor-differs",
            )
        screen_params(self._policy, params, self._endpoint.agreement)

    def _establish(
        self, side: Side, peer: VerifiedPeer, suite: int, keys: KeySchedule
    ) -> Established:
        if self._former is not None and _lasting(peer) != _lasting(self._former):
            raise PolicyError(
                "another peer than before answered the rekey",
                why="role, name, identity and instance key must not change",
                code="rekey-peer-differs",
            )
        return Established(
            side=side,
            peer=peer,
            suite=suite,
            hpke=self._hpke,
            shown=self._proof.evidence,
            keys=keys,
        )

    def _prove(self, side: Side, th1: bytes) -> Proof:
        self._proof = make_proof(self._endpoint, side, th1, self._shown)
        return self._proof


class Initiator(_Party):
    """The side that speaks first: ``hello``, ``answer``, ``finish``."""

    def hello(self) -> bytes:
        """Message 1."""
        self._leave(_Step.START)
        self._offer = kem.Offer.generate()
        self._own = self._params(
            tuple(int(suite) for suite in self._suites), self._offer.public
        )
        self._step = _Step.SENT
        return codec.encode(Hello(self._own))

    def answer(self, message: bytes) -> bytes:
        """Verify message 2, return message 3.

        Raises:
            RefusedError: the peer is not who or what the policy demands.
            MalformedError: the message does not parse.
        """
        self._leave(_Step.SENT)
        reply = codec.decode(Reply, message, max_bytes=MAX_HANDSHAKE_BYTES)
        self._screen(reply.params)
        self._suite = _chosen_suite(reply.params, self._own)
        th1 = hash_params(self._own, reply.params)
        self._peer = verify_peer(
            self._policy,
            reply.params,
            reply.proof,
            side=Side.RESPONDER,
            th1=th1,
            earlier=self._earlier,
        )
        shared = self._offer.finish(reply.params.exchange)
        proof = self._prove(Side.INITIATOR, th1)
        self._keys = KeySchedule(shared, hash_proofs(th1, proof, reply.proof))
        self._step = _Step.PROVEN
        return codec.encode(Answer(proof, self._keys.finished(Side.INITIATOR)))

    def finish(self, message: bytes) -> Established:
        """Verify message 4.

        Raises:
            AuthenticationError: the peer does not have our keys and transcript.
            MalformedError: the message does not parse.
        """
        self._leave(_Step.PROVEN)
        done = codec.decode(Done, message, max_bytes=MAX_HANDSHAKE_BYTES)
        self._keys.verify_finished(Side.RESPONDER, done.finished)
        return self._establish(Side.INITIATOR, self._peer, self._suite, self._keys)


class Responder(_Party):
    """The side that answers: ``reply``, ``finish``."""

    def reply(self, message: bytes) -> bytes:
        """Screen message 1, return message 2.

        Raises:
            RefusedError: the parameters are not acceptable.
            MalformedError: the message does not parse.
        """
        self._leave(_Step.START)
        hello = codec.decode(Hello, message, max_bytes=MAX_HELLO_BYTES)
        self._screen(hello.params)
        self._suite = _choose_suite(hello.params, self._suites)
        exchange, self._shared = kem.respond(hello.params.exchange)
        own = self._params((self._suite,), exchange)
        self._initiator = hello.params
        self._th1 = hash_params(hello.params, own)
        self._step = _Step.SENT
        return codec.encode(Reply(own, self._prove(Side.RESPONDER, self._th1)))

    def finish(self, message: bytes) -> tuple[bytes, Established]:
        """Verify message 3, return message 4 and the session's keys.

        Raises:
            RefusedError: the peer is not who or what the policy demands.
            MalformedError: the message does not parse.
        """
        self._leave(_Step.SENT)
        answer = codec.decode(Answer, message, max_bytes=MAX_HANDSHAKE_BYTES)
        peer = verify_peer(
            self._policy,
            self._initiator,
            answer.proof,
            side=Side.INITIATOR,
            th1=self._th1,
            earlier=self._earlier,
        )
        keys = KeySchedule(
            self._shared, hash_proofs(self._th1, answer.proof, self._proof)
        )
        keys.verify_finished(Side.INITIATOR, answer.finished)
        done = codec.encode(Done(keys.finished(Side.RESPONDER)))
        return done, self._establish(Side.RESPONDER, peer, self._suite, keys)


def _lasting(peer: VerifiedPeer) -> tuple[object, ...]:
    return (peer.role, peer.name, peer.identity, peer.instance, peer.agreement)


def _require_version(params: Params) -> None:
    if params.version != VERSION:
        raise PolicyError(
            f"the peer uses version {params.version} of the handshake",
            why=f"this Sealift uses version {VERSION}",
            code="handshake-version",
        )


def _choose_suite(offered: Params, ours: tuple[Suite, ...]) -> int:
    for suite in ours:
        if int(suite) in offered.suites:
            return int(suite)
    raise PolicyError(
        "the two ends have no cipher suite in common",
        why=f"the peer offers {list(offered.suites)}",
        code="no-common-suite",
    )


def _chosen_suite(reply: Params, own: Params) -> int:
    if len(reply.suites) != 1 or reply.suites[0] not in own.suites:
        raise PolicyError(
            "the peer chose a cipher suite that was not offered",
            why=f"it chose {list(reply.suites)} of {list(own.suites)}",
            code="no-common-suite",
        )
    return reply.suites[0]
