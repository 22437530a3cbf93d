"""Slow and half-open peers at a broker: they take places, and never all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from sealift.attest.development import DevelopmentAttester
from sealift.errors import PeerError, SealiftError
from sealift.ids import Role
from sealift.release.client import collect_release
from sealift.session.endpoint import Endpoint
from sealift.session.frames import FrameKind, pack
from sealift.session.relay.client import RelayClient
from sealift.session.relay.envelope import Registry
from sealift.session.relay.server import Relay
from sealift.session.relay.switchboard import MAX_OPENED_UNPROVEN
from sealift.session.session import connect
from sealift.travel import broker as broker_service
from sealift.travel.broker import BrokerService
from sealift.travel.peers import accelerator_names, expect_broker, relay_name
from tests.sim.owners import make_broker
from tests.worlds.consortium import RUN, Consortium, make_consortium

ADA = relay_name(Role.BROKER, "ada")


@pytest.fixture(scope="module")
def consortium() -> Consortium:
    return make_consortium()


@contextmanager
def serving(consortium: Consortium, folder: Path) -> Iterator[Relay]:
    """Ada's broker behind a relay."""
    with ExitStack() as stack:
        box = make_broker(consortium, "ada", folder)
        stack.callback(box.close)
        # Of strangers all come from here, and an honest one is to find its place.
        registry = Registry(strangers_each=8)
        relay = stack.enter_context(Relay.listen(registry=registry))
        endpoint = Endpoint(
            role=Role.BROKER,
            name="ada",
            agreement=consortium.agreement.digest,
            identity=consortium.identities["ada"],
        )
        door = BrokerService(
            relay.local_client(ADA), endpoint, consortium.verified(), broker=box.broker
        )

        def serve() -> None:
            with suppress(PeerError):
                door.serve()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield relay
        relay.close()
        thread.join(300)


def collect(consortium: Consortium, relay: Relay) -> str:
    """What an honest accelerator gets; empty for its key."""
    attester = DevelopmentAttester(
        consortium.attester,
        role=Role.ACCELERATOR,
        code_bundle=consortium.agreement.code.digest,
    )
    endpoint = Endpoint(
        role=Role.ACCELERATOR,
        name=accelerator_names()[0],
        agreement=consortium.agreement.digest,
        attester=attester,
    )
    verified = consortium.verified()
    try:
        with (
            RelayClient.dial(relay.address, accelerator_names()[0]) as link,
            connect(
                link.open(ADA, 60), endpoint, expect_broker(verified, "ada")
            ) as there,
        ):
            collect_release(there, verified, "ada-train", clock=time.monotonic, run=RUN)
    except SealiftError as error:
        return error.code
    return ""


def half_open(relay: Relay, stack: ExitStack, *, first: bytes = b"") -> None:
    """Strangers of several names open all they may, and say nothing, or half a hello."""
    for number in range(broker_service.MAX_SESSIONS // MAX_OPENED_UNPROVEN):
        link = stack.enter_context(
            RelayClient.dial(relay.address, f"stranger-{number}")
        )
        for _ in range(MAX_OPENED_UNPROVEN):
            circuit = link.open(ADA, 60)
            if first:
                with suppress(PeerError):
                    circuit.send(first)
    time.sleep(0.2)  # until the broker has taken what it takes


@pytest.mark.parametrize("first", [b"", pack(FrameKind.HANDSHAKE, b"{")], ids=str)
def test_an_honest_accelerator_is_served(
    consortium: Consortium, tmp_path: Path, first: bytes
) -> None:
    with ExitStack() as stack, serving(consortium, tmp_path) as relay:
        half_open(relay, stack, first=first)
        assert collect(consortium, relay) == ""


def test_mutant_without_a_share_for_each_is_full(
    consortium: Consortium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_service, "MAX_EACH", broker_service.MAX_SESSIONS)
    with ExitStack() as stack, serving(consortium, tmp_path) as relay:
        half_open(relay, stack)
        assert collect(consortium, relay) != ""


def test_mutant_with_a_share_for_each_name_is_full(
    consortium: Consortium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger has as many names as it likes."""
    monkeypatch.setattr(broker_service.BrokerService, "_share", lambda _, name: name)
    with ExitStack() as stack, serving(consortium, tmp_path) as relay:
        half_open(relay, stack)
        assert collect(consortium, relay) != ""


def test_places_come_back(consortium: Consortium, tmp_path: Path) -> None:
    with serving(consortium, tmp_path) as relay:
        for _ in range(3):
            with ExitStack() as stack:
                half_open(relay, stack)
        assert collect(consortium, relay) == ""
