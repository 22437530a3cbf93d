"""An agreement takes 64 parties, so the relay of its job has room for all of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from sealift.ids import Role
from sealift.session.relay.client import RelayClient
from sealift.session.relay.envelope import prover
from sealift.session.relay.server import Relay
from sealift.travel.peers import (
    ORCHESTRATOR,
    accelerator_names,
    registry_of,
    relay_name,
)
from tests.worlds.consortium import make_consortium

OWNERS = tuple(f"ward-{number:02}" for number in range(63))


def test_an_accelerator_keeps_two_circuits_to_each_of_63_owners() -> None:
    """For its keys and for their lease; all come at one time, from one address."""
    consortium = make_consortium((*OWNERS, "host"), ("train",))
    agreement = consortium.verified()
    registry = registry_of(agreement)
    with ExitStack() as stack:
        relay = stack.enter_context(Relay.listen(registry=registry))
        orchestrator = stack.enter_context(relay.local_client(ORCHESTRATOR))

        def dial(name: str, owner: str) -> RelayClient:
            identity = consortium.identities[owner]
            prove = prover(identity, agreement.digest, name)
            return RelayClient.dial(relay.address, name, 60.0, prove)

        names = [
            (relay_name(role, owner), owner)
            for owner in OWNERS
            for role in (Role.BROKER, Role.HOLDER)
        ]
        with ThreadPoolExecutor(len(names)) as pool:
            clients = list(pool.map(lambda each: dial(*each), names))
        for each in clients:
            stack.callback(each.close)
        accelerator = stack.enter_context(
            RelayClient.dial(relay.address, accelerator_names()[0])
        )
        accelerator.open(ORCHESTRATOR)
        relay.vouch(orchestrator.accept(60).id)  # its evidence was accepted
        for name, _ in names[::2]:
            for _ in range(2):
                accelerator.open(name)
        met = [each.open(accelerator.name) for each in clients[1::2]]
        heard = [accelerator.accept(60) for _ in met]
        assert {each.peer_name for each in heard} == {name for name, _ in names[1::2]}
