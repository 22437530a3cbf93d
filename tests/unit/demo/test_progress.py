"""Progress: what a run's events add up to, in whatever order processes tell them."""

from __future__ import annotations

from typing import Any

from sealift.demo.holders import REPLAY
from sealift.demo.progress import Progress
from sealift.train.job.roleprocesses import RoleEvent, RoleResult, parse_line


def told(kind: str, t_s: float = 1.0, process: str = "orchestrator", **fields: Any):
    return RoleEvent(process, t_s, kind, fields)


def offered(visit: str, number: int, t_s: float = 1.0) -> RoleEvent:
    return told(
        "visit.offered",
        t_s,
        visit=visit,
        number=number,
        epoch=0,
        holder="south",
        purpose="train",
        rows=8,
    )


def ended(visit: str, outcome: str, reason: str = "") -> RoleEvent:
    fields = {"handshake_s": 0.25, "load_s": 0.5, "train_s": 4.0, "metric.loss": 1.5}
    return told(
        "visit.ended",
        9.0,
        visit=visit,
        outcome=outcome,
        reason=reason,
        line="a line",
        sealed_bytes=100,
        scrubbed_bytes=200,
        **fields,
    )


def test_a_visit_is_followed_to_its_end() -> None:
    progress = Progress(3)
    phase = told("visit.phase", 2.0, visit="a", phase="load")
    for event in (offered("a", 1), phase, ended("a", "verified")):
        progress.take(event)
    (visit,) = progress.verified
    assert (visit.marks, visit.ended_s) == ([("load", 2.0)], 9.0)
    assert (visit.phases_s["train"], visit.metrics) == (4.0, {"loss": 1.5})
    assert (progress.sealed_bytes, progress.transfer_s) == (100, 0.75)


def test_visits_that_overlap_are_kept_apart() -> None:
    progress = Progress(2)
    begins = told("visit.phase", 2.0, visit="a", phase="train")
    loads = told("visit.phase", 3.0, visit="b", phase="load")
    for event in (offered("a", 1), offered("b", 2), begins, loads):
        progress.take(event)
    first, second = progress.visits
    assert (first.marks, second.marks) == ([("train", 2.0)], [("load", 3.0)])
    assert progress.last_of("south") is first
    progress.take(ended("a", "verified"))
    assert progress.last_of("south") is second
    assert (first.under_way, second.under_way) == (False, True)
    assert [span.phase for span in first.spans] == ["offer", "train"]
    assert second.spans == []


def test_what_the_accelerator_says_of_itself_is_kept() -> None:
    progress = Progress(1)
    facts = {"level": "development", "sandbox": "namespaces", "why": "w"}
    progress.take(told("job.ready", 3.0, buffer_bytes=64, **facts))
    assert (progress.sandbox, progress.buffer_bytes) == ("namespaces", 64)
    bare = Progress(1)
    bare.take(told("job.ready", 3.0, level="development"))
    assert (bare.sandbox, bare.buffer_bytes, bare.ready_s) == ("", 0, 3.0)


def test_checkpoints_made_and_missed() -> None:
    progress = Progress(1)
    progress.take(told("checkpoint.sealed", 5.0, number=1, sealed_bytes=9, seal_s=0.5))
    progress.take(told("checkpoint.missed", 6.0, number=2, line="a broker is away"))
    made, missed = progress.checkpoints
    assert (made.number, made.sealed_bytes, made.seconds) == (1, 9, 0.5)
    assert (made.missed, missed.missed) == ("", "a broker is away")


def test_an_attack_finds_its_refusal() -> None:
    progress = Progress(3)
    tries = told("hostile.tries", process="holder-south", attack=REPLAY, visit="a")
    for event in (offered("a", 1), tries, ended("a", "failed", "frame-order")):
        progress.take(event)
    (attack,) = progress.attacks
    assert (attack.holder, attack.reason) == ("south", "frame-order")
    assert attack.scrubbed_bytes == 200
    assert progress.verified == []


def test_an_attack_that_is_told_late_finds_it_too() -> None:
    progress = Progress(3)
    tries = told("hostile.tries", process="holder-south", attack=REPLAY, visit="a")
    again = offered("b", 2)
    for event in (offered("a", 1), ended("a", "failed", "frame-order"), again, tries):
        progress.take(event)
    assert progress.attacks[0].reason == "frame-order"


def test_an_attack_that_gets_through_has_no_refusal() -> None:
    progress = Progress(3)
    tries = told("hostile.tries", process="holder-south", attack=REPLAY, visit="a")
    for event in (offered("a", 1), tries, ended("a", "verified")):
        progress.take(event)
    assert progress.attacks[0].reason == ""


def test_lines_are_events_results_or_nothing() -> None:
    assert parse_line("x", '{"t_s": 1, "kind": "a.b", "n": 2}') == RoleEvent(
        "x", 1.0, "a.b", {"n": 2}
    )
    assert parse_line("x", '{"run": "y"}') == RoleResult("x", {"run": "y"})
    assert parse_line("x", "no json") is None
    assert parse_line("x", "[1]") is None
