"""The relay of a process whose events go nowhere: a full disk, a closed terminal."""

from __future__ import annotations

import pytest

from sealift.errors import PeerError
from sealift.events import Event
from sealift.session import Link, Relay


def fail(event: Event) -> None:
    raise OSError(28, "No space left on device")


def test_frames_go_on() -> None:
    """One thread serves everybody: no event may end it."""
    with Relay.listen(sink=fail) as relay:
        with Link.dial(relay.address, "first", 2.0) as first:
            with pytest.raises(PeerError, match="name is taken"):
                Link.dial(relay.address, "first", 2.0)
            with Link.dial(relay.address, "second", 2.0):
                circuit = first.open("second", 2.0)
                circuit.close()
        with Link.dial(relay.address, "third", 2.0) as third:
            with pytest.raises(PeerError, match="no such peer"):
                third.open("second", 2.0, wait_s=0.0)
