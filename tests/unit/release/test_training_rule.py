"""The training settings that parties sign: what a rule may be, and what it lets a job set."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest

from sealift.codec import decode, encode, from_plain
from sealift.errors import MalformedError, PolicyError
from sealift.ids import Digest
from sealift.release.agreement import (
    Agreement,
    Between,
    Board,
    CodeBundle,
    GroupRule,
    RunTerms,
    TrainingRule,
    bundle_digest,
)
from sealift.release.agreement.successors import own_part, verify_line
from sealift.release.agreement.terms import GRAPH_ENTRY, GRAPH_FILES
from sealift.release.agreement.training import (
    LIMITS,
    ROW_UNITS,
    SETTINGS,
    ParameterRule,
    PrivateSteps,
)
from sealift.release.agreement.written import read_training, widen
from sealift.travel.settings import TrainingSettings
from tests.worlds.consortium import RUN, TRAINING, make_consortium

# One value that each setting has, and one that the rule of that value does not allow.
OTHERS: dict[str, tuple[Any, Any]] = {
    "epochs": (1, 2),
    "batch_rows": (32, 1),
    "drop_last": (False, True),
    "prepare": (False, True),
    "evaluate_every": (0, 1),
    "digest_every": (0, 1),
    "seed": (0, 1),
    "threads": (1, 2),
    "device": ("auto", "cpu"),
    "slices": (1, 2),
    "rows": ("owner", "share"),
    "sync": ("round", "step"),
    "max_norm": (2.0, 2.5),
    "sums": ("open", "only"),
    "sum_bound": (1.0, 2.0),
    "sum_places": (26, 25),
    "sum_bits": (32, 64),
    "clip_norm": (0, 1.0),
    "measure": ("", "loss"),
    "stop_after": (0, 1),
    "keep": ("last", "best"),
    "order": ("round-robin", "by-size"),
    "buffer_bytes": (0, 4096),
    "on_missing": ("skip", "wait"),
    "attempts": (5, 6),
    "redo": (0, 1),
    "checkpoint_every": (8, 0),
}
TIGHT = TrainingRule(
    plans=("ddp",), runs=1, epochs=Between(1, 1), batch_rows=Between(32, 32),
    max_norm=Between(2.0, 2.0),
)  # fmt: skip
AGREED = RunTerms(job="job", plan="ddp", max_norm=2.0)


def refused(rule: TrainingRule, run: RunTerms) -> str:
    with pytest.raises(PolicyError) as caught:
        rule.require(run)
    assert caught.value.code == "settings-differ"
    return caught.value.what


def test_every_setting_has_its_case() -> None:
    assert set(OTHERS) == set(SETTINGS)
    assert {each.name for each in fields(RunTerms)} == {
        *SETTINGS, "continues", "job", "keep_state", "parameters", "plan", "privacy",
    }  # fmt: skip
    assert {each.name for each in fields(TrainingRule)} == {
        *SETTINGS, "keep_state", "parameters", "plans", "privacy", "privacy_trusts_code", "runs",
    }  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_each_setting_is_compared_and_named(name: str) -> None:
    agreed, other = OTHERS[name]
    TIGHT.require(replace(AGREED, **{name: agreed}))  # control
    assert SETTINGS[name] in refused(TIGHT, replace(AGREED, **{name: other}))


@pytest.mark.parametrize("change", [{"keep_state": True}, {"continues": "wards"}])
def test_a_state_is_kept_and_gone_on_from_where_that_is_agreed(
    change: dict[str, bool | str],
) -> None:
    other = replace(AGREED, **change)  # type: ignore[arg-type]
    replace(TIGHT, keep_state=True).require(other)  # control
    assert f"training.{next(iter(change))}" in refused(TIGHT, other)


PRIVATE = PrivateSteps(1.0, 1.1, 64)


def test_private_steps_are_compared_as_a_whole() -> None:
    rule = replace(TIGHT, privacy=PRIVATE)
    rule.require(replace(AGREED, privacy=PRIVATE))  # control
    assert decode(TrainingRule, encode(rule)) == rule
    others = (
        None,
        replace(PRIVATE, noise=1.0),
        replace(PRIVATE, batch=65),
        replace(PRIVATE, honest_ranks=2),
    )
    for other in others:
        assert "privacy = " in refused(rule, replace(AGREED, privacy=other))
    assert "privacy = clip 1" in refused(TIGHT, replace(AGREED, privacy=PRIVATE))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, bad) for name in ("clip", "noise") for bad in (0, -1, 1e-7, 1e-160, math.inf, math.nan)),
        *(("batch", bad) for bad in (0, -1, (1 << 20) + 1)),
        *(("honest_ranks", bad) for bad in (-1, 1, 16)),
    ],
)  # fmt: skip
def test_private_steps_that_make_no_sense_are_refused(name: str, value: float) -> None:
    with pytest.raises(MalformedError) as caught:
        replace(PRIVATE, **{name: value})
    assert (caught.value.code, caught.value.field) == ("bad-privacy", name)


SHARED = replace(
    TIGHT, privacy=replace(PRIVATE, honest_ranks=2), sync=("step",), sums=("only",),
    max_norm=Between(0, 0), slices=Between(3, 3),
)  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"sync": ("round",)},
        {"sums": ("open",)},
        {"sums": ("open", "only")},
        {"slices": Between(2, 3)},  # each of two knows its own part
        {"slices": Between(3, 3), "privacy": replace(PRIVATE, honest_ranks=3)},
        {"privacy": PRIVATE},
    ],
)
def test_noise_is_shared_only_where_enough_ranks_add_up_masked_steps(
    changes: dict[str, Any],
) -> None:
    SHARED.require_shown_rows(16)  # a sum over few rows has noise
    assert decode(TrainingRule, encode(SHARED)) == SHARED
    with pytest.raises(MalformedError) as caught:
        replace(SHARED, **changes)
    assert caught.value.code == "bad-agreement"


def test_the_parts_of_the_honest_ranks_come_to_all_of_the_noise() -> None:
    for noise, honest in ((1.1, 2), (1e-6, 15), (1e6, 3)):
        steps = replace(PRIVATE, noise=noise, honest_ranks=honest)
        whole = (noise * ROW_UNITS) ** 2
        assert whole <= honest * steps.part <= whole * (1 + 1e-9) + honest
        assert steps.part >= 16  # so many parts are as one of their whole variance


@pytest.mark.parametrize(
    "changes",
    [
        {"plans": ("local",)},
        {"plans": ("ddp", "outsource")},
        {"sync": ("step",)},
        {"rows": ("owner", "share")},
        {"prepare": (False, True)},
    ],
)
def test_what_gets_no_noise_is_not_agreed_with_private_steps(
    changes: dict[str, Any],
) -> None:
    with pytest.raises(MalformedError) as caught:
        replace(TIGHT, privacy=PRIVATE, **changes)
    assert caught.value.code == "bad-agreement"
    assert "privacy" in caught.value.why
    assert caught.value.field == next(iter(changes))


def test_steps_of_a_round_and_the_chance_of_a_row_follow_from_its_owners_rows() -> None:
    assert (PRIVATE.steps(640), PRIVATE.rate(640)) == (10, 0.1)
    assert PRIVATE.steps(641) == 11
    assert (PRIVATE.steps(10), PRIVATE.rate(10)) == (1, 1.0)


RANGED = replace(
    TIGHT,
    parameters={
        "rate": ParameterRule(between=Between(0.01, 0.1)),
        "kind": ParameterRule(values=("adam", "sgd")),
    },
)
WITHIN = {"rate": 0.05, "kind": "sgd"}


def test_parameters_within_their_ranges_are_allowed() -> None:
    RANGED.require(replace(AGREED, parameters=WITHIN))
    assert decode(TrainingRule, encode(RANGED)) == RANGED


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"rate": 0.2}, "parameters.rate = 0.2"),
        ({"rate": True}, "parameters.rate = True"),
        ({"kind": "lion"}, "parameters.kind = lion"),
        ({"more": 1}, "parameters.more = 1"),
        ({"kind": None}, "parameters.kind = nothing"),
    ],
)
def test_a_parameter_that_is_not_agreed_is_named(
    changed: dict[str, Any], named: str
) -> None:
    found = {n: each for n, each in (WITHIN | changed).items() if each is not None}
    assert named in refused(RANGED, replace(AGREED, parameters=found))
    with pytest.raises(PolicyError, match=r"allowed: 0\.01 to 0\.1"):
        RANGED.require(replace(AGREED, parameters=WITHIN | {"rate": 7}))


@pytest.mark.parametrize("name", ["class", "_own", "a-b", "x" * 65, ""])
def test_a_parameter_is_named_like_an_argument(name: str) -> None:
    with pytest.raises(MalformedError) as caught:
        TrainingSettings(parameters={name: 1})
    assert caught.value.code == "bad-parameter"


def test_ranges_of_parameters_are_written_as_others_are() -> None:
    plain = read_training(
        {
            "plans": ["ddp"],
            "runs": 2,
            "epochs": 1,
            "batch_rows": 32,
            "parameters": {"rate": {"min": 0.1, "max": 1}, "kind": ["a", "b"], "n": 3},
        }
    )
    rule = from_plain(TrainingRule, plain).parameters
    assert rule["rate"] == ParameterRule(between=Between(0.1, 1))
    assert rule["kind"] == ParameterRule(values=("a", "b"))
    assert rule["n"] == ParameterRule(between=Between(3, 3))


def test_the_plan_is_compared() -> None:
    TIGHT.require(AGREED)
    assert "plan" in refused(TIGHT, replace(AGREED, plan="local"))


@pytest.mark.parametrize(
    ("allowed", "norm", "fits"),
    [
        (Between(0, 0), 0.0, True),
        (Between(0, 0), 3.0, True),  # nobody asked for a bound
        (Between(0, 2), 2.0, True),
        (Between(1, 2), 0.0, False),  # 0 is no bound at all
        (Between(1, 2), 2.5, False),
        (Between(1, 2), 0.5, False),
    ],
)
def test_a_bound_that_was_asked_for_is_there(
    allowed: Between, norm: float, fits: bool
) -> None:
    rule, run = replace(TIGHT, max_norm=allowed), replace(AGREED, max_norm=norm)
    if fits:
        rule.require(run)
    else:
        assert "slices.max_norm" in refused(rule, run)


def test_no_bound_is_not_within_a_range_that_begins_at_0() -> None:
    rule = replace(TIGHT, max_norm=Between(0, 2))
    assert "slices.max_norm" in refused(rule, replace(AGREED, max_norm=0.0))


@pytest.mark.parametrize("name", [*OTHERS, "job", "plan"])
def test_no_two_runs_have_one_digest(name: str) -> None:
    changed = {"job": "other", "plan": "local"}.get(name) or OTHERS[name][1]
    agreement = Digest.of(b"agreement")
    first = AGREED.digest(agreement)
    assert first == replace(AGREED).digest(agreement)
    assert replace(AGREED, **{name: changed}).digest(agreement) != first
    assert AGREED.digest(Digest.of(b"other")) != first


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no plan": ({"plans": ()}, "plans"),
    "a plan twice": ({"plans": ("ddp", "ddp")}, "plans"),
    "runs below 0": ({"runs": -1}, "runs"),
    "no batch": ({"batch_rows": Between(0, 4)}, "batch_rows.min"),
    "endless epochs": ({"epochs": Between(1, 1 << 40)}, "epochs.max"),
    "half a row": ({"batch_rows": Between(1.5, 4)}, "batch_rows"),
    "17 slices": ({"slices": Between(1, 17)}, "slices.max"),
    "a negative norm": ({"max_norm": Between(-1, 4)}, "max_norm.min"),
    "nothing for drop_last": ({"drop_last": ()}, "drop_last"),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_a_rule_that_no_job_could_have_is_refused(
    case: tuple[dict[str, Any], str],
) -> None:
    changes, field = case
    with pytest.raises(MalformedError) as caught:
        replace(TIGHT, **changes)
    assert (caught.value.code, caught.value.field) == ("bad-agreement", field)


@pytest.mark.parametrize(
    ("low", "high"), [(2, 1), (0, math.inf), (-math.inf, 0), (math.nan, 1)]
)
def test_a_range_has_two_ends_in_order(low: float, high: float) -> None:
    with pytest.raises(MalformedError):
        Between(low, high)


def test_people_write_a_value_a_range_or_a_list() -> None:
    plain = {
        "plans": "travel",
        "runs": 3,
        "epochs": {"max": 200},
        "batch_rows": {"min": 32, "max": 256},
        "prepare": [True, False],
        "seed": 7,
    }
    rule: TrainingRule = from_plain(TrainingRule, read_training(plain))
    assert rule == TrainingRule(
        plans=("travel",), runs=3, epochs=Between(LIMITS["epochs"][0], 200),
        batch_rows=Between(32, 256), prepare=(True, False), seed=Between(7, 7),
    )  # fmt: skip
    assert decode(TrainingRule, encode(rule)) == rule


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"epochs": None}, "epochs"),
        ({"epochs": [1, 2]}, "training.epochs"),
        ({"epochs": {"most": 3}}, "epochs"),
        ({"epochs": "many"}, "epochs.min"),
        ({"sync": "day"}, "sync[0]"),
        ({"epoch": 3}, "epoch"),
        ({"drop_last": 1}, "drop_last[0]"),
    ],
)
def test_what_people_write_wrong_is_named(change: dict[str, Any], field: str) -> None:
    plain: dict[str, Any] = {
        "plans": ["local"],
        "runs": 1,
        "epochs": 1,
        "batch_rows": 8,
    }
    from_plain(TrainingRule, read_training(plain))  # control
    written = {**plain, **change}
    if change == {"epochs": None}:
        del written["epochs"]
    with pytest.raises(MalformedError) as caught:
        from_plain(TrainingRule, read_training(written))
    assert caught.value.field.startswith(field)


def at_home(**training: Any) -> Agreement:
    """Ranks of several owners, whose cells have 16 rows and tables 40."""
    consortium = make_consortium(("ada", "bern"), cell_rows=16)
    agreement = consortium.agreement
    output = replace(agreement.output, metric_rows=16)  # type: ignore[type-var]
    rule = replace(TRAINING, plans=("ddp",), **training)
    group = GroupRule(2, "owner")
    return replace(agreement, output=output, group=group, training=rule)


STEPS = {"sync": ("round", "step"), "batch_rows": Between(16, 64), "drop_last": (True,)}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"batch_rows": Between(15, 64)}, "training.batch_rows.min"),
        ({"drop_last": (False, True)}, "training.drop_last"),
        ({"drop_last": (False,)}, "training.drop_last"),
    ],
)
def test_no_rank_shows_others_a_sum_over_fewer_rows(
    change: dict[str, Any], field: str
) -> None:
    at_home(**STEPS)  # control
    with pytest.raises(MalformedError) as caught:
        at_home(**{**STEPS, **change})
    assert (caught.value.code, caught.value.field) == ("bad-agreement", field)
    at_home(**{**STEPS, **change, "sync": ("round",)})  # rounds are over whole tables


@pytest.mark.parametrize("high", [1, 4, 15, 16, 40])
@pytest.mark.parametrize("low", [1, 4, 16])
def test_a_round_has_so_many_rows_whatever_is_left_out(low: int, high: int) -> None:
    metric_rows, batches = 16, range(low, max(low, high) + 1)
    rule = replace(
        TRAINING, batch_rows=Between(low, max(low, high)), drop_last=(False, True)
    )
    fewest = rule.fewest_table_rows(metric_rows)

    def trained(rows: int) -> int:
        settings = (TrainingSettings(batch_rows=n, drop_last=True) for n in batches)
        return min(each.trained_rows(rows) for each in settings)

    assert all(trained(rows) >= metric_rows for rows in range(fewest, 200))
    assert replace(rule, drop_last=(False,)).fewest_table_rows(metric_rows) == 16


@pytest.mark.parametrize(
    ("change", "rows"), [({}, 15), ({"drop_last": (False, True)}, 29)]
)
def test_no_rank_shows_others_a_round_over_fewer_rows(
    change: dict[str, Any], rows: int
) -> None:
    agreed = at_home(batch_rows=Between(1, 64), **change)
    few = replace(
        agreed.resources[0], rows=rows, total_bytes=rows * agreed.resources[0].row_bytes
    )
    with pytest.raises(MalformedError) as caught:
        replace(agreed, resources=(few, *agreed.resources[1:]))
    assert caught.value.field == "resources[0].rows"


@pytest.mark.parametrize(("plan", "part"), [("ddp", "group"), ("outsource", "servers")])
def test_plans_have_their_parts(plan: Any, part: str) -> None:
    agreement = make_consortium().agreement
    with pytest.raises(MalformedError) as caught:
        replace(agreement, training=replace(TRAINING, plans=(plan,)))
    assert caught.value.field == "training.plans"
    assert part in str(caught.value)


def test_what_a_graph_cannot_do_is_signed_by_nobody() -> None:
    agreement = make_consortium().agreement
    files = dict.fromkeys(GRAPH_FILES, Digest.of(b""))
    graph = replace(
        agreement, code=CodeBundle(bundle_digest(files), GRAPH_ENTRY, files)
    )
    with pytest.raises(MalformedError, match="the recipe is a graph") as caught:
        replace(graph, training=replace(TRAINING, plans=("travel", "outsource")))
    assert caught.value.field == "training.plans"


def test_nobody_widens_the_rule_without_an_owner() -> None:
    consortium = make_consortium()
    board = Board(members=tuple(consortium.identities), threshold=2)
    before = consortium.changed(board=board)
    wider = replace(TRAINING, epochs=Between(0, 2000))
    after = before.successor(training=wider)
    verify_line(after.signed().line)  # control: everybody signed
    assert own_part(after.agreement, "ada") != own_part(before.agreement, "ada")
    with pytest.raises(PolicyError) as caught:
        verify_line(after.signed("bern", "cleo").line)
    assert caught.value.code == "owner-part-changed"
    same = before.successor(name=before.agreement.name)
    verify_line(same.signed("bern", "cleo").line)  # control: nothing of ada's changed


def test_the_worlds_run_is_allowed_by_the_worlds_rule() -> None:
    TRAINING.require(RUN)


JOB = replace(
    TIGHT,
    parameters={
        "rate": ParameterRule(between=Between(0.1, 0.1)),
        "kind": ParameterRule(values=("relu",)),
    },
)


def test_ranges_beside_a_job_are_what_is_signed() -> None:
    written = {
        "runs": 4,
        "epochs": {"max": 20},
        "parameters": {"rate": {"min": 0.01, "max": 1}, "kind": ["gelu", "relu"]},
    }
    wide = widen(JOB, written)
    assert (wide.runs, wide.epochs) == (4, Between(0, 20))
    wide.require(replace(AGREED, parameters={"rate": 0.5, "kind": "gelu"}))
    with pytest.raises(PolicyError, match=r"parameters\.rate"):
        wide.require(replace(AGREED, parameters={"rate": 2.0, "kind": "gelu"}))
    assert wide.batch_rows == JOB.batch_rows  # what is not named keeps its value


@pytest.mark.parametrize(
    ("written", "field"),
    [
        ({"epochs": {"min": 2, "max": 9}}, "agreed.epochs"),
        ({"keep": ["best"]}, "agreed.keep"),
        ({"parameters": {"rate": {"min": 1, "max": 2}}}, "agreed.parameters"),
        ({"parameters": {"kind": ["gelu"]}}, "agreed.parameters"),
        ({"parameters": {"kind": {"min": 0, "max": 1}}}, "agreed.parameters"),
        ({"parameters": {"more": 1}}, "agreed.parameters"),
        ({"plans": ["local"]}, "agreed.plans"),
    ],
)
def test_ranges_that_leave_out_the_job_are_refused(
    written: dict[str, Any], field: str
) -> None:
    with pytest.raises(MalformedError) as caught:
        widen(JOB, written)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"plans": ("ddp", "local")}, "needs plans"),
        ({"rows": ("owner", "share")}, "needs plans"),
        ({"sync": ("round", "step")}, "needs plans"),
        ({"sync": ("step",), "drop_last": (True,)}, "needs plans"),
        ({"max_norm": Between(1, 2)}, "could check the norm"),
        ({"sum_bits": Between(32, 48)}, "32 or 64"),
        ({"sum_bound": Between(1, 100)}, "do not fit"),
        ({"sum_places": Between(1, 30)}, "do not fit"),
        ({"slices": Between(1, 16), "sum_places": Between(27, 27)}, "do not fit"),
    ],
)
def test_what_goes_with_sums_alone(changes: dict[str, Any], words: str) -> None:
    rule = replace(TIGHT, max_norm=Between(0, 0), slices=Between(3, 3))
    if not words:
        replace(rule, sums=("only",), **changes)
        return
    with pytest.raises(MalformedError, match=words):
        replace(rule, sums=("open", "only"), **changes)
