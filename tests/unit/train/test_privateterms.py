"""What a receipt and a model's card say of private steps: unit, epsilon, sampler, who had to be honest."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sealift.codec import encode
from sealift.errors import MalformedError, PolicyError, UnavailableError
from sealift.release.accountant import spent_epsilon
from sealift.release.agreement import PrivacyBudget
from sealift.train.loop.states import chain_tensors, parse_tensors
from sealift.train.output import privateterms
from sealift.train.output.modelfacts import KEY, facts_in, facts_of, write_facts
from sealift.train.output.privateterms import PrivateTable, PrivateTerms, private_terms
from sealift.train.output.runreceipt import demand_of, open_run, sign_run, verify_run
from tests.sim.runreceipts import SmallRun, accounted, small_run
from tests.unit.train.test_modelfacts import plain_model
from tests.worlds.private import (
    DELTA,
    ROUND,
    STEPS,
    budget_of,
    epsilon_of,
    private_consortium,
)

BUDGET = budget_of(2)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[SmallRun]:
    with small_run(tmp_path, of=private_consortium(BUDGET)) as made:
        yield made


def receipt_of(run: SmallRun, rounds: int) -> bytes:
    """Its receipt, had it so many rounds of ada."""
    of = run.receipt.manifest
    visits = {**of.visits, "ada": rounds}
    changed = replace(run.receipt, manifest=replace(of, visits=visits))
    return sign_run(accounted(changed, run.signers), run.instance)


def rounds_of(run: SmallRun, rounds: int) -> dict[str, str]:
    """Lines of that receipt."""
    receipt = open_run(receipt_of(run, rounds))
    return {each.name: each.said for each in verify_run(receipt, run.verified())}


def test_a_receipt_states_what_private_steps_were_and_cost(run: SmallRun) -> None:
    said = rounds_of(run, 1)["privacy"]
    least = math.ceil(epsilon_of(1) * 10_000) / 10_000
    for part in (
        "unit one row",
        "sampler Poisson, for each row by itself",
        "8 rows expected in a step",
        "clip 1",
        "noise 1.5 times the clip",
        "accountant RDP (dp-accounting)",
        "ada: 1 round of 5 steps over 40 rows, each drawn with the chance 0.2",
        f"epsilon {least:g} at delta {DELTA:g}",
        f"with all other jobs at most {BUDGET}",
        "bern: 1 round of 5 steps over 40 rows, each drawn with the chance 0.2",
        "its owner set no budget",
        "had to be honest: for each owner's rows the rank on its own machine (ada, bern and cleo)",
        "privacy_trusts_code = true",
        "each signed by its party: ada, bern, cleo",
    ):
        assert part in said


def test_a_run_of_open_steps_states_nothing(tmp_path: Path) -> None:
    with small_run(tmp_path, group=True) as run:
        receipt = open_run(sign_run(run.receipt, run.instance))
        lines = [each.name for each in verify_run(receipt, run.verified())]
    assert "coverage" in lines
    assert "privacy" not in lines


def test_a_receipt_of_more_rounds_than_the_budget_pays_for_is_refused(
    run: SmallRun,
) -> None:
    assert "ada: 2 rounds" in rounds_of(run, 2)["privacy"]  # control: all of it
    with pytest.raises(PolicyError, match="more than the privacy budget of ada") as no:
        rounds_of(run, 3)
    assert no.value.code == "privacy-overspent"


def test_whoever_opens_a_model_finds_an_overspent_budget(run: SmallRun) -> None:
    raw = receipt_of(run, 3)
    with pytest.raises(PolicyError) as no:
        demand_of(raw, run.verified())
    assert no.value.code == "privacy-overspent"
    # Who took part had its own broker's word, and loads no accountant.
    assert demand_of(raw, run.verified(), costs=False) == raw
    assert demand_of(receipt_of(run, 2), run.verified()) == receipt_of(run, 2)


def test_where_nothing_counts_epsilon_is_said_to_be_missing(
    run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_of: object) -> float:
        raise UnavailableError("dp-accounting is not installed", code="extra-missing")

    monkeypatch.setattr(privateterms, "spent_epsilon", absent)
    said = rounds_of(run, 1)["privacy"]
    assert "epsilon is not computed here, because dp-accounting is not" in said
    assert f"at most {BUDGET}" in said


def test_several_tables_of_an_owner_count_together() -> None:
    budget = PrivacyBudget(epsilon=50.0, delta=DELTA)
    table = PrivateTable(owner="ada", rows=40, rounds=1, budget=budget)
    others = (
        replace(table, rows=80),
        replace(table, owner="bern"),
        replace(table, budget=None),
    )
    terms = PrivateTerms(
        steps=STEPS, at_home=True, trusts_code=False, tables=(table, *others)
    )
    larger = replace(ROUND, rate=STEPS.rate(80), steps=STEPS.steps(80))
    expected = spent_epsilon([ROUND, larger], DELTA)
    assert terms.epsilon_of(table, budget) == expected > epsilon_of(1)


def test_rounds_are_counted_for_each_of_an_owners_tables() -> None:
    """A manifest counts the uses of all of them."""
    agreement = private_consortium(BUDGET).agreement
    terms = private_terms(agreement, {"ada": 4, "bern": 4, "cleo": 0})
    assert terms is not None
    assert [(e.owner, e.rounds) for e in terms.tables] == [
        ("ada", 4),
        ("bern", 4),
        ("cleo", 0),
    ]
    first = agreement.resource("ada-train")
    two = replace(
        agreement, resources=(*agreement.resources, replace(first, name="ada-more"))
    )
    terms = private_terms(two, {"ada": 3})
    assert terms is not None
    assert [e.rounds for e in terms.tables if e.owner == "ada"] == [2, 2]


def test_a_models_header_says_it_and_the_receipt_compares_it(
    run: SmallRun, tmp_path: Path
) -> None:
    receipt = run.receipt
    facts = facts_of(receipt.agreement.agreement, receipt.manifest, {})
    content = b"".join(
        write_facts(plain_model(tmp_path / "model.safetensors"), facts).pieces()
    )
    found = facts_in(content)
    assert found == facts
    assert found is not None
    assert found.privacy is not None
    assert found.privacy.steps == STEPS
    assert found.privacy.tables[0].budget == BUDGET


def test_a_header_of_open_steps_is_written_as_before(tmp_path: Path) -> None:
    with small_run(tmp_path) as run:
        receipt = run.receipt
    facts = facts_of(receipt.agreement.agreement, receipt.manifest, {})
    assert facts.privacy is None
    assert b"privacy" not in encode(facts)
    content = write_facts(plain_model(tmp_path / "m.safetensors"), facts)
    assert facts_in(b"".join(content.pieces())) == facts


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"rounds":1', b'"rounds":-1'),
        (b'"rounds":1,"rows":40', b'"rounds":1,"rows":0'),
        (b'"unit":"row"', b'"unit":"none"'),
        (b'"noise":1.5', b'"noise":0'),
        (b'"owner":"ada"', b'"owner":"ada\\u001b"'),
        (b'"sampler":"Poisson,', b'"sampler":"in order,'),
    ],
)
def test_a_header_that_cannot_be_is_refused(
    run: SmallRun, tmp_path: Path, old: bytes, new: bytes
) -> None:
    facts = facts_of(run.receipt.agreement.agreement, run.receipt.manifest, {})
    place = tmp_path / "m.safetensors"
    text = encode(facts)
    assert old in text
    lie = text.replace(old, new)
    tensors = parse_tensors(plain_model(place))
    whole = b"".join(chain_tensors(tensors, {KEY: lie.decode()}).pieces())
    with pytest.raises(MalformedError):
        facts_in(whole)
