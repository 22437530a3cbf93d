"""Who dials again, for how long, and who does not."""

from __future__ import annotations

import pytest

from sealift.errors import (
    AuthenticationError,
    MalformedError,
    PeerError,
    PolicyError,
    SealiftError,
)
from sealift.events import Event
from sealift.train.job.rejoin import CUT, PAUSE_S, Joined, Rejoining


class Script:
    """A role that meets these ends in turn; time passes in its pauses."""

    def __init__(self, *ends: str | SealiftError, arrives: bool = True) -> None:
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
            if isinstance(end, SealiftError):  # of somebody who did not let it in
                raise end
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


@pytest.mark.parametrize(
    ("rejoin_s", "arrives", "end"),
    [
        (0.0, True, "peer-unreachable"),
        (5.0, False, "peer-timeout"),
        (5.0, False, "name-unproven"),
    ],
)
def test_only_who_was_there_and_may(rejoin_s: float, arrives: bool, end: str) -> None:
    script = Script(end, "finished", arrives=arrives)
    with pytest.raises(PeerError, match=end):
        script.run(rejoin_s)


@pytest.mark.parametrize("rejoin_s", [0.0, 5.0])
def test_an_orchestrator_that_is_not_up_yet_is_waited_for(rejoin_s: float) -> None:
    script = Script(*["late peer-unreachable"] * 500, "finished")
    assert script.run(rejoin_s) == "finished"
    (said,) = script.events  # once
    assert said.kind == "relay.awaited"
    assert said.fields["role"] == "orchestrator"


STRANGERS: list[SealiftError] = [
    PeerError("it refuses the name", code="name-unproven"),
    PeerError("it says what nobody knows", code="peer"),
    MalformedError("it speaks no envelopes", code="bad-envelope"),
    AuthenticationError(),
    PolicyError("it has another agreement", code="other-agreement"),
]


@pytest.mark.parametrize("stranger", STRANGERS, ids=lambda error: error.code)
def test_who_has_the_port_in_an_outage_is_a_dial_that_failed(
    stranger: SealiftError,
) -> None:
    script = Script("relay-gone", *[stranger] * 9, "finished")
    assert script.run(5.0) == "finished"
    script = Script("relay-gone", *[stranger] * 90)
    with pytest.raises(type(stranger)):  # for as long as the job says
        script.run(5.0)
    assert 5.0 <= script.now_s < 5.0 + 2 * PAUSE_S


@pytest.mark.parametrize("stranger", STRANGERS, ids=lambda error: error.code)
def test_what_the_first_to_answer_says_is_a_decision(stranger: SealiftError) -> None:
    with pytest.raises(type(stranger)):
        Script(stranger, "finished").run(5.0)


def test_who_is_asked_to_end_dials_no_more() -> None:
    script = Script("relay-gone", "late role-ended", "finished")
    with pytest.raises(PeerError, match="role-ended"):
        script.run(5.0)
