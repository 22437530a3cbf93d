"""Who takes whose place at the doors of orchestrator and accelerator."""

from __future__ import annotations

from typing import Any

import pytest

from sealift.travel.accelerator.visits import HolderArrivals
from sealift.travel.orchestrator.sessions import MAX_GREETED, MAX_GREETED_EACH, Acceptor
from sealift.travel.peers import registry_of, teller_name
from tests.worlds.consortium import make_consortium

NOBODY: Any = None
AGREEMENT = make_consortium().verified()


@pytest.mark.parametrize("stranger", ["stranger", "tell-stranger", "accelerator-0"])
def test_strangers_cost_no_party_its_place_at_the_door(stranger: str) -> None:
    door = Acceptor(
        NOBODY, NOBODY, AGREEMENT, sessions=NOBODY, vouch=NOBODY, sink=NOBODY
    )
    taken = [door._take_place(stranger) for _ in range(MAX_GREETED + 9)]
    assert sum(taken) == (MAX_GREETED if stranger == "accelerator-0" else 0)
    for party in registry_of(AGREEMENT).keys:
        assert [door._take_place(party) for _ in range(MAX_GREETED_EACH)]
        assert not door._take_place(party)


def test_each_party_comes_once_at_a_time_to_say_something() -> None:
    """One semaphore for all would be held by whoever calls itself a teller."""
    parties = [each.name for each in AGREEMENT.agreement.parties]
    arrivals = HolderArrivals(NOBODY, NOBODY, AGREEMENT, NOBODY, heard=NOBODY)
    assert arrivals._tellers == {teller_name(each) for each in parties}


def test_nobody_else_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    arrivals = HolderArrivals(NOBODY, NOBODY, AGREEMENT, NOBODY, heard=NOBODY)
    monkeypatch.setattr(arrivals, "_listen", lambda each: heard.append(each.peer_name))

    class Comer:
        def __init__(self, peer_name: str) -> None:
            self.peer_name, self.closed = peer_name, False

        def close(self) -> None:
            self.closed = True

    known = sorted(arrivals._tellers)[0]
    comers: list[Any] = [Comer(each) for each in ("tell-stranger", known, known)]
    for each in comers:
        arrivals._park(each)
    assert [each.closed for each in comers] == [True, False, True]
    assert "tell-stranger" not in heard
