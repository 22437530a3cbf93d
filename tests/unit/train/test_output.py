"""What leaves: named numbers, and a model for its owner alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load as load_tensors

from sealift.codec import decode, encode
from sealift.crypto.hash import sha256
from sealift.crypto.hpke import HpkePrivateKey
from sealift.crypto.sign import SigningKey
from sealift.errors import AuthenticationError, JobError, PolicyError
from sealift.ids import Digest
from sealift.release.agreement import OutputRule
from sealift.train.loop.held import read_of
from sealift.train.loop.statistics import Measured, let_out
from sealift.train.output.sealing import (
    KEY_NAME,
    MODEL_NAME,
    PART_BYTES,
    OutputInfo,
    OutputKey,
    open_model,
    seal_model,
    split_output,
    wrap_output_key,
)
from sealift.train.plans import Coverage
from sealift.train.sandboxed.torchstate import tensor_bytes

RULE = OutputRule(
    metrics=("loss", "accuracy"),
    digits=2,
    values_per_visit=16,
    metric_rows=4,
    audience="everyone",
    min_visits=2,
    max_visits=9,
    min_holders=2,
    min_rows=10,
    baseline_alone=False,
    recipe_text=False,
)
NUMBERS = {"loss": 0.12345, "accuracy": math.nan}
ALONE = {"loss": 0.12345, "alone.north.loss": 0.5}


def out(metrics: Mapping[str, float], rule: OutputRule, rows: int = 4) -> object:
    return let_out(Measured(rows, metrics), rule).metrics


def test_only_named_finite_rounded_numbers_leave() -> None:
    assert out(NUMBERS, RULE) == {"loss": 0.12}
    with_baselines = replace(RULE, baseline_alone=True)
    assert out(ALONE, with_baselines) == {"loss": 0.12, "alone.north.loss": 0.5}


@pytest.mark.parametrize(
    ("metrics", "rule"),
    [
        ({"loss": 0.5, "rows": 7.0}, RULE),
        (ALONE, RULE),
        ({"alone.north.rows": 7.0}, replace(RULE, baseline_alone=True)),
        ({"alone.north.a row.loss": 7.0}, replace(RULE, baseline_alone=True)),
        ({"accuracy[0,1]": 3.0}, RULE),
        ({"loss": 0.5, "loss[0]": 3.0}, RULE),
        ({"classes_2": 3.0}, replace(RULE, metrics=("classes_2",))),
    ],
)
@pytest.mark.parametrize("rows", [1, 100])
def test_a_number_that_the_agreement_does_not_list_is_refused(
    metrics: Mapping[str, float], rule: OutputRule, rows: int
) -> None:
    with pytest.raises(JobError, match="the agreement lists") as caught:
        out(metrics, rule, rows)
    assert caught.value.code == "measure-not-agreed"
    assert "north" not in str(caught.value), "nothing of a recipe's own choice is said"


def test_a_loss_that_nobody_agreed_on_stays_inside() -> None:
    assert out({"loss": 0.5}, replace(RULE, metrics=("accuracy",))) == {}


def test_a_number_over_few_rows_stays_inside() -> None:
    assert out(NUMBERS, RULE, RULE.metric_rows - 1) == {}
    assert out(NUMBERS, RULE, RULE.metric_rows) == {"loss": 0.12}


CURVE = Measured(12, {"loss": 0.25}, (0.123, 0.377), (4, 8))


def test_a_curve_leaves_rounded_and_its_mean_tells_no_more() -> None:
    found = let_out(CURVE, RULE)
    assert found.curve == (0.12, 0.38)
    assert found.metrics == {"loss": round((4 * 0.12 + 8 * 0.38) / 12, 2)}


def test_a_curve_too_large_to_add_up_stays() -> None:
    found = let_out(replace(CURVE, curve=(1e308, 1e308)), RULE)
    assert (found.metrics, found.curve) == ({}, ())


@pytest.mark.parametrize(
    "rule", [replace(RULE, values_per_visit=1), replace(RULE, metrics=("accuracy",))]
)
def test_a_curve_that_the_rule_does_not_name_stays(rule: OutputRule) -> None:
    assert let_out(CURVE, rule).curve == ()


def test_numbers_of_several_owners_are_nobodys_own() -> None:
    shared = replace(CURVE, shared=True)
    assert let_out(shared, RULE).metrics
    alone = let_out(shared, replace(RULE, audience="owner"))
    assert (alone.metrics, alone.curve) == ({}, ())


@pytest.mark.parametrize(
    ("rule", "visits", "rows", "why"),
    [
        (RULE, {"north": 2, "east": 1}, 50, "1 visits to east; .* at least 2"),
        (RULE, {"north": 2, "east": 0}, 50, "0 visits to east"),
        (replace(RULE, min_holders=3), {"north": 2, "east": 2}, 50, "2 holders"),
        (replace(RULE, min_rows=11), {"north": 2, "east": 2}, 5, "10 distinct rows; "),
        (RULE, {"north": 2, "east": 2}, 4, "8 distinct rows; .* at least 10"),
        (
            replace(RULE, min_owner_rows=6),
            {"north": 2, "east": 2},
            5,
            "5 distinct rows of north; .* at least 6",
        ),
    ],
)
def test_a_model_that_may_not_leave(
    rule: OutputRule, visits: Mapping[str, int], rows: int, why: str
) -> None:
    with pytest.raises(PolicyError, match=why) as caught:
        Coverage(visits, dict.fromkeys(visits, rows)).require(rule)
    assert caught.value.code == "output-withheld"


def test_a_model_that_may_leave() -> None:
    Coverage({"north": 2, "east": 2}, {"north": 9, "east": 1}).require(RULE)


class Handed:
    """A model as the accelerator hands it out, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.owner = HpkePrivateKey.generate()
        self.instance = SigningKey.generate()
        tied = torch.arange(200_000.0)
        self.state = {"a": tied, "b": tied, "c": torch.tensor(3)}
        plain = {name: tensor_bytes(each) for name, each in self.state.items()}
        made = seal_model(plain)
        sealed, key = read_of(made.sealed, 0, len(made.sealed)), made.key
        info = OutputInfo(
            kind="model",
            job="job",
            agreement=Digest.of(b"agreement"),
            owner="lab",
            weights=Digest.of(b"weights"),
            sealed=Digest(sha256(sealed)),
            instance=self.instance.public_key,
        )
        self.key = wrap_output_key(key, info, self.owner.public, self.instance)
        (folder / KEY_NAME).write_bytes(encode(self.key))
        (folder / MODEL_NAME).write_bytes(sealed)

    def open(self) -> bytes:
        return open_model(self.folder, self.owner, self.instance.public_key)


@pytest.fixture
def handed(tmp_path: Path) -> Handed:
    return Handed(tmp_path)


def test_the_owner_opens_the_model(handed: Handed) -> None:
    """Tied weights too, and more than one record of it."""
    found = load_tensors(handed.open())
    assert found.keys() == handed.state.keys()
    assert all(torch.equal(found[name], each) for name, each in handed.state.items())


def test_nobody_else_opens_it(handed: Handed) -> None:
    handed.owner = HpkePrivateKey.generate()
    with pytest.raises(AuthenticationError):
        handed.open()


def test_another_instance_did_not_make_it(handed: Handed) -> None:
    handed.instance = SigningKey.generate()
    with pytest.raises(AuthenticationError):
        handed.open()


def test_a_changed_model_is_noticed(handed: Handed) -> None:
    path = handed.folder / MODEL_NAME
    sealed = bytearray(path.read_bytes())
    sealed[500] ^= 1
    path.write_bytes(sealed)
    with pytest.raises(PolicyError) as caught:
        handed.open()
    assert caught.value.code == "other-output"


def test_another_info_does_not_open_it(handed: Handed) -> None:
    """The operator signs nothing here, so it cannot rename a model's job."""
    path = handed.folder / KEY_NAME
    key = decode(OutputKey, path.read_bytes())
    path.write_bytes(encode(replace(key, info=replace(key.info, job="other"))))
    with pytest.raises(AuthenticationError):
        handed.open()


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, PART_BYTES + 1])
def test_parts_put_together_are_the_whole(size: int) -> None:
    content = bytes(size)
    parts = list(split_output(content))
    assert b"".join(part for part, _ in parts) == content
    assert [last for _, last in parts] == [False] * (len(parts) - 1) + [True]
