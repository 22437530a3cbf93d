"""The arithmetic of the travel table, and that the paper's own numbers fit their decoding."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.travel.overlap import (
    Stretch,
    exposed_share,
    idle_share,
    read_overlap,
    wide_work,
)
from benchmarks.travel.visits import (
    CARGO_BYTES,
    PAPER_TRAIN_S,
    RECORDED,
    cap_name,
    fit_line,
    share,
    whole_cargo,
)
from sealift.demo.job import Travel, make_world, write_job
from sealift.demo.progress import Progress
from sealift.release.agreement.signed import load_verified
from sealift.train.job.roleprocesses import RoleEvent
from sealift.train.job.settings import read_job

pytestmark = pytest.mark.long

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
    hidden = (Stretch(0, 1, 11), Stretch(5, 12, 22), Stretch(16, 22, 32))
    assert exposed_share(hidden) == 0
    assert idle_share(hidden) == pytest.approx(1 / 21)
    late = (Stretch(0, 1, 11), Stretch(13, 14, 21))
    assert exposed_share(late) == pytest.approx(0.2)
    assert idle_share(late) == pytest.approx(0.3)


def test_the_first_visit_does_not_count() -> None:
    spans = (Stretch(100, 101, 111), Stretch(105, 112, 121))
    assert exposed_share(spans) == 0


def told() -> Progress:
    def phase(visit: str, name: str, t_s: float) -> RoleEvent:
        fields = {"visit": visit, "phase": name}
        return RoleEvent("orchestrator", t_s, "visit.phase", fields)

    def offered(visit: str, purpose: str = "train") -> RoleEvent:
        fields = {"visit": visit, "purpose": purpose, "number": 1, "epoch": 0}
        return RoleEvent("orchestrator", 0.0, "visit.offered", {**fields, "rows": 1})

    def ended(visit: str, t_s: float, load_s: float) -> RoleEvent:
        fields = {"visit": visit, "outcome": "verified", "handshake_s": 0.5}
        fields |= {"load_s": load_s, "sealed_bytes": 0, "scrubbed_bytes": 0}
        return RoleEvent("orchestrator", t_s, "visit.ended", fields)

    progress = Progress(4)
    for event in (
        offered("a"), offered("b"), offered("c"), offered("h", "heldout"),
        phase("a", "load", 0), phase("a", "wait", 1), phase("a", "train", 2),
        phase("b", "load", 2), phase("b", "wait", 3),
        phase("h", "wait", 3), phase("h", "train", 3), ended("h", 4, 9.0),
        phase("a", "scrub", 10), ended("a", 11, 1.0),
        phase("b", "train", 12), phase("b", "scrub", 20), ended("b", 21, 2.0),
        phase("c", "load", 21), phase("c", "wait", 22),  # it never trained
    ):  # fmt: skip
        progress.take(event)
    return progress


def test_spans_from_what_the_orchestrator_tells() -> None:
    run = read_overlap(told())
    assert run.stretches == (Stretch(1, 2, 10), Stretch(3, 12, 20))
    assert run.load_s == (1.5, 2.5)


def test_everybody_signed_the_agreement_of_the_overlap_world(tmp_path: Path) -> None:
    work = wide_work(rows=32, visits=2)
    world = make_world(tmp_path / "world", work, Travel(buffers=2))

    verified = load_verified(world.agreement)

    assert verified.agreement.travel.buffers == 2
    assert verified.agreement.data_owners == ("north", "east")
    write_job(world.again("2-0"), work, Travel(buffers=2))
    assert read_job(world.again("2-0").job).travel.buffers == 2
