"""What an owner decided by options, beside the rule that it has announced already."""

from __future__ import annotations

import pytest

from sealift.errors import UsageError
from sealift.meet.question import OwnerAnswers
from sealift.release.agreement import PrivacyBudget
from sealift.release.agreement.resources import ReleaseRule

BUDGET = PrivacyBudget(epsilon=3.0, delta=1e-6)
OTHER = PrivacyBudget(epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize(
    ("answers", "rule"),
    [
        (OwnerAnswers(privacy=BUDGET), ReleaseRule()),
        (OwnerAnswers(privacy=BUDGET), ReleaseRule(privacy=OTHER)),
        (OwnerAnswers(only_graph=True), ReleaseRule(privacy=BUDGET)),
    ],
)
def test_a_stricter_rule_that_comes_too_late_is_refused(
    answers: OwnerAnswers, rule: ReleaseRule
) -> None:
    """In silence it would count for nothing."""
    with pytest.raises(UsageError) as caught:
        answers.require_in(rule)
    assert caught.value.code == "rule-differs"


def test_the_same_rule_and_none_at_all_go_on() -> None:
    strict = ReleaseRule(recipe="graph", privacy=BUDGET)
    OwnerAnswers(only_graph=True, privacy=BUDGET).require_in(strict)
    OwnerAnswers().require_in(strict)
