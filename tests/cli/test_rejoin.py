"""Who dials again, for how long, and who does not."""

from __future__ import annotations

import pytest

from sealift.cli.rejoin import CUT, PAUSE_S, Joined, Rejoining
from sealift.errors import PeerError
from sealift.events import Event


class Script:
    """A role that meets these ends in turn; time passes in its pauses."""

    def __init__(self, *ends: str, arrives: bool = True) -> None:
        self.ends = list(ends)
        self.arrives = arrives
        self.now_s = 0.0
        self.events: list[Event] = []
        self.dials: list[float] = []

    def run(self, rejoin_s: float) -> str:
        rejoining = Rejoining(
            rejoin_s, sink=self.events.append, clock=lambda: self.now_s, pause=self.wait
        )

        def serve(joined: Joined) -> str:
            self.dials.append(rejoining.dial_s)
            end = self.ends.pop(0)
            if end.startswith("late "):  # never came in
                raise PeerError(end, code=end.removeprefix("late "))
            if self.arrives:
                joined()
            if end == "finished":
                return end
            raise PeerError(end, code=end)

        return rejoining.run(serve)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize("cut", sorted(CUT))
def test_a_cut_is_begun_again(cut: str) -> None:
    script = Script(cut, f"late {cut}", "finished")
    assert script.run(5.0) == "finished"
    assert [event.kind for event in script.events] == ["relay.lost"]
    assert script.dials == [10.0, 5.0 - PAUSE_S, 5.0 - 2 * PAUSE_S]


@pytest.mark.parametrize("end", ["session-closed", "peer-refused", "role-ended"])
def test_a_decision_is_not(end: str) -> None:
    script = Script(end)
    with pytest.raises(PeerError, match=end):
        script.run(5.0)


def test_an_orchestrator_killed_before_it_let_us_in() -> None:
    script = Script("late relay-gone", "late peer-unreachable", "finished")
    assert script.run(5.0) == "finished"


def test_not_for_ever() -> None:
    script = Script("relay-gone", *["late peer-unreachable"] * 60)
    with pytest.raises(PeerError, match="peer-unreachable"):
        script.run(5.0)
    assert 5.0 <= script.now_s < 5.0 + 2 * PAUSE_S


def test_each_cut_has_its_own_time() -> None:
    script = Script(*["relay-gone"] * 200, "finished")
    assert script.run(1.0) == "finished"
    assert script.now_s > 10.0


def test_a_broker_that_stays_away_is_not_waited_for_for_ever() -> None:
    missing = ("checkpoint-broker-missing", "late name-taken")
    script = Script(*missing * 200, "finished")
    with pytest.raises(PeerError, match="broker-missing"):
        script.run(5.0)
    assert 5.0 <= script.now_s < 5.0 + 3 * PAUSE_S
    script = Script(*missing * 20, "relay-gone", *missing * 20, "finished")
    assert script.run(5.0) == "finished"  # it had come back in between


@pytest.mark.parametrize(("rejoin_s", "arrives"), [(0.0, True), (5.0, False)])
def test_only_who_was_there_and_may(rejoin_s: float, arrives: bool) -> None:
    script = Script("peer-unreachable", "finished", arrives=arrives)
    with pytest.raises(PeerError, match="peer-unreachable"):
        script.run(rejoin_s)
