"""A guest whose only way to the host is a proxy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sealift.crypto.identity import create_identity
from sealift.errors import UnavailableError
from sealift.events import discard
from sealift.meet.connection import Conversation, MeetingListener, places
from sealift.meet.invitation import HOST
from sealift.meet.messages import Ask, BringCard
from sealift.session.relay.server import Relay
from tests.sim.invited import MetHost
from tests.sim.proxies import FAR, LittleProxy, little_proxy


def use(monkeypatch: pytest.MonkeyPatch, proxy: LittleProxy, given: str = "") -> None:
    for name, value in proxy.environment(given).items():
        monkeypatch.setenv(name, value)
        monkeypatch.delenv(name.lower(), raising=False)


def test_a_guest_comes_in_through_a_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = MetHost(tmp_path)
    invitation = replace(met.invite("north"), addresses=(f"{FAR[0]}:{FAR[1]}",))
    north = create_identity("north")
    with (
        Relay.listen(registry=places(met.host.book, met.meeting)) as relay,
        little_proxy(relay.address, password="ada:word") as proxy,
    ):
        MeetingListener(relay.local_client(HOST), met.host, sink=discard).start()
        use(monkeypatch, proxy)
        with pytest.raises(UnavailableError) as caught:
            Conversation(invitation, north, dial_s=5)
        assert caught.value.code == "proxy-password"
        use(monkeypatch, proxy, "ada:word")
        with Conversation(invitation, north, dial_s=5) as host:
            assert isinstance(host.say(Ask()), BringCard)
