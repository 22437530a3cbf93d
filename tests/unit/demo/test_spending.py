"""Spending: every instant counted once, loading only where nothing covers it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sealift.demo.details import spend
from sealift.demo.progress import CheckpointSeen, Progress, VisitSeen


def visit(name: str, began_s: float, marks: str, ended_s: float) -> VisitSeen:
    """``marks`` such as ``handshake@1 load@2``."""
    parts = [mark.split("@") for mark in marks.split()]
    return VisitSeen(
        visit=name,
        number=1,
        epoch=0,
        holder="north",
        purpose="train",
        rows=8,
        began_s=began_s,
        ended_s=ended_s,
        marks=[(phase, float(at)) for phase, at in parts],
        outcome="verified",
    )


def run(*visits: VisitSeen) -> Progress:
    return Progress(len(visits), visits=list(visits))


def test_one_after_the_other_all_loading_is_exposed() -> None:
    one = visit("a", 0.0, "handshake@1 load@2 train@3 scrub@7", 8.0)
    two = visit("b", 10.0, "handshake@10 load@11 train@13", 14.0)
    found = spend(run(one, two))
    assert found.seconds == {
        "offer": 1.0,
        "handshake": 2.0,
        "load": 3.0,
        "train": 5.0,
        "scrub": 1.0,
        "idle": 2.0,
    }
    assert found.whole_s == 14.0
    assert (found.exposed_s, (found.transfer_s - found.exposed_s)) == (5.0, 0.0)


def test_loading_during_training_is_hidden() -> None:
    one = visit("a", 0.0, "load@0 train@2", 10.0)
    two = visit("b", 3.0, "handshake@3 load@4 wait@6 train@10", 12.0)
    found = spend(run(one, two))
    assert found.seconds == {"load": 2.0, "train": 10.0}
    assert (
        found.transfer_s,
        found.exposed_s,
        (found.transfer_s - found.exposed_s),
    ) == (5.0, 2.0, 3.0)


def test_a_checkpoint_takes_the_time_between_visits() -> None:
    progress = run(visit("a", 0.0, "train@0", 2.0), visit("b", 5.0, "train@5", 6.0))
    progress.checkpoints.append(CheckpointSeen(1, at_s=4.0, seconds=1.5))
    assert spend(progress).seconds == pytest.approx(
        {"train": 3.0, "checkpoint": 1.5, "idle": 1.5}
    )


def test_segments_touch_and_never_overlap() -> None:
    visits = [
        visit(str(n), n * 0.7, f"load@{n * 0.7} train@{n * 0.7 + 0.5}", n * 0.7 + 1.1)
        for n in range(9)
    ]
    segments = spend(run(*visits)).segments
    for before, after in pairwise(segments):
        assert before.ended_s == after.began_s
        assert before.phase != after.phase


def test_nothing_happened() -> None:
    found = spend(Progress(3))
    assert (found.segments, found.whole_s, found.exposed_s) == ((), 0, 0)
