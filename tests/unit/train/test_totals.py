"""Totals of ``prepare``: added exactly, let out by the rule, or not at all."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from sealift.errors import JobError, MalformedError
from sealift.release.agreement import OutputRule, Resource
from sealift.train.loop.states import TensorBytes, pack_tensors
from sealift.train.loop.statistics import (
    MAX_TOLD,
    Statistic,
    add_sums,
    check_sums,
    check_totals,
    let_out_totals,
    sum_numbers,
)
from tests.unit.train.joints import resource
from tests.worlds.consortium import OUTPUT

RULE = replace(
    OUTPUT,
    statistics=("count", "sum", "table"),
    statistics_rows=50,
    min_holders=2,
    min_owner_rows=10,
)
RESOURCES = (
    resource("north", 40),
    resource("east", 20),
    resource("east", 9, "heldout"),
)
WHOLE = {"north-train": 40, "east-train": 20}


def blob(**sums: Any) -> bytes:
    """Sums as a worker hands them over: floats as F64, whole numbers as I64."""
    return pack_tensors({name: tensor(value) for name, value in sums.items()})


def tensor(value: Any) -> TensorBytes:
    shape: tuple[int, ...] = ()
    flat = value
    while isinstance(flat, list):
        shape += (len(flat),)
        flat = flat[0]
    numbers = flatten(value)
    whole = all(isinstance(each, int) for each in numbers)
    packed = struct.pack(f"<{len(numbers)}{'q' if whole else 'd'}", *numbers)
    return TensorBytes("I64" if whole else "F64", shape, memoryview(packed))


def flatten(value: Any) -> list[Any]:
    return (
        [n for part in value for n in flatten(part)] if type(value) is list else [value]
    )


def test_sums_add_up_in_order() -> None:
    parts = [blob(count=3, sum=[0.1, 1e16]), blob(count=4, sum=[0.2, 1.0])]
    total = check_sums(add_sums([*parts, blob(count=1, sum=[0.3, -1e16])]))
    assert sum_numbers(total["count"]) == (8,)
    assert sum_numbers(total["sum"]) == (0.1 + 0.2 + 0.3, 1e16 + 1.0 - 1e16)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 1, "b": 1}),
        ({"a": 1}, {}),
        ({}, {"a": 1}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": [1, 2]}, {"a": [1]}),
        ({"a": [1, 2]}, {"a": [[1], [2]]}),
        ({"a": (1 << 53) - 1}, {"a": 1}),
        ({"a": -(1 << 53) + 1}, {"a": -1}),
        ({"a": 1e308}, {"a": 1e308}),
        ({"a": 1.0}, {"a": float("nan")}),
        ({"a": float("inf")}, {"a": 1.0}),
        ({"a": 1 << 60}, {"a": 1}),
    ],
)
def test_sums_that_do_not_add_up(first: dict[str, Any], second: dict[str, Any]) -> None:
    with pytest.raises(MalformedError) as refusal:
        add_sums([blob(**first), blob(**second)])
    assert refusal.value.code == "bad-tensors"


def test_too_many_numbers_are_no_sums() -> None:
    check_sums(blob(a=[0] * 65_536))
    with pytest.raises(MalformedError):
        check_sums(blob(a=[0] * 65_537))


@pytest.mark.parametrize("shape", [(0,), ((1 << 53) - 1, 0), (0, 7)])
def test_no_numbers_are_no_sum(shape: tuple[int, ...]) -> None:
    """Whoever reads them would build (1 << 53) - 1 empty lists."""
    empty = pack_tensors({"a": TensorBytes("F64", shape, memoryview(b""))})
    with pytest.raises(MalformedError, match="not sums"):
        check_sums(empty)
    with pytest.raises(MalformedError, match="not match"):
        Statistic(shape, ())
    assert Statistic((1, 2), (3.0, 4.0)).nested() == [[3.0, 4.0]]  # control


def test_only_named_totals_leave_rounded() -> None:
    found = let_out_totals(
        blob(count=60, sum=[1.23456, -2.0], table=[[1, 2], [3, 4]], secret=[7.0]), RULE
    )
    assert found == {
        "count": Statistic((), (60.0,)),
        "sum": Statistic((2,), (1.235, -2.0)),
        "table": Statistic((2, 2), (1.0, 2.0, 3.0, 4.0)),
    }
    nested = {name: each.nested() for name, each in found.items()}
    assert nested == {"count": 60.0, "sum": [1.235, -2.0], "table": [[1, 2], [3, 4]]}


def test_without_sums_nothing_leaves() -> None:
    assert let_out_totals(b"", RULE) == {}
    assert let_out_totals(blob(sum=1.5), replace(RULE, statistics=())) == {}


def test_more_numbers_than_the_manifest_holds() -> None:
    assert let_out_totals(blob(sum=[0] * MAX_TOLD), RULE)
    with pytest.raises(JobError) as refusal:
        let_out_totals(blob(sum=[0] * MAX_TOLD, count=1), RULE)
    assert refusal.value.code == "statistics-withheld"
    assert let_out_totals(blob(secret=[0] * (MAX_TOLD + 1), count=1), RULE)


def test_a_whole_pass_is_enough() -> None:
    check_totals(RULE, RESOURCES, WHOLE)


@pytest.mark.parametrize(
    ("change", "rows", "why"),
    [
        ({}, {}, "0 rows of north; .* at least 10"),
        ({}, {"north-train": 40}, "0 rows of east"),
        ({}, {"north-train": 40, "east-train": 19}, "19 of the 20 rows of east-train"),
        ({}, {"north-train": 41, "east-train": 20}, "41 of the 40 rows"),
        ({"statistics_rows": 61}, WHOLE, "60 rows; .* at least 61"),
        ({"min_owner_rows": 21}, WHOLE, "20 rows of east; .* at least 21"),
        ({"min_holders": 3}, WHOLE, "2 owners; .* at least 3"),
    ],
)
def test_totals_of_too_little_are_withheld(
    change: dict[str, Any], rows: dict[str, int], why: str
) -> None:
    rule: OutputRule = replace(RULE, **change)
    with pytest.raises(JobError, match=why) as refusal:
        check_totals(rule, RESOURCES, rows)
    assert refusal.value.code == "statistics-withheld"


def test_an_owner_with_two_tables_may_leave_one_out() -> None:
    second: Resource = replace(RESOURCES[0], name="north-more")
    check_totals(RULE, (*RESOURCES, second), WHOLE)
    with pytest.raises(JobError, match="5 of the 40 rows of north-more"):
        check_totals(RULE, (*RESOURCES, second), {**WHOLE, "north-more": 5})
