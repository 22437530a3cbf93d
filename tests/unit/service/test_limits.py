"""Rates and gates by themselves, with a clock that the test moves."""

from __future__ import annotations

import pytest

from sealift.service.limits import (
    MAX_ADDRESSES,
    Entrance,
    Gate,
    Limits,
    RateLimit,
    address_key,
    check_target,
)
from sealift.service.problem import Problem


def spends(limit: RateLimit, key: str, now_s: float) -> bool:
    try:
        limit.spend(key, now_s)
    except Problem as problem:
        return problem.rule != "http-rate"
    return True


def test_rate() -> None:
    limit = RateLimit(2.0, burst=3.0)
    assert [spends(limit, "a", 0.0) for _ in range(4)] == [True, True, True, False]
    assert spends(limit, "b", 0.0)
    assert [spends(limit, "a", 0.5), spends(limit, "a", 0.5)] == [True, False]
    assert [spends(limit, "a", 99.0) for _ in range(4)] == [True, True, True, False]


def test_addresses_are_bounded() -> None:
    limit = RateLimit(1.0, burst=1.0)
    for number in range(2 * MAX_ADDRESSES):
        limit.spend(str(number), 0.0)
    assert len(limit._buckets) == MAX_ADDRESSES


def test_one_address_does_not_use_up_what_all_share() -> None:
    entrance = Entrance(Limits(per_address=1.0, in_all=3.0, burst_s=1.0))
    entrance.admit("192.0.2.1", 0.0)
    for _ in range(10):
        with pytest.raises(Problem):
            entrance.admit("192.0.2.1", 0.0)
    entrance.admit("192.0.2.2", 0.0)
    entrance.admit("192.0.2.3", 0.0)
    with pytest.raises(Problem):
        entrance.admit("192.0.2.4", 0.0)


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("what", "ever", True),
    ],
)
def test_who_counts_as_one(left: str, right: str, same: bool) -> None:
    assert (address_key(left) == address_key(right)) is same


def test_gate() -> None:
    gate = Gate(1, 1)
    with gate.passing("192.0.2.1"):
        assert gate.inside == 1
        with pytest.raises(Problem) as caught, gate.passing("192.0.2.1"):
            pass
        assert (caught.value.status, caught.value.rule) == (503, "http-busy")
    assert gate.inside == 0
    with pytest.raises(KeyError), gate.passing("192.0.2.1"):
        raise KeyError
    assert gate.inside == 0


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        (b"/kbs/v0/auth", b"", 0),
        (b"/a", b"x=%41", 0),
        (b"/" + b"a" * 1023, b"", 0),
        (b"/" + b"a" * 1023, b"b", 414),
        (b"/%2e%2e", b"", 404),
        (b"/a b", b"", 404),
        (b"/\xc3\xa9", b"", 404),
        (b"/a\x00", b"", 404),
    ],
)
def test_target(path: bytes, query: bytes, status: int) -> None:
    if not status:
        check_target(path, query, Limits())
        return
    with pytest.raises(Problem) as caught:
        check_target(path, query, Limits())
    assert caught.value.status == status


def test_one_address_does_not_take_every_place() -> None:
    gate = Gate(3, 2)
    with gate.passing("192.0.2.1"), gate.passing("192.0.2.1"):
        with pytest.raises(Problem) as caught, gate.passing("192.0.2.1"):
            pytest.fail("a third one of it")
        assert caught.value.rule == "http-busy"
        with gate.passing("192.0.2.2"):  # control: there is a place for others
            assert gate.inside == 3
    with gate.passing("192.0.2.1"):
        assert gate.inside == 1
