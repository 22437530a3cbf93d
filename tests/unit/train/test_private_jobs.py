"""A job with private steps: what it tells of rows, and what else it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sealift.data.schedule.visits import VisitTerms, plan_job
from sealift.errors import PolicyError
from sealift.release.agreement.code import measure_bundle
from sealift.release.agreement.training import PrivateSteps
from sealift.train.loop.privacy import require_private, require_whole_tables
from sealift.train.loop.statistics import Measured
from sealift.train.loop.trainer import Trainer
from sealift.travel.accelerator.setup import LoadedCargo
from tests.unit.train.joints import cargo, in_place, joint
from tests.unit.train.recipes import LIGHTNING, SETTINGS
from tests.worlds.consortium import TRAINING, make_consortium

TERMS = PrivateSteps(clip=1.0, noise=1.0, batch=SETTINGS.batch_rows)
CODE = "privacy-not-enforced"


def private(**changes: Any) -> Trainer:
    return joint(LIGHTNING, replace(SETTINGS, **changes), private=TERMS)


def test_it_tells_no_number_over_rows() -> None:
    told = list[Measured]()

    def watch(_cargo: LoadedCargo, found: Measured) -> None:
        told.append(found)

    open_one = joint(LIGHTNING, watch=watch)
    assert open_one.work([cargo("north")])["north-train"].metrics  # control
    assert open_one.work([cargo("north")], "heldout")["north-train"].metrics
    count = len(told)
    trainer = joint(LIGHTNING, watch=watch, private=TERMS)
    assert trainer.work([cargo("north")]) == {"north-train": Measured(32)}
    assert trainer.work([cargo("north")], "heldout") == {"north-train": Measured(32)}
    assert len(told) == count
    assert (trainer.steps, trainer.rows_trained) == (4, 32)


def test_two_jobs_of_one_seed_end_with_other_models() -> None:
    made = [private() for _ in range(2)]
    for each in made:
        each.work([cargo("north")])
    assert made[0].digest() != made[1].digest()


def test_rows_are_drawn_of_one_whole_table() -> None:
    one = cargo("north")
    part = LoadedCargo(replace(one.stop, rows=16), one.resource, one.memory)
    for some in ([part], [one, cargo("southern")], []):
        trainer = private()
        with pytest.raises(PolicyError) as raised:
            trainer.work(some)
        assert raised.value.code == CODE
        assert trainer.steps == 0


def test_a_plan_that_cuts_a_table_is_refused_before_any_key_is_asked_for() -> None:
    base = make_consortium().agreement
    rule = replace(TRAINING, plans=("travel",), rows=("owner",), prepare=(False,), privacy=TERMS, privacy_trusts_code=True)  # fmt: skip
    agreement, (first, *_) = replace(base, training=rule), base.resources
    terms = VisitTerms(epochs=1, evaluate_every=0, prepare=False, order="by-size", mixed=False, buffers=1, buffer_bytes=0)  # fmt: skip
    whole = plan_job(base.resources, terms, first.row_bytes * first.rows)
    require_whole_tables(agreement, whole)
    cut = plan_job(base.resources, terms, first.row_bytes * (first.rows // 2))
    mixed = plan_job(base.resources, replace(terms, mixed=True), 1 << 20)
    for plan in (cut, mixed):
        with pytest.raises(PolicyError) as raised:
            require_whole_tables(agreement, plan)
        assert raised.value.code == CODE
        require_whole_tables(base, plan)  # steps are open


def test_sums_of_prepare_are_not_made() -> None:
    with pytest.raises(PolicyError, match="no noise") as raised:
        private().work([cargo("north")], "prepare")
    assert raised.value.code == CODE


@pytest.mark.parametrize(
    "changes", [{"batch_rows": 4}, {"prepare": True}, {"measure": "accuracy"}]
)
def test_what_would_tell_more_is_refused_before_the_job(
    changes: dict[str, Any],
) -> None:
    with pytest.raises(PolicyError) as raised:
        private(**changes)
    assert raised.value.code == CODE


def test_code_is_trusted_only_where_the_agreement_says_so() -> None:
    base = make_consortium().agreement
    rule = replace(
        TRAINING, plans=("travel",), rows=("owner",), prepare=(False,), privacy=TERMS
    )

    def made(**changes: Any) -> Trainer:
        of = replace(base, training=replace(rule, **changes))
        return Trainer.under(of, in_place(LIGHTNING), SETTINGS)

    with pytest.raises(PolicyError, match="privacy_trusts_code") as raised:
        made()
    assert raised.value.code == CODE
    files = {"graph.json": b"{}", "assets/weights.safetensors": b""}
    graph = replace(base, code=measure_bundle(files, "graph.json"))
    require_private(replace(graph, training=rule), SETTINGS)  # no program, no trust
    other = replace(base, code=measure_bundle({"a/graph.json": b""}, "a/graph.json"))
    with pytest.raises(PolicyError):  # a list of operations has one place
        require_private(replace(other, training=rule), SETTINGS)
    trusted = made(privacy_trusts_code=True)
    assert trusted._private == TERMS
    assert trusted._owners == ()  # no baseline: what is told of it has no noise
    assert made(privacy=None)._owners == base.data_owners
