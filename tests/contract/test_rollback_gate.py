"""Brokers that ask each other which agreement is the last, over a real relay."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sealift.release.agreement import Board, RollbackRule
from tests.sim.brokertown import Town
from tests.worlds.consortium import Consortium, make_consortium

NAMES = ("ada", "bern", "cleo")
BOARD = Board(members=NAMES, threshold=2, rollback=RollbackRule(2, 0))


@pytest.fixture(scope="module")
def consortium() -> Consortium:
    plain = make_consortium()
    return replace(plain, agreement=replace(plain.agreement, board=BOARD))


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    town = Town(tmp_path)
    yield town
    town.close()


def await_release(town: Town, consortium: Consortium, owner: str) -> str:
    deadline = time.monotonic() + 300
    while (said := town.collect(consortium, owner)) != "released":
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return said


def test_nothing_is_released_before_a_quorum_was_heard(
    town: Town, consortium: Consortium
) -> None:
    town.start(consortium, "ada")
    assert "quorum-missing" in town.collect(consortium, "ada")
    town.start(consortium, "bern")
    assert await_release(town, consortium, "ada") == "released"
    assert await_release(town, consortium, "bern") == "released"


def test_owners_that_went_on_are_no_quorum_for_what_was_before(
    town: Town, consortium: Consortium
) -> None:
    """A broker put back to an old agreement: the others serve the successor."""
    successor = consortium.successor()
    for owner in ("bern", "cleo"):
        town.start(successor, owner)
    town.start(consortium, "ada")
    time.sleep(1.5)
    assert "quorum-missing" in town.collect(consortium, "ada")
    assert await_release(town, successor, "bern") == "released"


def test_without_the_rule_nobody_is_asked(town: Town) -> None:
    """Control."""
    plain = make_consortium()
    town.start(plain, "ada")
    assert town.collect(plain, "ada") == "released"
