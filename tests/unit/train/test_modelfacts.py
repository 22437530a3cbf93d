"""What a model's file says of itself, and that nobody changes it unseen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from sealift.codec import encode, to_plain
from sealift.errors import IntegrityError, MalformedError
from sealift.ids import Digest
from sealift.train.loop.states import chain_tensors, parse_tensors
from sealift.train.loop.statistics import Statistic
from sealift.train.output.modelfacts import (
    KEY,
    ModelFacts,
    demand_made,
    describe_model,
    facts_of,
    read_facts,
    write_facts,
)
from tests.sim.runreceipts import small_run
from tests.worlds.consortium import make_consortium

WEIGHTS = {"layer.weight": np.eye(3, 2, dtype=np.float32), "mean": np.ones(2)}
METRICS = {"accuracy": 0.75, "alone.ada.accuracy": 0.5}


def plain_model(place: Path, weights: Mapping[str, Any] = WEIGHTS) -> bytes:
    """As an accelerator seals it."""
    save_file(dict(weights), place)
    return b"".join(chain_tensors(parse_tensors(place.read_bytes())).pieces())


def some_facts(**changes: Any) -> ModelFacts:
    run: dict[str, Any] = {
        "job": "digits",
        "level": "development",
        "plan": "local",
        "steps": 3,
        "rows": 80,
        "statistics": {"count": Statistic((), (40.0,))},
        "weights": Digest(bytes(32)),
    }
    agreement = make_consortium().agreement
    digest = Digest(bytes(32))
    return describe_model(agreement, digest, {}, metrics=METRICS, **(run | changes))


def test_a_file_has_its_facts_and_its_weights(tmp_path: Path) -> None:
    place, facts = tmp_path / "model.safetensors", some_facts()
    content = write_facts(plain_model(place), facts)
    place.write_bytes(b"".join(content.pieces()))
    assert read_facts(place) == facts
    assert facts.measures == {"accuracy": 0.75}, "of no single owner"
    assert facts.train == {
        each.owner: each.rows
        for each in make_consortium().agreement.resources
        if each.part == "train"
    }
    loaded = load_file(place)
    assert loaded.keys() == WEIGHTS.keys()
    assert all(np.array_equal(loaded[name], WEIGHTS[name]) for name in WEIGHTS)
    with safe_open(place, "np") as opened:
        assert opened.metadata() == {KEY: encode(facts).decode()}


def test_a_file_without_facts_is_named(tmp_path: Path) -> None:
    place = tmp_path / "model.safetensors"
    place.write_bytes(plain_model(place))
    with pytest.raises(MalformedError, match="does not say how it was trained") as no:
        read_facts(place)
    assert no.value.code == "no-model-facts"
    for broken in (b"", b"\xff" * 9, b"\x02" + bytes(7) + b"{]"):
        place.write_bytes(broken)
        with pytest.raises(MalformedError):
            read_facts(place)


def test_another_kind_of_file_is_named(tmp_path: Path) -> None:
    """As when the table stands before the model."""
    table = tmp_path / "train.csv"
    table.write_text("age,dose\n37,0.5\n")
    with pytest.raises(MalformedError) as caught:
        read_facts(table)
    assert caught.value.code == "bad-tensors"
    assert str(table) in caught.value.what


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("level", "no-level-at-all"),
        ("level", "development (and none other)"),
        ("plan", "a plan\x1b[2J"),
        ("job", "a job of\nmany lines"),
        ("agreement", "a" * 10_000),
        ("train", {"ada\x1b[2J": 9}),
        ("train", {f"owner-{n}": 9 for n in range(65)}),
        ("train", {"ada": -9}),
        ("heldout", {"ada, who is trusted by all": 9}),
        ("parameters", {"width 2, depth": 3}),
        ("measures", {"accuracy 1.0\nlevel": 0.5}),
        ("measures", {"a" * 101: 0.5}),
        ("statistics", {"a sum": {"shape": [], "values": [1.0]}}),
        ("steps", -1),
        ("schema", {"fields": []}),
    ],
)
def test_facts_that_cannot_be_are_refused(
    tmp_path: Path, name: str, said: object
) -> None:
    place = tmp_path / "model.safetensors"
    text = encode(to_plain(some_facts()) | {name: said}).decode()
    tensors = parse_tensors(plain_model(place))
    place.write_bytes(b"".join(chain_tensors(tensors, {KEY: text}).pieces()))
    with pytest.raises(MalformedError) as caught:
        read_facts(place)
    assert caught.value.code != "bug"
    assert len(str(caught.value)) < 400
    assert str(caught.value).replace("\n", "").isprintable()


def test_a_receipt_knows_its_file(tmp_path: Path) -> None:
    place = tmp_path / "model.safetensors"
    bare = plain_model(place)
    with small_run(tmp_path) as run:
        receipt = replace(run.receipt, subject=Digest.of(bare))
    parameters = receipt.settings.training.parameters
    facts = facts_of(receipt.agreement.agreement, receipt.manifest, parameters)
    whole = b"".join(write_facts(bare, facts).pieces())
    for fine in (bare, whole):
        demand_made(fine, "model", receipt)
    lies = replace(facts, train={**facts.train, "ada": 10_000})
    lied = b"".join(write_facts(bare, lies).pieces())
    with pytest.raises(IntegrityError, match="something else of them") as differs:
        demand_made(lied, "model", receipt)
    assert differs.value.code == "facts-differ"
    other = plain_model(place, {**WEIGHTS, "mean": np.zeros(2)})
    for wrong in (b"".join(write_facts(other, facts).pieces()), other, whole[:-1], b""):
        with pytest.raises(IntegrityError) as refused:
            demand_made(wrong, "model", receipt)
        assert refused.value.code == "weights-differ"
