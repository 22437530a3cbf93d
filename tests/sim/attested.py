"""Endpoints and policies of an agreement between a holder and an accelerator."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sealift.attest import Appraiser, Level, ReferenceValues
from sealift.attest.development import DevelopmentAttester
from sealift.channel.transport.transport import Transport
from sealift.crypto.sign import SigningKey
from sealift.ids import Digest, Role
from sealift.session.endpoint import Endpoint, Established, PeerPolicy
from sealift.session.handshake import Initiator, Responder
from sealift.session.session import Session, accept, connect
from tests.worlds.memorytransport import memory_pair

A = TypeVar("A")
B = TypeVar("B")
AGREEMENT = Digest.of(b"agreement")
BUNDLE = Digest.of(b"bundle")


@dataclass
class Cast:
    """A holder with an identity, an accelerator with development evidence."""

    attester_key: SigningKey = field(default_factory=SigningKey.generate)
    identity: SigningKey = field(default_factory=SigningKey.generate)

    def __post_init__(self) -> None:
        attester = DevelopmentAttester(
            self.attester_key, role=Role.ACCELERATOR, code_bundle=BUNDLE
        )
        self.accelerator = Endpoint(
            role=Role.ACCELERATOR,
            name="accelerator-0",
            agreement=AGREEMENT,
            attester=attester,
        )
        self.holder = Endpoint(
            role=Role.HOLDER,
            name="hospital-a",
            agreement=AGREEMENT,
            identity=self.identity,
        )
        # What the holder demands of the accelerator, and the other way round.
        self.of_accelerator = PeerPolicy(
            roles=frozenset({Role.ACCELERATOR}),
            require_evidence=True,
            appraiser=Appraiser(
                accept=(Level.DEVELOPMENT,),
                references=ReferenceValues(
                    development_attesters=(self.attester_key.public_key,),
                    code_bundle=BUNDLE,
                ),
            ),
        )
        self.of_holder = PeerPolicy(
            roles=frozenset({Role.HOLDER}),
            require_identity=True,
            identities={"hospital-a": self.identity.public_key},
        )

    def initiator(self, **changes: object) -> Initiator:
        """The holder's side, with changes to its endpoint."""
        endpoint = replace(self.holder, **changes)  # type: ignore[arg-type]
        return Initiator(endpoint, self.of_accelerator)

    def responder(self, **changes: object) -> Responder:
        """The accelerator's side, with changes to its endpoint."""
        endpoint = replace(self.accelerator, **changes)  # type: ignore[arg-type]
        return Responder(endpoint, self.of_holder)

    def sessions(
        self, transports: tuple[Transport, Transport] | None = None
    ) -> tuple[Session, Session]:
        """Both ends of a live session: the holder's, the accelerator's."""
        here, there = transports or memory_pair()
        return both(
            lambda: connect(here, self.holder, self.of_accelerator),
            lambda: accept(there, self.accelerator, self.of_holder),
        )


def run_handshake(
    initiator: Initiator, responder: Responder
) -> tuple[Established, Established]:
    """All four messages, unharmed."""
    answer = initiator.answer(responder.reply(initiator.hello()))
    done, there = responder.finish(answer)
    return initiator.finish(done), there


def both(first: Callable[[], A], second: Callable[[], B]) -> tuple[A, B]:
    """Run two calls that wait for each other; the first error is raised."""
    outcome: list[B] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(second())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        here = first()
    finally:
        thread.join(300)
    if errors:
        raise errors[0]
    return here, outcome[0]


def accepting(policy: PeerPolicy, *levels: Level) -> PeerPolicy:
    """The policy, with other accepted levels."""
    assert policy.appraiser
    return replace(policy, appraiser=replace(policy.appraiser, accept=levels))
