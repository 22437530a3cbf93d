"""The schedule: every row once per epoch, in an order that is always the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sealift.codec import encode
from sealift.data.schedule import visits
from sealift.data.schedule.visits import Order, Stop, mix_epoch, plan_epoch, plan_job
from sealift.errors import UsageError
from sealift.ids import Digest
from sealift.release.agreement import Part, Resource
from sealift.train.output.accounts import Uses
from sealift.travel.settings import JobSettings
from sealift.travel.visit.messages import MAX_RUN_RECEIPT_BYTES
from tests.sim.settings import job_settings
from tests.worlds.consortium import make_consortium

ORDERS: tuple[Order, ...] = ("round-robin", "by-size")
MODEL = make_consortium(("ada", "bern", "cleo")).agreement.resources[0]


def table(
    holder: str, rows: int, row_bytes: int, *, cell_rows: int = 1, part: Part = "train"
) -> Resource:
    return replace(
        MODEL,
        name=f"{holder}-{part}",
        owner=holder,
        part=part,
        rows=rows,
        row_bytes=row_bytes,
        cell_rows=cell_rows,
        total_bytes=rows * row_bytes,
    )


TABLES = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 9)), max_size=6).map(
    lambda sizes: [
        table(f"h{number}", rows, 8 + 8 * (number % 3), cell_rows=cell_rows)
        for number, (rows, cell_rows) in enumerate(sizes)
    ]
)
BUFFERS = st.integers(17 * 24, 1000)  # the longest cell fits


def plan(cargo: list[Resource], order: Order, buffer_bytes: int) -> tuple[Stop, ...]:
    return plan_epoch(
        cargo, epoch=3, purpose="train", order=order, buffer_bytes=buffer_bytes
    )


@given(cargo=TABLES, order=st.sampled_from(ORDERS), buffer_bytes=BUFFERS)
def test_each_row_once_and_never_more_than_fits(
    cargo: list[Resource], order: Order, buffer_bytes: int
) -> None:
    stops = plan(cargo, order, buffer_bytes)
    assert stops == plan(cargo, order, buffer_bytes)
    for item in cargo:
        own = [stop for stop in stops if stop.resource == item.name]
        rows = [
            r for stop in own for r in range(stop.first_row, stop.first_row + stop.rows)
        ]
        assert rows == list(range(item.rows))
        assert all(stop.rows * item.row_bytes <= buffer_bytes for stop in own)
        assert {(stop.epoch, stop.holder) for stop in own} == {(3, item.owner)}
        for stop in own:
            item.require_cells(stop.first_row, stop.rows)


def names(order: Order) -> list[str]:
    cargo = [table(name, rows, 10) for name, rows in (("a", 3), ("b", 7), ("c", 3))]
    return [f"{stop.holder}{stop.first_row}" for stop in plan(cargo, order, 30)]


def test_round_robin_takes_turns() -> None:
    assert names("round-robin") == ["a0", "b0", "c0", "b3", "b6"]


def test_by_size_takes_from_whoever_has_most_left() -> None:
    assert names("by-size") == ["b0", "b3", "a0", "c0", "b6"]


@pytest.mark.parametrize(
    ("rows", "cell_rows", "needed"),
    [(1, 1, 1), (7, 4, 7), (8, 4, 4), (9, 4, 5), (3, 9, 3)],
)
def test_a_cell_must_fit(rows: int, cell_rows: int, needed: int) -> None:
    """The last one is the longest: it takes the rest."""
    cargo = [table("a", rows, 10, cell_rows=cell_rows)]
    assert plan(cargo, "by-size", 10 * needed)
    with pytest.raises(UsageError) as refusal:
        plan(cargo, "by-size", 10 * needed - 1)
    assert refusal.value.code == "buffer-too-small"


@pytest.mark.parametrize(
    ("share", "epochs"), [((0, 1), 4), ((1, 2), 2)], ids=["whole", "half"]
)
def test_a_plan_that_no_receipt_can_name_is_refused(
    share: tuple[int, int], epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first visit: five to each epoch, of all shares together."""
    monkeypatch.setattr(visits, "MAX_VISITS", 23)
    cargo = [table("a", 40, 10)]
    terms = job_settings(epochs=epochs, mixed=False).visits
    terms = replace(terms, share=share, evaluate_every=9)
    assert plan_job(cargo, terms, 80)
    with pytest.raises(UsageError) as refusal:
        plan_job(cargo, replace(terms, epochs=2 * epochs), 80)
    assert refusal.value.code == "plan-too-long"


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("rows", [(1, 7), (5, 5), (2, 3, 4)])
def test_each_share_has_rows_in_each_round(rows: tuple[int, ...], mixed: bool) -> None:
    """Up to as many shares as the longest table has cells; schedulers and optimizers rely on it."""
    cargo = [table(f"owner{n}", each, 10) for n, each in enumerate(rows)]
    terms = job_settings(epochs=2, mixed=mixed).visits
    for count in range(1, max(rows) + 1):
        for number in range(count):
            whole = plan_job(cargo, replace(terms, share=(number, count)), 20)
            trained = [each.epoch for each in whole if each.purpose == "train"]
            assert {*trained} == {0, 1}


def test_a_receipt_has_room_for_every_planned_visit() -> None:
    """As text in a document that is base64 text itself, with a tenth for the rest."""
    many = 1000
    names = Uses(receipts=(Digest.of(b"a receipt"),) * many)
    each = len(encode(names)) / many * 4 / 3
    assert each * visits.MAX_VISITS < 0.9 * MAX_RUN_RECEIPT_BYTES


def test_slices_are_whole_cells() -> None:
    cargo = [table("a", 23, 10, cell_rows=4)]
    ranges = [(stop.first_row, stop.rows) for stop in plan(cargo, "by-size", 120)]
    assert ranges == [(0, 8), (8, 8), (16, 7)]


def agreed(cargo: list[Resource]) -> list[Resource]:
    """Resources of an agreement that are this cargo; each owner measures on one row."""
    return [
        each
        for item in cargo
        for each in (item, table(item.owner, 1, item.row_bytes, part="heldout"))
    ]


JOBS = st.builds(
    job_settings,
    epochs=st.integers(0, 3),
    order=st.sampled_from(ORDERS),
    buffer_bytes=BUFFERS,
    evaluate_every=st.integers(0, 2),
    mixed=st.booleans(),
    prepare=st.booleans(),
)


def size(settings: JobSettings) -> int:
    """The buffer of a job that says one."""
    return settings.travel.asked_bytes


@given(cargo=TABLES, settings=JOBS)
def test_a_job_visits_every_row_in_every_pass(
    cargo: list[Resource], settings: JobSettings
) -> None:
    plan = plan_job(agreed(cargo), settings.visits, size(settings))
    assert [group.position for group in plan] == list(range(len(plan)))
    assert all(group.stops for group in plan)
    passes = dict.fromkeys((group.purpose, group.epoch) for group in plan)
    train = {("train", epoch) for epoch in range(settings.training.epochs)}
    assert train <= set(passes) or not cargo
    assert (("prepare", 0) in passes) is (settings.training.prepare and bool(cargo))
    for purpose, epoch in passes:
        stops = [
            stop
            for group in plan
            if (group.purpose, group.epoch) == (purpose, epoch)
            for stop in group.stops
        ]
        for item in cargo:
            name = f"{item.owner}-{'heldout' if purpose == 'heldout' else 'train'}"
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
        assert len(group.stops) == 1 or (
            settings.travel.mixed and group.purpose != "heldout"
        )


@given(cargo=TABLES, settings=JOBS)
def test_ranges_of_a_job_are_equal_or_apart(
    cargo: list[Resource], settings: JobSettings
) -> None:
    """What the accelerator's counts rest on: the rows of different ranges add up."""
    resources = agreed(cargo)
    shown: dict[str, set[tuple[int, int]]] = {}
    for group in plan_job(resources, settings.visits, size(settings)):
        for stop in group.stops:
            shown.setdefault(stop.resource, set()).add((stop.first_row, stop.rows))
    for item in resources:
        ranges = shown.get(item.name, set())
        if item.part == "train":
            settings_pass = settings.training.epochs or settings.training.prepare
            assert sum(rows for _, rows in ranges) == (
                item.rows if settings_pass else 0
            )
        for first, rows in ranges:
            item.require_cells(first, rows)


@given(cargo=TABLES.filter(bool), buffer_bytes=BUFFERS)
def test_mixed_slices_last_until_the_end(
    cargo: list[Resource], buffer_bytes: int
) -> None:
    groups = mix_epoch(cargo, epoch=0, purpose="train", buffer_bytes=buffer_bytes)
    for item in cargo:
        sizes = [s.rows for group in groups for s in group if s.resource == item.name]
        assert max(sizes) - min(sizes) < 2 * item.cell_rows
        assert max(sizes) * item.row_bytes <= buffer_bytes
        assert len(sizes) == min(len(groups), item.cells)
