"""Pairs of the link benchmark: what is counted, and which cores were left alone."""

from __future__ import annotations

import os

import pytest

from benchmarks.link.pairs import CoreGauge, Pair, pairs_row

pytestmark = pytest.mark.long

GIB = 1 << 30


class Rates(CoreGauge):
    """A gauge whose cores go as fast as they are told."""

    def __init__(self, *rates: float) -> None:
        super().__init__([0, 0])
        self._told = iter(rates)

    def _rate_on(self, core: int) -> float:
        return next(self._told)


def test_a_ratio_is_that_of_the_pair_in_the_middle() -> None:
    """A machine that slows down for a while slows both of a pair."""
    gauge = Rates(1.0, 1.0)
    rates = gauge.read()
    quick, slow = Pair(1.0, 2.0, rates), Pair(10.0, 20.0, rates)
    odd = Pair(3.0, 2.0, rates)
    row = pairs_row(GIB, [quick, slow, quick, quick, odd], gauge)
    assert row["vs_plain"] == row["vs_plain_undisturbed"] == 0.5
    assert row["pairs"] == row["undisturbed"] == 5
    assert row["plain_gb_per_s"] == round(GIB / 1e9, 3)


@pytest.mark.parametrize("slow_core", [0, 1])
def test_pairs_on_a_disturbed_core_are_counted_apart(slow_core: int) -> None:
    rates = [10.0, 20.0]
    slowed = list(rates)
    slowed[slow_core] *= 0.89
    gauge = Rates(*slowed, *rates)
    disturbed, quiet = (Pair(1.0, taken, gauge.read()) for taken in (2.0, 1.0))
    row = pairs_row(GIB, [disturbed] * 3 + [quiet], gauge)
    assert (row["vs_plain"], row["vs_plain_undisturbed"]) == (0.5, 1.0)
    assert (row["pairs"], row["undisturbed"]) == (4, 1)


def test_without_an_undisturbed_pair_nothing_is_said_of_them() -> None:
    gauge = Rates(1.0, 1.0, 9.0, 9.0)
    before = Pair(1.0, 2.0, gauge.read())
    gauge.read()
    row = pairs_row(GIB, [before, before], gauge)
    assert (row["undisturbed"], row["vs_plain_undisturbed"]) == (0, "")


def test_the_gauge_leaves_its_thread_where_it_was() -> None:
    cores = sorted(os.sched_getaffinity(0))
    assert min(CoreGauge(cores).read()) > 0
    assert sorted(os.sched_getaffinity(0)) == cores
