"""Measures of several owners: sums are added first; few rows are never shown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from sealift.errors import JobError
from sealift.recipes import measures
from sealift.release.agreement import OutputRule
from sealift.release.agreement.tallies import tally_of
from sealift.train.loop.measures import joint_numbers, names_of
from sealift.train.loop.statistics import Measured, let_out
from sealift.train.sandboxed.recipe import _evaluate as flatten
from sealift.train.sandboxed.recipe import let_through
from tests.unit.train.test_output import RULE

FLOOR = 16


def rule_of(*names: str, least: int = FLOOR, digits: int = 3) -> OutputRule:
    return replace(RULE, metrics=names, metric_rows=least, digits=digits)


def told(sums: Mapping[str, Any]) -> dict[str, float]:
    """As a recipe's process tells the sums of its one batch."""
    return let_through(flatten, lambda _model, _batch: sums, None, {})


def shared(sums: Mapping[str, Any], rows: int, rule: OutputRule) -> dict[str, float]:
    return dict(let_out(Measured(rows, told(sums)), rule).metrics)


def over_owners(
    count: Any, columns: tuple[Tensor, ...], rule: OutputRule, owners: int
) -> dict[str, float]:
    """Of owners with a part of the rows each."""
    parts = zip(*(torch.tensor_split(each, owners) for each in columns), strict=True)
    return joint_numbers(
        [(len(own[0]), shared(count(*own), len(own[0]), rule)) for own in parts],
        rule.digits,
    )


def shuffled(*columns: Any) -> tuple[Tensor, ...]:
    order = np.random.default_rng(5).permutation(len(columns[0]))
    return tuple(torch.as_tensor(np.asarray(each)[order]) for each in columns)


def cancer() -> tuple[Tensor, Tensor]:
    """Scores and classes of a weak model, with one row in nine of class 1."""
    table = load_breast_cancer()
    kept = np.flatnonzero((table.target == 1) | (np.arange(len(table.target)) % 5 == 0))
    x, y = table.data[kept, :2], 1 - table.target[kept]
    x = StandardScaler().fit_transform(x)
    scores = LogisticRegression().fit(x, y).predict_proba(x)[:, 1]
    found: Any = shuffled(scores, y)
    return found


@pytest.mark.parametrize("owners", [1, 2])
def test_of_two_classes_all_ratios_are_those_of_the_pooled_rows(owners: int) -> None:
    scores, y = cancer()
    guessed = (scores > 0.3).to(torch.int64)
    found = over_owners(
        lambda told, truth: measures.count_classes(told, truth, classes=2),
        (guessed, y),
        rule_of("classes_2"),
        owners,
    )
    expected = {
        "accuracy": sk.accuracy_score(y, guessed),
        "balanced_accuracy": sk.balanced_accuracy_score(y, guessed),
        "recall": sk.recall_score(y, guessed),
        "precision": sk.precision_score(y, guessed),
        "f1": sk.f1_score(y, guessed),
        "majority": float((y == 0).double().mean()),
    }
    assert found == {name: round(float(each), 3) for name, each in expected.items()}
    assert found["majority"] > 0.85, "accuracy alone would mislead here"


def test_of_three_classes_each_has_its_own_numbers() -> None:
    table = load_iris()
    model = LogisticRegression().fit(table.data[:, :1], table.target)
    guessed, y = shuffled(model.predict(table.data[:, :1]), table.target)
    found = over_owners(
        lambda told, truth: measures.count_classes(
            told, truth, classes=3, label="kind"
        ),
        (guessed, y),
        rule_of("kind_classes_3", least=10),
        3,
    )
    assert found["kind_macro_f1"] == round(sk.f1_score(y, guessed, average="macro"), 3)
    for name, score in (("recall", sk.recall_score), ("f1", sk.f1_score)):
        each = score(y, guessed, average=None)
        assert [found[f"kind_{name}_{n}"] for n in range(3)] == list(np.round(each, 3))


@pytest.mark.parametrize(
    ("owners", "bins", "least"), [(1, 64, 1), (2, 64, 16), (2, 256, 16)]
)
def test_the_area_is_right_within_the_error_that_it_states(
    owners: int, bins: int, least: int
) -> None:
    scores, y = cancer()
    found = over_owners(
        lambda told, truth: measures.count_scores(told, truth, bins=bins),
        (scores, y),
        rule_of(f"scores_{bins}", least=least),
        owners,
    )
    off = abs(found["auc"] - sk.roc_auc_score(y, scores))
    assert off <= found["auc_error"] + 0.001
    assert found["auc_error"] < 0.08
    if least == 1:  # nothing is joined: the usual sum over intervals
        places = (scores * bins).long().clamp(max=bins - 1)
        gaps = [abs(float((scores - y)[places == each].sum())) for each in range(bins)]
        assert found["calibration_error"] == round(sum(gaps) / len(y), 3)


def test_small_tables_have_nearly_the_area_of_all_their_rows_together() -> None:
    """An owner's 60 rows make two or three intervals; to count every pair in them as one half says 0.743."""
    chance = torch.Generator().manual_seed(4)
    y = torch.randint(0, 2, (180,), generator=chance)
    scores = torch.sigmoid((2 * y - 1) * 0.65 + torch.randn(180, generator=chance))
    found = over_owners(
        measures.count_scores, (scores, y), rule_of("scores_64", least=16), 3
    )
    whole = sk.roc_auc_score(y, scores)
    assert abs(found["auc"] - whole) < 0.05  # else 0.084
    assert abs(found["auc"] - whole) <= found["auc_error"] < 0.3


def test_a_perfect_and_a_useless_score_have_their_areas() -> None:
    y = torch.tensor([0, 1] * 40)
    rule = rule_of("scores_8")
    found = over_owners(
        lambda told, truth: measures.count_scores(told, truth, bins=8),
        (y * 0.9, y),
        rule,
        2,
    )
    assert (found["auc"], found["auc_error"]) == (1.0, 0.0)
    same = over_owners(
        lambda told, truth: measures.count_scores(told, truth, bins=8),
        (torch.full((80,), 0.5), y),
        rule,
        2,
    )
    assert (same["auc"], same["auc_error"]) == (0.5, 0.5)


@pytest.mark.parametrize("owners", [1, 3])
def test_r_squared_is_that_of_the_pooled_rows(owners: int) -> None:
    table = load_diabetes()
    model = LinearRegression().fit(table.data, table.target)
    guessed, y = shuffled(model.predict(table.data), table.target)
    found = over_owners(
        measures.sum_errors, (guessed, y), rule_of("regression"), owners
    )
    assert found == {
        "r2": round(sk.r2_score(y, guessed), 3),
        "rmse": round(sk.root_mean_squared_error(y, guessed), 3),
        "mae": round(sk.mean_absolute_error(y, guessed), 3),
    }


def test_rounding_never_makes_an_r_squared_up() -> None:
    y = torch.linspace(0, 1e-3, 100)
    assert "r2" not in over_owners(
        measures.sum_errors, (y * 1.1, y), rule_of("regression"), 1
    )
    found = over_owners(
        lambda told, truth: measures.sum_errors(told, truth, scale=1e-3),
        (y * 1.1, y),
        rule_of("regression"),
        1,
    )
    assert found["r2"] == round(sk.r2_score(y, y * 1.1), 3)


def test_a_class_of_few_rows_is_not_shared() -> None:
    """And so no measure is made without that owner's rows."""
    truth = torch.tensor([1] * (FLOOR - 1) + [0] * 50)
    rule = rule_of("classes_2", "scores_8", "accuracy")
    sums = {
        **measures.count_classes(truth, truth, classes=2),
        **measures.count_scores(truth * 0.5, truth, bins=8),
        "accuracy": 65.0,
    }
    few = shared(sums, 65, rule)
    assert few == {"accuracy": 65.0, "classes_2[]": 1.0, "scores_8[]": 1.0}
    more = torch.tensor([1] * FLOOR + [0] * 50)
    sums = {
        **measures.count_classes(more, more, classes=2),
        **measures.count_scores(more * 0.5, more, bins=8),
        "accuracy": 66.0,
    }
    enough = shared(sums, 66, rule)
    assert enough["classes_2[0,1]"] == FLOOR
    assert set(joint_numbers([(65, few), (66, enough)], 3)) == {"accuracy"}


def test_every_interval_that_is_shared_has_enough_rows() -> None:
    scores, y = cancer()
    sums = measures.count_scores(scores, y, bins=64)
    found = shared(sums, len(y), rule_of("scores_64"))
    places = {key.partition(",")[2] for key in found}
    for place in places:
        assert found[f"scores_64[0,{place}"] + found[f"scores_64[1,{place}"] >= FLOOR
    assert len(places) > 8
    again = dict(let_out(Measured(len(y), found), rule_of("scores_64")).metrics)
    assert again == found, "what another rank shared is judged by the same rule"


def test_the_last_interval_has_enough_rows_as_well() -> None:
    scores = torch.tensor([0.1] * 20 + [0.3] * 16 + [0.95] * 3)
    truth = torch.tensor([0] * 20 + [1] * 19)
    found = shared(
        measures.count_scores(scores, truth, bins=10), 39, rule_of("scores_10")
    )
    assert {key.partition(",")[2] for key in found} == {"1,1]", "3,9]"}
    assert found["scores_10[1,3,9]"] == 19


def test_a_class_that_an_owner_lacks_is_no_obstacle() -> None:
    truth = torch.tensor([0] * 40)
    rule = rule_of("classes_2")
    none = shared(measures.count_classes(truth, truth, classes=2), 40, rule)
    assert joint_numbers([(40, none)], 3) == {
        "accuracy": 1.0,
        "balanced_accuracy": 1.0,
        "majority": 1.0,
    }


COUNTS = {"classes_2[0,0]": 30.0, "classes_2[1,0]": 30.0, "classes_2[2,0]": 30.0}
SCORES = {"scores_8[0,1]": 30.0, "scores_8[2,1]": 5.0}
SUMS = {"regression[0]": 30.0, "regression[1]": 3.0, "regression[2]": 90.0}


@pytest.mark.parametrize("change", [
    {"classes_2[0,0]": 29.0}, {"classes_2[0,0]": 31.0}, {"classes_2[2,0]": 29.0},
    {"classes_2[1,0]": 31.0}, {"classes_2[0,2]": 0.0}, {"classes_2[3,0]": 1.0},
    {"classes_2[0,0]": 29.5, "classes_2[0,1]": 0.5}, {"classes_2[0,1]": -1.0},
    {"classes_2[1,0]": math.nan}, {"classes_2[0]": 1.0},
    {"scores_8[0,1]": 31.0}, {"scores_8[0,8]": 1.0}, {"scores_8[2,1]": 9.0},
    {"scores_8[2,1]": 1.0}, {"scores_8[2,1]": math.inf}, {"scores_8[0,1,3]": 1.0},
    {"regression[0]": 31.0}, {"regression[5]": 1.0}, {"regression[4]": math.inf},
])  # fmt: skip
def test_counts_that_do_not_fit_the_rows_are_refused(change: dict[str, float]) -> None:
    rule = rule_of("classes_2", "scores_8", "regression")
    (name,) = {each.partition("[")[0] for each in change}
    fine = {n: v for n, v in (COUNTS | SCORES | SUMS).items() if n.startswith(name)}
    assert let_out(Measured(30, fine), rule).metrics
    with pytest.raises(JobError, match="is not valid") as caught:
        let_out(Measured(30, fine | change), rule)
    assert caught.value.code == "wrong-measure"


@pytest.mark.parametrize("name", ["classes_1", "scores_257", "a_classes_9999999999"])
def test_a_size_has_its_limits(name: str) -> None:
    assert tally_of(name) is None
    with pytest.raises(JobError, match="does not say what is in it") as caught:
        names_of({f"{name}[0,1]": 1.0})
    assert caught.value.code == "wrong-measure"
    assert names_of({name: 1.0}) == [name]
    with pytest.raises(JobError, match="does not say what is in it"):
        names_of({"classes_2": 1.0})


def test_an_ordinary_name_is_a_mean() -> None:
    assert tally_of("loss") is tally_of("classes") is tally_of("classes_02") is None


@pytest.mark.parametrize(
    ("count", "columns"),
    [
        (measures.count_scores, ([0.5, 1.5], [0, 1])),
        (measures.count_scores, ([0.5, math.nan], [0, 1])),
        (measures.count_scores, ([0.5, 0.5], [0, 2])),
        (measures.count_scores, ([[0.5], [0.5]], [0, 1])),
        (measures.sum_errors, ([0.5], [0.0, 1.0])),
    ],
)
def test_what_cannot_be_counted_is_an_error_of_the_recipe(
    count: Any, columns: tuple[list[float], list[float]]
) -> None:
    with pytest.raises(ValueError, match=r"n[oe]|predictions"):
        count(*map(torch.tensor, columns))
    with pytest.raises(ValueError, match="a class is not in"):
        measures.count_classes(torch.tensor([2]), torch.tensor([1]), classes=2)
