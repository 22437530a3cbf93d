"""Attacks from outside: names that one has no key for (C7), certificates (N9)."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Final

from sealift.crypto.certificate import read_certificate
from sealift.crypto.keys import Label
from sealift.crypto.sign import PublicKey, Signer, SigningKey
from sealift.ids import Buffer, Role
from sealift.session.endpoint import PeerPolicy
from sealift.session.relay.client import RelayClient
from sealift.session.relay.envelope import Registry, prover
from sealift.session.relay.server import Relay
from sealift.session.session import accept, connect
from sealift.travel.peers import expect_accelerator
from tests.attacks.scenarios.world import ADA, AttackWorld, refusal
from tests.worlds.memorytransport import memory_pair

WAIT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class _Claimed:
    """Names a party's key, and signs with another."""

    public_key: PublicKey

    def sign(self, label: Label, message: Buffer) -> bytes:
        """With a key of its own."""
        return SigningKey.generate().sign(label, message)


def claims_a_party(world: AttackWorld) -> str:
    """A session in the name of a party whose key one does not have."""
    return _met(world, _Claimed(world.identities[ADA].public_key))


def is_that_party(world: AttackWorld) -> bool:
    """The party itself is met."""
    return not _met(world, world.identities[ADA])


def _met(world: AttackWorld, signer: Signer) -> str:
    theirs, ours = memory_pair()
    own = replace(world.consortium.endpoint(Role.HOLDER, ADA), identity=signer)
    wanted = PeerPolicy(
        roles=frozenset({Role.HOLDER}),
        require_identity=True,
        identities={ADA: world.identities[ADA].public_key},
    )
    expected = expect_accelerator(world.agreement, "accelerator-0")
    caller = threading.Thread(
        target=lambda: refusal(lambda: connect(theirs, own, expected)), daemon=True
    )
    caller.start()
    try:
        return refusal(lambda: accept(ours, world.endpoint, wanted, WAIT_S).close())
    finally:
        ours.close()
        caller.join(WAIT_S)


def squats_a_name(world: AttackWorld) -> str:
    """A party's place at the relay, without its key."""
    return _registered(world, SigningKey.generate())


def takes_its_place(world: AttackWorld) -> bool:
    """The party itself gets it."""
    return not _registered(world, world.identities[ADA])


def _registered(world: AttackWorld, signer: Signer) -> str:
    digest, key = world.agreement.digest, world.identities[ADA].public_key
    with Relay.listen(registry=Registry(digest, {ADA: key})) as relay:
        prove = prover(signer, digest, ADA)
        return refusal(
            lambda: RelayClient.dial(relay.address, ADA, WAIT_S, prove).close()
        )


def hostile_certificate(world: AttackWorld) -> str:
    """A certificate whose key usage is of another type: libraries raise what they like."""
    der, usage = _certificate(world), bytes.fromhex("0603551d0f0101ff0404")
    place = der.index(usage) + len(usage)
    return refusal(lambda: read_certificate(der[:place] + b"\x13" + der[place + 1 :]))


def plain_certificate(world: AttackWorld) -> bool:
    """The same certificate as its maker wrote it is read."""
    return not refusal(lambda: read_certificate(_certificate(world)))


def _certificate(world: AttackWorld) -> bytes:
    return world.broker.host.attester.enrolment_request().certificates[0]
