"""Any interleaving of what may happen in a visit: the exact cargo, or nothing.

Plaintext lies where it may and nowhere else, and no visit trains twice. Visits that
lack one rule are caught, so the machine does look.
"""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from sealift.travel.visit.lease import Frame, RecordTarget, placement
from sealift.travel.visit.state import Visit, VisitState
from tests.sim.examples import examples
from tests.sim.visit_machine import LEASE_S, VisitMachine

TestVisit = VisitMachine.TestCase
TestVisit.settings = examples(60, stateful_step_count=40)


class AnyOrder(Visit):
    """A visit that takes frames in any order, and twice."""

    def admit(self, frame: Frame) -> RecordTarget:
        self._require(VisitState.LEASED, "take a frame")
        self._next = min(self._next + 1, self.expected_frames)
        number = frame.sequence % self.expected_frames
        return placement(self.lease, number, self._record_bytes)


class NoLeaseEnd(Visit):
    """A visit whose lease never ends."""

    def remaining_s(self) -> float:
        return LEASE_S


class TrainsAgain(Visit):
    """A visit that goes back to training after the scrub."""

    def begin_training(self) -> None:
        if self.state is not VisitState.VERIFIED:
            self._require(VisitState.SEALED, "train")
        self.state = VisitState.TRAINING


@pytest.mark.parametrize("mutant", [AnyOrder, NoLeaseEnd, TrainsAgain])
def test_the_machine_catches(mutant: type[Visit]) -> None:
    class Mutant(VisitMachine):
        make_visit = mutant
        starts_leased = True

    once = settings(
        max_examples=2000,
        derandomize=True,
        stateful_step_count=40,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        print_blob=False,
    )
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run_state_machine_as_test(Mutant, settings=once)
