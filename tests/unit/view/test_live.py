"""What a page makes of a journal: the run that goes on, and nothing of the one before."""

from __future__ import annotations

from typing import Any

from sealift.train.job.journal import BEGAN, ENDED, JournalEntry
from sealift.view.live import LiveRun, replay

READY = {
    "level": "development", "keys": 6, "position": 0, "buffer_bytes": 640, "why": "",
    "sandbox": "none",
}  # fmt: skip


def told(
    at_s: float, kind: str, by: str = "orchestrator", **fields: Any
) -> JournalEntry:
    return JournalEntry(at_s, by, kind, fields)


def began(at_s: float, by: str = "orchestrator", plan: str = "travel") -> JournalEntry:
    return told(
        at_s, BEGAN, by, job="digits", plan=plan, agreement="sha256:0", name="x"
    )


def visit(at_s: float, number: int, holder: str = "north", **more: Any) -> JournalEntry:
    fields = {
        "visit": f"{number:032x}", "number": number, "position": number, "epoch": 0,
        "holder": holder, "resource": f"{holder}-train", "purpose": "train",
        "first_row": 0, "rows": 9, "outcome": "verified", "reason": "", "line": "",
        "sealed_bytes": 1000, "scrubbed_bytes": 640, "load_s": 0.25, "train_s": 0.5,
        "metric.loss": 0.5,
    }  # fmt: skip
    return JournalEntry(at_s, "orchestrator", "visit.ended", fields | more)


def offered(at_s: float, number: int) -> JournalEntry:
    return JournalEntry(
        at_s, "orchestrator", "visit.offered", dict(visit(0, number).fields)
    )


def test_progress_and_time_left_are_judged_by_what_was_done() -> None:
    run = replay([began(0), told(10, "job.ready", **READY)])
    assert (run.units, run.left_s(9)) == (0, None)
    replay([visit(12, 0), visit(14, 1)], run)
    assert run.units == 2
    assert run.left_s(3) == 6.0
    assert run.left_s(0) is None
    assert run.phases_s == {"load": 0.5, "train": 1.0}
    assert (run.sealed_bytes, run.scrubbed_bytes) == (2000, 1280)
    assert run.level == "development"


def test_who_is_inside_leaves_when_the_visit_ends() -> None:
    run = replay([began(0), told(1, "job.ready", **READY), offered(2, 0)])
    [inside] = run.inside.values()
    assert (inside.holder, inside.phase, inside.since_s) == ("north", "offered", 2)
    replay(
        [told(3, "visit.phase", **dict(offered(3, 0).fields), phase="training")], run
    )
    assert inside.phase == "training"
    replay([visit(4, 0)], run)
    assert run.inside == {}


def test_a_visit_that_failed_is_trouble_and_no_row() -> None:
    bad = visit(2, 0, outcome="failed", reason="frame-order", line="a frame came twice")
    run = replay([began(0), told(1, "job.ready", **READY), offered(1, 0), bad])
    assert run.rows == []
    assert run.inside == {}
    assert "frame-order" in run.trouble[0][1]


def test_after_a_restart_time_is_counted_anew() -> None:
    run = replay([began(0), told(1, "job.ready", **READY), visit(2, 0), offered(3, 1)])
    again = READY | {"position": 1}
    replay([began(50), told(60, "job.ready", **again)], run)
    assert (run.units, run.position, len(run.rows), run.inside) == (0, 1, 1, {})
    replay([visit(61, 1)], run)
    assert run.left_s(4) == 4.0


def test_a_run_that_begins_at_its_beginning_forgets_one_that_was_killed() -> None:
    run = replay([began(0), told(1, "job.ready", **READY), visit(2, 0)])
    replay([began(90), told(91, "job.ready", **READY)], run)
    assert (run.rows, run.sealed_bytes, run.phases_s) == ([], 0, {})


def test_the_next_run_begins_when_all_roles_had_ended() -> None:
    first = [began(0), began(1, "holder"), visit(2, 0)]
    one = replay([*first, told(3, ENDED, outcome="finished", line="")])
    assert not one.is_over  # the holder goes on
    ends = [
        told(3, ENDED, outcome="finished", line=""),
        told(4, ENDED, "holder", outcome="finished", line=""),
    ]
    both = replay([*first, *ends])
    assert (both.outcome, len(both.rows)) == ("finished", 1)
    after = replay([*first, *ends, began(9)])
    assert (after.outcome, after.rows, after.began_s) == ("", [], 9)


def test_an_end_says_why() -> None:
    run = replay([began(0), told(1, ENDED, outcome="owner-left", line="north left")])
    assert run.outcome == "owner-left"
    assert run.endings == {"orchestrator": "north left"}


def test_keys_that_went_out_and_that_did_not() -> None:
    run = replay(
        [
            told(1, "release.granted", "broker", resource="a", peer="accelerator-0"),
            told(2, "release.refused", "broker", peer="x", rule="level-refused"),
            told(3, "lease.revoked", "broker", peer="x", rule="lease-over"),
        ]
    )
    assert run.released == [(1, "the key of a was released to accelerator-0")]
    assert run.refused == [(2, "x was refused a key: level-refused", "level-refused")]
    assert len(run.trouble) == 1


def test_an_owners_own_numbers() -> None:
    measured = {
        "purpose": "heldout", "epoch": 0, "resource": "north-heldout", "first_row": 0,
        "rows": 5, "visit": "00", "metric.accuracy": 0.9,
    }  # fmt: skip
    alone = replay(
        [began(0, "holder"), JournalEntry(1, "holder", "holder.measured", measured)]
    )
    assert alone.rows[0]["accuracy"] == 0.9
    both = replay([began(0), JournalEntry(1, "holder", "holder.measured", measured)])
    assert both.rows == []  # the orchestrator tells it of everybody


def test_rounds_of_all_ranks_are_counted_once_each() -> None:
    worked = {"purpose": "train", "epoch": 0, "loss": 0.5}
    run = replay(
        [
            began(0, "accelerator", "ddp"),
            JournalEntry(1, "accelerator", "slice.worked", worked),
            JournalEntry(2, "accelerator", "slice.worked", worked),
            JournalEntry(3, "accelerator", "slice.worked", worked | {"epoch": 1}),
        ]
    )
    assert run.units == 2
    assert run.rows[0]["loss"] == 0.5


def test_lists_stay_short() -> None:
    run = LiveRun()
    for at in range(1000):
        run.take(told(at, "relay.lost", reason="x", rejoin_s=1))
    assert len(run.trouble) == 200
