"""The accelerator's own rules: ids, counts, rows that overlap, groups in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sealift.codec import decode, encode
from sealift.errors import PolicyError, RefusedError, StaleError
from sealift.ids import VisitId
from sealift.release.agreement import Purpose, TravelRule
from sealift.travel.accelerator.rules import RulesProgress, VisitRules, check_cargo
from sealift.travel.settings import TravelSettings
from sealift.travel.visit.messages import OfferVisit

PURPOSES: tuple[Purpose, ...] = ("prepare", "train", "heldout")


def offer(
    first: int = 0, rows: int = 10, *, position: int = 0, purpose: Purpose = "train"
) -> OfferVisit:
    return OfferVisit(
        visit=VisitId.generate(),
        position=position,
        number=1,
        epoch=0,
        holder="ada",
        resource="ada-heldout" if purpose == "heldout" else "ada-train",
        purpose=purpose,
        first_row=first,
        rows=rows,
    )


def work(rules: VisitRules, *offers: OfferVisit) -> None:
    for each in offers:
        rules.admit(each)
        rules.begin(each)
        rules.count(each)


def refused(call: Callable[[], None], code: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        call()
    assert refusal.value.code == code


def test_the_same_rows_again_and_others_beside_them() -> None:
    rules = VisitRules(max_visits=9)
    work(rules, offer(0, 10, purpose="prepare"), offer(0, 10), offer(0, 10))
    work(rules, offer(10, 10), offer(0, 10), offer(3, 4, purpose="heldout"))
    assert rules.distinct_rows("ada") == 20


def test_a_visit_that_came_to_nothing_is_in_no_sum() -> None:
    rules = VisitRules(max_visits=9)
    lost = offer(0, 10, purpose="prepare")
    rules.admit(lost)
    rules.begin(lost)
    assert rules.prepared_rows() == {}


def test_repeated_rows_are_not_more_rows() -> None:
    """Else one row, visited again and again, would be as good as many."""
    rules = VisitRules(max_visits=99)
    work(rules, *(offer(0, 1) for _ in range(50)))
    assert rules.distinct_rows("ada") == 1
    assert rules.counted.trained == {"ada": 50}
    assert rules.distinct_rows("bern") == 0


@pytest.mark.parametrize("purpose", PURPOSES)
def test_each_purpose_is_counted_apart(purpose: Purpose) -> None:
    rules = VisitRules(max_visits=2)
    if purpose != "prepare":  # which comes first, or not at all
        work(rules, offer(purpose="prepare"))
    work(rules, offer(purpose=purpose), offer(10, purpose=purpose))
    refused(lambda: rules.admit(offer(20, purpose=purpose)), "too-many-visits")
    for other in set(PURPOSES) - {purpose, "prepare"}:
        work(rules, offer(purpose=other))


def test_the_last_visit_is_not_had_twice() -> None:
    rules = VisitRules(max_visits=1)
    one, other = offer(), offer()
    rules.admit(one)
    rules.admit(other)
    rules.begin(one)
    refused(lambda: rules.begin(other), "too-many-visits")


def test_groups_only_go_forward() -> None:
    rules = VisitRules(max_visits=9)
    rules.advance(0)
    rules.advance(3)
    for position in (0, 3, -1):
        with pytest.raises(StaleError):
            rules.advance(position)
        refused(lambda at=position: rules.admit(offer(position=at)), "group-over")  # type: ignore[misc]
    rules.admit(offer(position=4))


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(PURPOSES), st.booleans()),
        max_size=12,
    )
)
def test_progress_is_all_there_is(
    visits: list[tuple[int, Purpose, bool]],
) -> None:
    rules = VisitRules(max_visits=99)
    sums = dict.fromkeys(each for each in visits if each[1] == "prepare")
    in_order = [
        *{place: (place, purpose, did) for place, purpose, did in sums}.values(),
        *(each for each in visits if each[1] != "prepare"),
    ]
    for position, (place, purpose, trained) in enumerate(in_order):
        rules.advance(position)
        each = offer(10 * place, 10, position=position + 1, purpose=purpose)
        rules.admit(each)
        rules.begin(each)
        if trained:
            rules.count(each)
    raw = encode(rules.progress())
    again = VisitRules(max_visits=99)
    again.restore(decode(RulesProgress, raw))
    assert again == rules
    if visits:
        refused(lambda: again.admit(replace(each, position=50)), "visit-replayed")


@pytest.mark.parametrize(
    ("asked", "agreed", "code"),
    [
        (TravelSettings(buffers=2), TravelRule(1, 60), "cargo-not-agreed"),
        (TravelSettings(mixed=True), TravelRule(2, 60), "cargo-not-agreed"),
    ],
)
def test_a_job_asks_for_no_more_than_agreed(
    asked: TravelSettings, agreed: TravelRule, code: str
) -> None:
    with pytest.raises(PolicyError) as refusal:
        check_cargo(asked, agreed)
    assert refusal.value.code == code


def test_a_job_may_ask_for_less() -> None:
    agreed = TravelRule(2, 60, mixed=True)
    check_cargo(TravelSettings(), agreed)
    check_cargo(TravelSettings(buffers=2, mixed=True), agreed)
