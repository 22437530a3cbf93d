"""The arithmetic of the travel table, and that the paper's own numbers fit their decoding."""

from __future__ import annotations

import pytest

from sealift.lab.bench.travel.overlap import read_overlap
from sealift.lab.bench.travel.table import (
    CARGO_BYTES,
    PAPER_TRAIN_S,
    RECORDED,
    Span,
    cap_name,
    exposed_share,
    fit_line,
    idle_share,
    share,
    whole_cargo,
)
from sealift.train.job.roleprocesses import RoleEvent

MIB = 1 << 20


def test_a_line_through_the_medians() -> None:
    points = {MIB: [1.5, 99.0, 1.0], 3 * MIB: [3.5]}
    line = fit_line(points)
    assert line.at(2 * MIB) == pytest.approx(2.5)
    assert line.fixed_s == pytest.approx(0.5)


def test_what_was_measured_whole_is_not_scaled() -> None:
    small = {MIB: [1.0], 2 * MIB: [2.0]}
    scaled = whole_cargo(small, 8 * MIB)
    assert (scaled.seconds, scaled.scaled) == (pytest.approx(8.0), True)
    whole = whole_cargo({8 * MIB: [7.0, 9.0, 7.5]}, 8 * MIB)
    assert (whole.seconds, whole.scaled) == (7.5, False)


def test_the_papers_shares_and_ratios() -> None:
    """Its percentages follow from its seconds, so the columns were read right."""
    shares = (47.568, 15.787, 4.674, 1.272, 0.594)
    for row, told in zip(RECORDED, shares, strict=True):
        assert share(row.ship_s, PAPER_TRAIN_S) == pytest.approx(told, abs=0.02)
    ratios = [round(row.ratio, 1) for row in RECORDED]
    assert ratios == [1104.8, 224.1, 59.2, 16.2, 7.5]
    for row in RECORDED[:4]:  # the caps are megabits of a network, and 7.3 s are fixed
        wire_s = CARGO_BYTES * 8 / (row.cap * 1e6) + 7.3
        assert row.ship_s == pytest.approx(wire_s, rel=0.21)


def test_names_of_caps() -> None:
    assert [cap_name(cap) for cap in (4, 0)] == ["4 Mbit/s", "uncapped"]


def test_what_loading_holds_up() -> None:
    hidden = (Span(0, 1, 11), Span(5, 12, 22), Span(16, 22, 32))
    assert exposed_share(hidden) == 0
    assert idle_share(hidden) == pytest.approx(1 / 21)
    late = (Span(0, 1, 11), Span(13, 14, 21))
    assert exposed_share(late) == pytest.approx(0.2)
    assert idle_share(late) == pytest.approx(0.3)


def test_the_first_visit_does_not_count() -> None:
    spans = (Span(100, 101, 111), Span(105, 112, 121))
    assert exposed_share(spans) == 0


def events() -> list[RoleEvent]:
    def phase(visit: str, name: str, t_s: float, purpose: str = "train") -> RoleEvent:
        fields = {"visit": visit, "phase": name, "purpose": purpose}
        return RoleEvent("orchestrator", t_s, "visit.phase", fields)

    def ended(visit: str, t_s: float, load_s: float) -> RoleEvent:
        fields = {"visit": visit, "purpose": "train", "handshake_s": 0.5}
        return RoleEvent(
            "orchestrator", t_s, "visit.ended", {**fields, "load_s": load_s}
        )

    return [
        phase("a", "load", 0), phase("a", "wait", 1), phase("a", "train", 2),
        phase("b", "load", 2), phase("b", "wait", 3),
        phase("h", "wait", 3, "heldout"), phase("h", "train", 3, "heldout"),
        phase("a", "scrub", 10), ended("a", 11, 1.0),
        phase("b", "train", 12), phase("b", "scrub", 20), ended("b", 21, 2.0),
        phase("c", "load", 21), phase("c", "wait", 22),  # it never trained
    ]  # fmt: skip


def test_spans_from_what_the_orchestrator_tells() -> None:
    run = read_overlap(events())
    assert run.spans == (Span(1, 2, 10), Span(3, 12, 20))
    assert run.load_s == (1.5, 2.5)
