"""What an attack is: a claim, somebody who tries, and a control that must succeed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sealift.errors import UnavailableError
from sealift.lab.attacks.stage import Stage

NO_TPM = "guest-tpm"


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
    """An attack that was tried.

    Attributes:
        missing: What this machine lacks to try it; then it was not.
    """

    scenario: Scenario
    refusal: str
    control_held: bool
    missing: str = ""

    @property
    def good(self) -> bool:
        """Refused for the right reason, and the control succeeded; or not tried."""
        refused = self.refusal == self.scenario.expected and self.control_held
        return refused or bool(self.missing)


def attempt(scenario: Scenario, stage: Stage) -> Tried:
    """Try one attack and its control, on a machine that has what it takes."""
    try:
        return Tried(scenario, scenario.attempt(stage), scenario.control(stage))
    except UnavailableError as error:
        if error.code != NO_TPM:
            raise
        return Tried(scenario, "", False, missing="swtpm")
