"""The plan ``local``: slices of held-out rows are weighted; the output rule holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sealift import codec
from sealift.data.schema.card import read_card
from sealift.demo.tasks import ROW_BYTES
from sealift.errors import JobError, MalformedError, PolicyError, UsageError
from sealift.events import Event
from sealift.release.agreement.signed import load_verified
from sealift.train.loop.held import read_of
from sealift.train.loop.measures import joint_numbers
from sealift.train.loop.slices import Slice
from sealift.train.plans import PLANS, local
from sealift.travel.settings import JobSettings, SlicesSettings
from tests.sim.jobworld import RECIPE, Wishes, change, fresh_world, train_here


def test_means_are_weighted_by_rows() -> None:
    parts = [(10, {"loss": 1.0, "accuracy": 0.5}), (30, {"loss": 2.0})]
    assert joint_numbers(parts, 9) == {"loss": 1.75, "accuracy": 0.5}
    assert joint_numbers([], 9) == {}
    some = [(100, {"loss": 0.5}), (150, {})]  # of which one left rows out
    assert joint_numbers(some, 9) == {"loss": 0.5}
    assert joint_numbers(some, 9, whole=True) == {}
    huge = [(10, {"loss": 1e308}), (1, {"rows": 2.0})]
    assert joint_numbers(huge, 9) == {"rows": 2.0}


def test_means_over_parts_are_rounded() -> None:
    """A mean of rounded numbers has more places than they have."""
    parts = [(10, {"loss": 0.25}), (20, {"loss": 0.5})]
    assert joint_numbers(parts, 2) == {"loss": 0.42}


def test_held_out_slices_count_by_their_rows(tmp_path: Path) -> None:
    """One long slice and several short ones give the same number."""
    constant = (
        "\n\ndef evaluate(model, batch):\n"
        "    return {'accuracy': (batch['label'] == 3).sum()}\n"
    )
    whole = Wishes(epochs=1, recipe=RECIPE + constant, rule={"digits": "6"})
    slices = Wishes(
        epochs=1,
        recipe=RECIPE + constant,
        rule={"digits": "6"},
        buffer_bytes=70 * ROW_BYTES,
    )
    first = train_here(fresh_world(tmp_path / "a", whole)).metrics["accuracy"]
    second = train_here(fresh_world(tmp_path / "b", slices)).metrics["accuracy"]
    assert 0 < first < 1
    assert second == pytest.approx(first, abs=2e-6)


def test_the_output_rule_holds_here_too(tmp_path: Path) -> None:
    world = fresh_world(tmp_path, Wishes(epochs=1, rule={"min_visits": "2"}))
    with pytest.raises(PolicyError) as caught:
        train_here(world)
    assert caught.value.code == "output-withheld"


def test_what_is_told_of_a_window_keeps_the_rule(tmp_path: Path) -> None:
    """As it ends, and as at the end: named, rounded, over enough rows."""
    events: list[Event] = []
    world = fresh_world(tmp_path, Wishes(epochs=1, rule={"digits": "2"}))
    train_here(world, events.append)
    windows = [each.fields for each in events if each.kind == "local.window"]
    losses = [float(str(each["loss"])) for each in windows]
    assert losses == [round(each, 2) for each in losses]
    assert {each["holder"] for each in windows} >= {"north"}
    kinds = [each.kind for each in events]
    assert kinds.index("local.window") < kinds.index("local.slice")


def test_a_model_that_must_be_approved_of_is_not_made_in_the_open(
    tmp_path: Path,
) -> None:
    rule = {"recipe_text": 'false\napproved_by = ["north", "lab"]'}
    world = fresh_world(tmp_path, Wishes(epochs=1, rule=rule))
    with pytest.raises(PolicyError, match="approval of north and lab") as caught:
        train_here(world)
    assert caught.value.code == "output-unapproved"


def test_a_file_of_other_columns_is_not_trained_on(tmp_path: Path) -> None:
    """Its card, which the agreement was made of, was changed in its folder before."""
    world = fresh_world(tmp_path, Wishes(epochs=1))
    path = world.home("north").sealed / "north-train.resource.json"
    card = read_card(path)
    fields = [dict(each) for each in card.resource.schema["fields"]]
    other = card.resource.schema | {"fields": fields}
    fields[0]["name"], fields[1]["name"] = fields[1]["name"], fields[0]["name"]
    other_card = replace(card, resource=replace(card.resource, schema=other))
    path.write_bytes(codec.encode(other_card))
    change(world, Wishes(epochs=1))
    with pytest.raises(MalformedError, match="not sealed with the columns"):
        train_here(world)


def in_slices(tmp_path: Path, **slices: object) -> bytes:
    lines = "\n".join(f"{n} = {json.dumps(v)}" for n, v in slices.items())
    wishes = Wishes(epochs=2, plan="local", slices=f"[slices]\n{lines}\n")
    world = fresh_world(tmp_path / json.dumps(slices), wishes)
    model = train_here(world).model
    return read_of(model, 0, len(model))


def test_slices_are_averaged_after_each_round(tmp_path: Path) -> None:
    alone = in_slices(tmp_path, count=1)
    owners, again = (in_slices(tmp_path / n, count=2) for n in "ab")
    shares = in_slices(tmp_path, count=3, rows="share")
    bound = in_slices(tmp_path, count=2, max_norm=0.01)
    assert owners == again
    assert len({alone, owners, shares, bound}) == 4


@pytest.mark.parametrize("place", [0, 1])
def test_a_bit_that_changes_beside_the_training_is_in_no_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """H1: what a round began with and what it came to are digested before the mean."""
    train = local._work

    def work(slices: Sequence[Slice], *rest: Any) -> Iterator[Any]:
        began = slices[0].trainer.joint
        yield from train(slices, *rest)
        if rest[0] != "train":  # what changes later is found before the model leaves
            return
        state = (began, slices[1].trainer.joint)[place]
        tensors = bytearray(read_of(state.tensors, 0, len(state.tensors)))
        tensors[-1] ^= 1
        object.__setattr__(state, "tensors", bytes(tensors))

    monkeypatch.setattr(local, "_work", work)
    with pytest.raises(JobError) as caught:
        in_slices(tmp_path, count=2)
    assert caught.value.code == "state-changed"


def test_slices_may_make_every_step_together(tmp_path: Path) -> None:
    steps, again = (in_slices(tmp_path / n, count=2, sync="step") for n in "ab")
    shares = in_slices(tmp_path, count=3, rows="share", sync="step")
    assert steps == again
    assert len({steps, shares, in_slices(tmp_path, count=2)}) == 3


def test_a_bound_of_rounds_is_not_left_out_of_steps(tmp_path: Path) -> None:
    world = fresh_world(tmp_path, Wishes(epochs=1))
    agreement = load_verified(world.agreement).agreement
    both = SlicesSettings(count=2, sync="step", max_norm=1.0)
    with pytest.raises(UsageError, match="max_norm") as caught:
        PLANS["local"].check_terms(JobSettings(slices=both), agreement)
    assert caught.value.code == "slices-differ"
    PLANS["local"].check_terms(
        JobSettings(slices=replace(both, max_norm=0.0)), agreement
    )


def test_owners_of_few_rows_each_have_a_slice(tmp_path: Path) -> None:
    """Where each owner's rows are a slice, nothing is cut, and one cell is enough."""
    world = fresh_world(tmp_path, Wishes(epochs=1))
    agreement = load_verified(world.agreement).agreement
    small = tuple(replace(each, cell_rows=each.rows) for each in agreement.resources)
    one_cell = replace(agreement, resources=small)
    PLANS["local"].check_terms(JobSettings(slices=SlicesSettings(count=2)), one_cell)
    shared = JobSettings(slices=SlicesSettings(count=2, rows="share"))
    with pytest.raises(UsageError, match="1 cells") as caught:
        PLANS["local"].check_terms(shared, one_cell)
    assert caught.value.code == "slices-differ"
