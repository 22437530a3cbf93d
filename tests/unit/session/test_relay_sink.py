"""The relay of a process whose events go nowhere: a full disk, a closed terminal."""

from __future__ import annotations

import pytest

from sealift.errors import PeerError
from sealift.events import Event
from sealift.session.relay.client import RelayClient
from sealift.session.relay.server import Relay

DIAL_S = 2.0


def fail(event: Event) -> None:
    raise OSError(28, "No space left on device")


def test_frames_go_on() -> None:
    """One thread serves everybody: no event may end it."""
    with (
        Relay.listen(sink=fail) as relay,
        relay.local_client("first") as first,
    ):
        with pytest.raises(PeerError, match="the name is in use"):
            RelayClient.dial(relay.address, "first", DIAL_S)
        with RelayClient.dial(relay.address, "second", DIAL_S):
            first.open("second", DIAL_S).close()
        with RelayClient.dial(relay.address, "third", DIAL_S) as third:
            third.open("first", DIAL_S).close()
