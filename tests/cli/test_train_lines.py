"""What a person reads of a run: passes over all tables, held-out numbers, time left."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from sealift.release.agreement.signed import load_verified
from sealift.train.job.roleprocesses import RoleEvent
from sealift.train.job.sentences import sentence
from sealift.train.job.settings import read_job
from sealift.train.job.talk import Talk
from sealift.train.job.trainlines import TrainLines
from sealift.train.loop.measures import withheld_numbers
from tests.sim.jobworld import Wishes, fresh_world

READY = {
    "level": "development", "keys": 6, "sandbox": "none", "why": "set by the job",
    "buffer_bytes": 1 << 20, "position": 0,
}  # fmt: skip


def event(kind: str, t_s: float, **fields: Any) -> RoleEvent:
    return RoleEvent("orchestrator", t_s, kind, fields)


def visit(t_s: float, purpose: str, epoch: int, **metrics: float) -> RoleEvent:
    named = {f"metric.{name}": value for name, value in metrics.items()}
    return event(
        "visit.ended", t_s, outcome="verified", purpose=purpose, epoch=epoch,
        rows=10, sealed_bytes=500, holder="north", **named,
    )  # fmt: skip


def said(tmp_path: Path, *events: RoleEvent) -> list[str]:
    world = fresh_world(tmp_path / "world", Wishes(epochs=2))
    stream, job = io.StringIO(), read_job(world.job)
    agreement = load_verified(world.agreement).agreement
    lines = TrainLines(agreement, job, watch=False, talk=Talk(stream))
    for each in events:
        lines.take(each)
    lines.say_pass()
    return stream.getvalue().splitlines()


def test_each_pass_has_a_line_with_its_means(tmp_path: Path) -> None:
    *_, trained, measured = said(
        tmp_path,
        visit(1.0, "train", 0, loss=1.0),
        visit(2.0, "train", 0, loss=0.5),
        visit(3.0, "heldout", 0, loss=0.5, accuracy=0.25),
        visit(4.0, "heldout", 0, loss=0.7, accuracy=0.75),
    )
    assert trained == "sealift: epoch 1 of 2: 2 visits, 1 kB sealed, loss 0.75"
    assert (
        measured == "sealift: after epoch 1: 20 held-out rows, accuracy 0.5, loss 0.6"
    )


def test_time_left_follows_from_the_plan(tmp_path: Path) -> None:
    slow = said(
        tmp_path,
        event("job.ready", 0.0, **READY),
        visit(100.0, "train", 0),
        visit(101.0, "heldout", 0),
    )
    assert slow[-2].endswith(" min left")
    quick = said(
        tmp_path / "quick", event("job.ready", 0.0, **READY), visit(0.1, "train", 0)
    )
    assert "left" not in quick[-1]


def test_slices_of_one_process_are_told_alike(tmp_path: Path) -> None:
    world = fresh_world(tmp_path / "world", Wishes(epochs=2))
    stream, job = io.StringIO(), read_job(world.job)
    agreement = load_verified(world.agreement).agreement
    lines = TrainLines(agreement, job, watch=True, talk=Talk(stream))
    lines.begin_here(0.0)
    fields = {"purpose": "train", "epoch": 0, "holder": "north", "resource": "n",
              "rows": 10, "first_row": 0, "metric.loss": 0.5}  # fmt: skip
    lines.take(RoleEvent("train", 100.0, "local.slice", fields))
    lines.say_pass()
    slice_line, pass_line = stream.getvalue().splitlines()
    assert slice_line == "sealift: north train: 10 rows of n, loss 0.5"
    assert pass_line.startswith("sealift: epoch 1 of 2: 1 slices, loss 0.5, about ")


def test_a_measure_that_is_withheld_is_named(tmp_path: Path) -> None:
    """Beside numbers that are shared; the loss need not be measured."""
    held = {"purpose": "heldout", "epoch": 1, "rows": 40, "seconds": 1.0}
    *_, line = said(
        tmp_path, event("round.ended", 0.0, **held, **{"metric.other": 1.0})
    )
    assert "not shared: accuracy, because an owner holds out fewer rows" in line
    *_, line = said(
        tmp_path / "all", event("round.ended", 0.0, **held, **{"metric.accuracy": 0.5})
    )
    assert "not shared" not in line
    own = {**held, "metric.own.loss": 0.5, "withheld": "auc, recall"}
    line = sentence("rank.measured", own)
    assert line.endswith("or the recipe measured nothing")
    assert "not shared: auc, recall, because you hold out fewer rows" in line
    assert withheld_numbers(["loss", "scores_64", "r"], ["auc"]) == ["r"]
