"""Who takes whose place at the doors of orchestrator and accelerator."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from sealift.crypto.sign import sign_document
from sealift.release.agreement.statements import sign_statement
from sealift.release.broker.inforce import StatementsInForce
from sealift.travel.accelerator.visits import HolderArrivals
from sealift.travel.orchestrator import sessions
from sealift.travel.orchestrator.sessions import MAX_GREETED, MAX_GREETED_EACH, Acceptor
from sealift.travel.peers import registry_of, teller_name
from sealift.travel.visit.messages import Failed, Said
from tests.sim.owners import NOW_S
from tests.worlds.consortium import make_consortium

NOBODY: Any = None
WORLD = make_consortium()
AGREEMENT = WORLD.verified()


@pytest.mark.parametrize("stranger", ["stranger", "tell-stranger", "accelerator-0"])
def test_strangers_cost_no_party_its_place_at_the_door(stranger: str) -> None:
    door = Acceptor(
        NOBODY,
        NOBODY,
        AGREEMENT,
        sessions=NOBODY,
        vouch=NOBODY,
        sink=NOBODY,
        statements=NOBODY,
        obey=NOBODY,
    )
    taken = [door._take_place(stranger) for _ in range(MAX_GREETED + 9)]
    assert sum(taken) == (MAX_GREETED if stranger == "accelerator-0" else 0)
    for party in registry_of(AGREEMENT).keys:
        assert [door._take_place(party) for _ in range(MAX_GREETED_EACH)]
        assert not door._take_place(party)


@pytest.mark.parametrize("speaker", ["ada", "bern"])
def test_what_a_party_says_counts_once_its_signature_fits(
    monkeypatch: pytest.MonkeyPatch, speaker: str
) -> None:
    """In the name of ada, by herself and by bern."""
    said = sign_statement("leave", AGREEMENT.agreement, WORLD.identities["ada"], NOW_S)
    said = sign_document(said.body, WORLD.identities[speaker])
    answers: list[object] = []
    monkeypatch.setattr(sessions, "receive_message", lambda *_, **__: Said(said))
    monkeypatch.setattr(sessions, "send_message", lambda _, each: answers.append(each))
    monkeypatch.setattr(sessions, "await_end", lambda _: None)
    obeyed: list[bool] = []
    statements = StatementsInForce(AGREEMENT, clock=lambda: NOW_S)
    door = Acceptor(
        NOBODY, NOBODY, AGREEMENT, sessions=NOBODY, vouch=NOBODY, sink=NOBODY,
        statements=statements, obey=lambda: obeyed.append(True),
    )  # fmt: skip
    session: Any = nullcontext()
    door._listen(session)
    (answer,) = answers
    if speaker == "ada":
        assert answer == Said(said)
        assert (obeyed, statements.known()) == ([True], (said,))
    else:
        assert isinstance(answer, Failed)
        assert answer.code == "statement-altered"
        assert (obeyed, statements.known()) == ([], ())


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
