"""What an attack is: a claim, somebody who tries, and a control that must succeed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sealift.demo.attacks.stage import Stage


@dataclass(frozen=True, slots=True)
class Scenario:
    """One attack.

    Attributes:
        name: Number of the threat, as in the tests.
        claim: What must hold.
        attack: What is tried, in words.
        expected: Stable name of the refusal.
        attempt: Tries it; the stable name of the refusal, or empty if it got through.
        control: The same without the attack, which must succeed: a stage on which
            nothing works refuses everything.
        control_in_words: What the control shows.
    """

    name: str
    claim: str
    attack: str
    expected: str
    attempt: Callable[[Stage], str]
    control: Callable[[Stage], bool]
    control_in_words: str


@dataclass(frozen=True, slots=True)
class Tried:
    """An attack that was tried."""

    scenario: Scenario
    refusal: str
    control_held: bool

    @property
    def good(self) -> bool:
        """Refused for the right reason, and the control succeeded."""
        return self.refusal == self.scenario.expected and self.control_held


def attempt(scenario: Scenario, stage: Stage) -> Tried:
    """Try one attack and its control."""
    refusal = scenario.attempt(stage)
    return Tried(scenario, refusal, scenario.control(stage))
