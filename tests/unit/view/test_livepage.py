"""The fragments of a live page: what they say, and that nothing said by others draws there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sealift.attest.evidence import Evidence
from sealift.attest.verifier import AppraisalCheck
from sealift.release.agreement import GroupRule
from sealift.train.job.settings import parse_job
from sealift.travel.peers import rank_names
from sealift.view.live import LiveRun, replay
from sealift.view.livepage import AcceleratorEvidence, RunFiles, fragments
from sealift.view.markup import LIVE_POLICY, entrance, whole
from sealift.view.report import see_run
from tests.unit.view.test_live import READY, began, offered, told, visit
from tests.worlds.consortium import make_consortium
from tests.worlds.private import budget_of, private_consortium

HOSTILE = "<script>alert(1)</script>\"'&\u202e"


def drawn(run: LiveRun, now_s: float = 20.0, **kept: Any) -> dict[str, str]:
    return dict(fragments(run, RunFiles(**kept), now_s))


def running() -> LiveRun:
    return replay(
        [began(0), told(10, "job.ready", **READY), offered(11, 0), visit(12, 0),
         visit(14, 1, "east", epoch=1), offered(15, 2)]
    )  # fmt: skip


def test_a_run_that_goes_on() -> None:
    found = drawn(running(), planned=5)
    assert "Training: 2 of 5 visits done, about 8 s left." in found["status"]
    assert '<progress value="2" max="5"' in found["status"]
    assert "DEVELOPMENT" in found["banner"]
    assert "<b>north</b>" in found["inside"]
    assert "5 s" in found["inside"]
    assert "loss, training rows" in found["numbers"]
    assert "2.0 kB" in found["costs"]


def test_outcome_rows_and_time_stand_first() -> None:
    def row(holder: str, epoch: int) -> Any:
        return told(
            12, "local.slice", purpose="train", epoch=epoch, holder=holder,
            rows=1500, **{"metric.loss": 0.5},
        )  # fmt: skip

    rows = [row(each, epoch) for epoch in (0, 1) for each in ("north", "joint")]
    run = replay([began(0), told(10, "rank.ready", **READY), *rows[:3]])
    status = drawn(run)["status"]
    assert "running" in status
    assert "1,500" in status
    assert "12 s" in status
    numbers = drawn(replay(rows, run))["numbers"]
    assert numbers.index("north") < numbers.index("joint")


def test_what_is_not_known_is_not_said() -> None:
    found = drawn(replay([began(0), told(10, "job.ready", **READY), visit(12, 0)]))
    assert "<progress" not in found["status"]
    assert "left" not in found["status"]
    nothing = drawn(LiveRun())
    assert "Waiting" in nothing["status"]
    assert "<section" not in nothing["banner"] + nothing["trouble"] + nothing["costs"]


def test_silence_and_ends_are_said() -> None:
    assert "85 s." in drawn(running(), now_s=100.0)["status"]
    ended = replay(
        [told(16, "role.ended", outcome="owner-left", line="north left")], running()
    )
    assert "Ended. orchestrator: north left. [owner-left]" in drawn(ended)["status"]
    well = replay([told(16, "role.ended", outcome="finished", line="")], running())
    assert "Finished at 00:00:16 UTC, as orchestrator" in drawn(well)["status"]


def test_development_alone_is_loud() -> None:
    real = replay([began(0), told(1, "job.ready", **READY | {"level": "tee"})])
    assert "<b>" not in drawn(real)["banner"]


def test_evidence_unfolds_to_every_comparison() -> None:
    checks = (
        AppraisalCheck(subject="PCR 4", expected="00", found="00"),
        AppraisalCheck(subject="debug", expected="off", found="on", code="debug-on"),
    )
    evidence = Evidence("development", "application/x", b"{}")
    found = drawn(
        running(), proofs=(AcceleratorEvidence("who", evidence, "tee", checks),)
    )["evidence"]
    assert "1 of 2 comparisons" in found
    assert "PCR 4" in found
    assert "✗ debug-on" in found


def test_the_receipt_holds_or_says_what_does_not() -> None:
    holds = drawn(running(), receipt=(("agreement", "digits number 1"),))["papers"]
    assert "✓" in holds
    assert "consistent in themselves" in holds
    broken = drawn(running(), refusal="uses: altered [run-receipt-altered]")["papers"]
    assert "✗" in broken
    assert "[run-receipt-altered]" in broken


def test_what_others_wrote_stays_text() -> None:
    bad = visit(2, 0, HOSTILE, resource=HOSTILE, outcome="failed", line=HOSTILE)
    run = replay(
        [
            told(0, "role.began", job=HOSTILE, plan=HOSTILE, agreement=HOSTILE),
            told(1, "job.ready", **READY),
            offered_to(HOSTILE),
            bad,
            visit(3, 1, HOSTILE, **{f"metric.{HOSTILE}": 1.0}),
            told(4, "release.refused", peer=HOSTILE, rule=HOSTILE),
            told(5, "role.arrived", name=HOSTILE, role="holder"),
        ]
    )
    page = whole(drawn(run, papers={HOSTILE: HOSTILE}, refusal=HOSTILE), 3)
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert page.count("<script") == 1  # ours, by its address


def offered_to(holder: str) -> Any:
    fields = dict(offered(0, 7).fields) | {"holder": holder, "resource": holder}
    return told(1, "visit.offered", **fields)


def test_the_policy_lets_nothing_in_from_elsewhere() -> None:
    assert LIVE_POLICY.startswith("default-src 'none'")
    assert "http" not in LIVE_POLICY
    directives = dict(each.strip().split(" ", 1) for each in LIVE_POLICY.split(";"))
    assert directives.pop("style-src-attr") == "'unsafe-inline'"
    assert set(directives.values()) == {"'self'", "'none'"}
    closed = {"default-src", "base-uri", "frame-ancestors"}
    assert {directives[each] for each in closed} == {"'none'"}
    page = whole(drawn(running()), 3) + entrance()
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "<script>" not in page


@pytest.mark.parametrize("value", [3e7, 3e38, 1e299, 1e308, -1e308, 5e-324, 0.0])
def test_a_number_of_any_size_makes_a_small_page(value: float) -> None:
    rows = [
        visit(12, 0, **{"metric.loss": 1.0}),
        visit(14, 1, epoch=1, **{"metric.loss": value}),
    ]
    run = replay([began(0), told(10, "job.ready", **READY), *rows])
    assert len(drawn(run)["numbers"]) < 20_000


def test_nothing_turns_what_follows_around() -> None:
    run = replay([told(0, "role.began", job="a\u202eb\x1bc", plan="travel")])
    assert not {"\u202e", "\x1b"} & set(drawn(run)["status"])


def test_an_owners_page_names_parties_and_begins_with_its_own_column() -> None:
    """Counts of rounds are the same for every owner, and no accelerator has a number."""
    agreement = make_consortium(group=GroupRule(3, "owner")).verified().agreement
    worked = [
        told(11 + epoch, "slice.worked", "accelerator", purpose="train", epoch=epoch,
             rows=40, holder="cleo", loss=0.5)
        for epoch in (0, 1)
    ]  # fmt: skip
    measured = {"metric.own.loss": 0.4, "metric.joint.loss": 0.5, "rows": 9}
    run = replay(
        [
            began(0, "accelerator", "ddp"),
            told(10, "release.granted", resource="cleo-train", peer="accelerator-2"),
            *worked,
            told(14, "rank.measured", "accelerator", purpose="heldout", epoch=1,
                 holder="cleo", **measured),
        ]
    )  # fmt: skip
    job = parse_job(
        {"name": "digits", "agreement": "a", "bundle": "b", "output": "o",
         "plan": "ddp", "slices": {"count": 3, "rows": "owner"}}
    )  # fmt: skip
    seen = see_run(job, agreement, run.rows, "development", metrics=("loss",))
    assert seen.visits == dict.fromkeys(agreement.data_owners, 3)
    page = drawn(run, seen=replace(seen, own="cleo"), people=rank_names(agreement))
    assert "released to rank 2 (cleo)" in page["keys"]
    assert "accelerator-2" not in "".join(page.values())
    assert "rows in epoch 2" in page["status"]
    assert page["officer"].index("cleo") < page["officer"].index("ada")
    # Its own page shows an owner more of its own numbers than others are told.
    assert "Numbers measured on my rows" in page["officer"]
    assert "Each can read my update" in page["officer"]
    masks: dict[str, Any] = {"plans": ("ddp",), "rows": ("owner",), "sync": ("round",)}
    rule = replace(agreement.training_rule, **masks, sums=("only",))
    only = replace(agreement, training=rule)
    masked = drawn(run, seen=replace(seen, agreement=only, own="cleo"))["officer"]
    assert "only all others together learn mine" in masked
    assert "Numbers measured on all owners" in masked
    assert "Each can read my update" not in masked


def test_spent_and_left_of_a_privacy_budget_are_drawn_and_what_one_row_risks() -> None:
    """The owner's broker tells it after each round; its page shows the latest."""
    agreement = private_consortium(budget_of(4)).agreement
    spent = [
        told(11 + n, "privacy.spent", "accelerator", owner="ada", resource="ada-train",
             job="digits", epsilon=epsilon, left=left, budget=str(budget_of(4)))
        for n, (epsilon, left) in enumerate([("0.5", "2.5"), ("0.9", "2.1")])
    ]  # fmt: skip
    worked = [
        told(20 + epoch, "slice.worked", "accelerator", purpose="train", epoch=epoch,
             rows=40, holder="ada")
        for epoch in (0, 1)
    ]  # fmt: skip
    run = replay([began(0, "accelerator", "ddp"), *spent, *worked])
    job = parse_job(
        {"name": "digits", "agreement": "a", "bundle": "b", "output": "o",
         "plan": "ddp", "slices": {"count": 3, "rows": "owner"}}
    )  # fmt: skip
    seen = see_run(job, agreement, run.rows, "development", metrics=())
    page = drawn(run, seen=seen)["privacy"]
    for part in (
        "<b>ada-train</b>",
        ">0.9<",
        ">2.1<",
        '<progress value="0.9" max="3"',
        "ada: 2 rounds of 5 steps over 40 rows",
        "sampler Poisson",
        "had to be honest",
        "before [##########..........]",
    ):
        assert part in page
    assert ">0.5<" not in page
    assert "Numbers measured on my rows" not in drawn(run, seen=seen)["officer"]
    assert "<section" not in drawn(running())["privacy"]  # steps are open
    odd = told(30, "privacy.spent", resource=HOSTILE, epsilon="x", left="", budget="")
    assert HOSTILE not in drawn(replay([odd], run))["privacy"]
