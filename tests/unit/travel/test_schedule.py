"""The schedule: every row once per epoch, in an order that is always the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sealift.errors import UsageError
from sealift.ids import VisitId
from sealift.release.agreement import Resource
from sealift.travel.messages import OfferVisit
from sealift.travel.rules import VisitRules
from sealift.travel.schedule import Cargo, Stop, mix_epoch, plan_epoch, plan_job
from sealift.travel.settings import Order, TravelSettings
from tests.sim.owners import make_consortium

ORDERS: tuple[Order, ...] = ("round-robin", "by-size")
CARGO = st.lists(st.integers(1, 60), max_size=6).map(
    lambda sizes: [
        Cargo(f"h{number}", f"h{number}-train", rows, 8 + 8 * (number % 3))
        for number, rows in enumerate(sizes)
    ]
)

MODEL = make_consortium(("ada", "bern", "cleo")).agreement.resources[0]


def plan(cargo: list[Cargo], order: Order, buffer_bytes: int) -> tuple[Stop, ...]:
    return plan_epoch(
        cargo, epoch=3, purpose="train", order=order, buffer_bytes=buffer_bytes
    )


@given(cargo=CARGO, order=st.sampled_from(ORDERS), buffer_bytes=st.integers(24, 400))
def test_each_row_once_and_never_more_than_fits(
    cargo: list[Cargo], order: Order, buffer_bytes: int
) -> None:
    stops = plan(cargo, order, buffer_bytes)
    assert stops == plan(cargo, order, buffer_bytes)
    for item in cargo:
        own = [stop for stop in stops if stop.resource == item.resource]
        rows = [
            r for stop in own for r in range(stop.first_row, stop.first_row + stop.rows)
        ]
        assert rows == list(range(item.rows))
        assert all(stop.rows * item.row_bytes <= buffer_bytes for stop in own)
        assert {(stop.epoch, stop.holder) for stop in own} == {(3, item.holder)}


def names(order: Order) -> list[str]:
    cargo = [
        Cargo(name, name, rows, 10) for name, rows in (("a", 3), ("b", 7), ("c", 3))
    ]
    return [f"{stop.holder}{stop.first_row}" for stop in plan(cargo, order, 30)]


def test_round_robin_takes_turns() -> None:
    assert names("round-robin") == ["a0", "b0", "c0", "b3", "b6"]


def test_by_size_takes_from_whoever_has_most_left() -> None:
    assert names("by-size") == ["b0", "b3", "a0", "c0", "b6"]


def test_a_row_must_fit() -> None:
    with pytest.raises(UsageError) as refusal:
        plan([Cargo("a", "a", 1, 25)], "by-size", 24)
    assert refusal.value.code == "buffer-too-small"


def agreed(cargo: list[Cargo]) -> list[Resource]:
    """Resources of an agreement that are this cargo; each owner measures on one row."""
    found = []
    for item in cargo:
        for part, rows in (("train", item.rows), ("heldout", 1)):
            found.append(
                replace(
                    MODEL,
                    name=f"{item.holder}-{part}",
                    owner=item.holder,
                    part=part,
                    rows=rows,
                    row_bytes=item.row_bytes,
                    total_bytes=rows * item.row_bytes,
                )
            )
    return found


JOBS = st.builds(
    TravelSettings,
    epochs=st.integers(0, 3),
    order=st.sampled_from(ORDERS),
    buffer_bytes=st.integers(24, 400),
    evaluate_every=st.integers(0, 2),
    mixed=st.booleans(),
    prepare=st.booleans(),
)


@given(cargo=CARGO, settings=JOBS)
def test_a_job_visits_every_row_in_every_pass(
    cargo: list[Cargo], settings: TravelSettings
) -> None:
    plan = plan_job(agreed(cargo), settings)
    assert [group.position for group in plan] == list(range(len(plan)))
    assert all(group.stops for group in plan)
    passes = dict.fromkeys((group.purpose, group.epoch) for group in plan)
    train = {("train", epoch) for epoch in range(settings.epochs)}
    assert train <= set(passes) or not cargo
    assert (("prepare", 0) in passes) is (settings.prepare and bool(cargo))
    for purpose, epoch in passes:
        stops = [
            stop
            for group in plan
            if (group.purpose, group.epoch) == (purpose, epoch)
            for stop in group.stops
        ]
        for item in cargo:
            name = f"{item.holder}-{'heldout' if purpose == 'heldout' else 'train'}"
            rows = [
                r
                for stop in stops
                if stop.resource == name
                for r in range(stop.first_row, stop.first_row + stop.rows)
            ]
            assert rows == list(range(1 if purpose == "heldout" else item.rows))
    for group in plan:
        assert all(stop.purpose == group.purpose for stop in group.stops)
        assert len({stop.resource for stop in group.stops}) == len(group.stops)
        assert len(group.stops) == 1 or (settings.mixed and group.purpose != "heldout")


@given(cargo=CARGO, settings=JOBS)
def test_a_resource_is_cut_in_one_way(
    cargo: list[Cargo], settings: TravelSettings
) -> None:
    """What the accelerator demands: ranges that are equal or apart."""
    rules = VisitRules(max_visits=10**6)
    for group in plan_job(agreed(cargo), settings):
        for stop in group.stops:
            offer = OfferVisit(
                visit=VisitId.generate(),
                number=1,
                epoch=stop.epoch,
                holder=stop.holder,
                resource=stop.resource,
                purpose=stop.purpose,
                first_row=stop.first_row,
                rows=stop.rows,
                position=group.position,
            )
            rules.admit(offer)
            rules.begin(offer)
        rules.advance(group.position)


@given(cargo=CARGO.filter(bool), buffer_bytes=st.integers(24, 400))
def test_mixed_slices_last_until_the_end(cargo: list[Cargo], buffer_bytes: int) -> None:
    groups = mix_epoch(cargo, epoch=0, purpose="train", buffer_bytes=buffer_bytes)
    for item in cargo:
        sizes = [
            s.rows for group in groups for s in group if s.resource == item.resource
        ]
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) * item.row_bytes <= buffer_bytes
        assert len(sizes) == min(len(groups), item.rows)
