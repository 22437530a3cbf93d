"""What became of the stops of a plan, and which may still come to something."""

from __future__ import annotations

import pytest

from sealift.travel.orchestrator.visits import StopTally
from sealift.travel.visit.messages import Failed


def test_groups_that_are_done_again_are_counted_once() -> None:
    tally = StopTally({(0, "a"), (1, "b"), (2, "c")}, {(1, "a"), (5, "z")})
    tally.forget_from(1)
    assert tally == StopTally({(0, "a")}, set())


@pytest.mark.parametrize(
    ("code", "left", "lasts"),
    [
        ("no-such-resource", False, True),
        ("content-mismatch", False, True),
        ("owner-left", True, True),
        ("peer-missing", False, False),
        ("frame-order", False, False),
    ],
)
def test_what_lasts_is_not_hoped_for(code: str, left: bool, lasts: bool) -> None:
    tally = StopTally({(0, "a")})
    tally.skip(1, "a", Failed(code, "so"), left=left)
    assert tally.may_count(0, "a")  # it was trained on before
    assert not tally.may_count(1, "a")
    assert tally.may_count(2, "a") is not lasts
    assert tally.may_count(2, "b")
