"""Private steps in a real job of the plan ``ddp``: what three owners' ranks make and tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from sealift.crypto.identity import load_identity
from sealift.demo.folder import World
from sealift.demo.job import ONE_BUFFER, make_world, write_job
from sealift.demo.run import DemoRun, check_rounds, run_ddp, run_travel
from sealift.demo.tasks import DIGITS
from sealift.release.accountant import PrivateRound, spent_epsilon
from sealift.release.agreement.signed import load_signed
from sealift.release.agreement.training import PrivateSteps
from sealift.release.broker.stores import opened_vault
from sealift.train.job import roleprocesses
from sealift.train.output.privateterms import private_terms
from sealift.train.output.runreceipt import open_run
from tests.sim.jobworld import agree_again, made_once
from tests.sim.owners import NOW_S

pytestmark = pytest.mark.distributed
WORK = replace(
    DIGITS,
    schedule=replace(DIGITS.schedule, epochs=2, rounds=0, batch_rows=64),
    bar_s=60.0,
)
PRIVACY = "\n[{table}privacy]\nclip = 1.0\nnoise = 0.6\nbatch = 64\n"


def make_private(
    path: Path,
    work: Any,
    plan: Literal["ddp", "travel"],
    more: str = "",
    **changes: str,
) -> World:
    """Parties who signed private steps in this plan alone."""
    made = make_world(path, work, plan=plan)
    document = made.path / "agreement.toml"
    text = document.read_text()
    assert text.count("\nruns = ") == 1
    text = text.replace("\nruns = ", "\nprivacy_trusts_code = true\nruns = ")
    text = text.replace('rows = ["owner", "share"]', 'rows = "owner"')
    document.write_text(text + PRIVACY.format(table="training.") + more)
    changes = {"sync": '["round"]', "prepare": "false"} | changes
    agree_again(made, plans=f'["{plan}"]', **changes)
    return made


def world(name: str = "ddp-private-world") -> World:
    def make(path: Path) -> None:
        make_private(path, WORK, "ddp")

    return World(made_once(name, make))


def run(act: str) -> tuple[World, DemoRun, list[Any]]:
    of = world().again(act)
    write_job(of, WORK, ONE_BUFFER, "ddp")
    of.job.write_text(of.job.read_text() + PRIVACY.format(table=""))
    told: list[Any] = []
    return of, run_ddp(of, lambda progress, event: told.append(event)), told


def test_three_ranks_tell_no_number_over_rows() -> None:
    of, found, told = run("-first")
    assert found.result["metrics"] == {}
    numbers = [name for each in told for name in each.fields if "metric" in name]
    assert numbers == []
    verdict = check_rounds(of, found, now=lambda: NOW_S)
    assert verdict.failures == []
    _of, again, _told = run("-again")
    assert again.result["weights"] != found.result["weights"]  # of one seed


def test_three_ranks_share_the_noise_of_their_steps() -> None:
    """What two of them add is all of it; the sum of a step is all that leaves."""

    def make(path: Path) -> None:
        steps = {"sync": '["step"]', "sums": '["only"]', "slices": "3"}
        make_private(path, WORK, "ddp", "honest_ranks = 2\n", **steps)

    of = World(made_once("ddp-shared-noise", make)).again("-run")
    write_job(of, WORK, ONE_BUFFER, "ddp")
    text = of.job.read_text() + PRIVACY.format(table="") + "honest_ranks = 2\n"
    of.job.write_text(
        text.replace("[slices]", '[slices]\nsync = "step"\nsums = "only"')
    )
    found = run_ddp(of, lambda progress, event: None)
    assert found.result["metrics"] == {}
    assert check_rounds(of, found, now=lambda: NOW_S).failures == []
    receipt = open_run((of.run / "receipt.json").read_bytes())
    terms = private_terms(receipt.agreement.agreement, receipt.manifest.visits)
    assert terms is not None
    assert "1 other ranks, which added their parts" in " ".join(terms.say())


def with_budget(of: World, rounds: int) -> tuple[str, PrivateRound]:
    """The first owner's tables have a budget for so many rounds; which owner, what one costs."""
    steps = PrivateSteps(clip=1.0, noise=0.6, batch=64)
    tables = load_signed(of.agreement).agreement.resources
    owner = tables[0].owner
    (rows,) = (e.rows for e in tables if (e.owner, e.part) == (owner, "train"))
    one = PrivateRound(steps.noise, steps.rate(rows), steps.steps(rows))
    epsilon = spent_epsilon([one] * rounds, 1e-5) + 1e-6
    document = of.path / "agreement.toml"
    text, start = document.read_text(), f"[resources.rule]          # only {owner} can"
    budget = f"[resources.rule]\nprivacy = {{ epsilon = {epsilon!r}, delta = 1e-5 }} # {owner} can"
    assert start in text
    document.write_text(text.replace(start, budget))
    agree_again(of, baseline_alone="false")
    return owner, one


def debited_of(of: World, owner: str) -> list[tuple[PrivateRound, int]]:
    home = of.home(owner)
    identity = load_identity(home.key, home.passphrase.read_text().strip())
    with opened_vault(home.vault, identity) as vault:
        return [(each.cost, each.round) for each in vault.ledger.rounds()]


def test_visits_of_rows_that_travel_are_debited_until_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One accelerator for all: the owner's broker allows it one visit of two."""
    # Owners' reports load the accountant at the end: as long as a busy machine takes.
    monkeypatch.setattr(roleprocesses, "STOP_S", 120.0)
    whole = replace(WORK, schedule=replace(WORK.schedule, rows_per_visit=4000))
    of = make_private(tmp_path / "world", whole, "travel")
    owner, one = with_budget(of, 1)
    write_job(of, whole, ONE_BUFFER)
    of.job.write_text(of.job.read_text() + PRIVACY.format(table=""))
    told: list[Any] = []
    found = run_travel(of, lambda progress, event: told.append(event), behaviour={})
    assert debited_of(of, owner) == [(one, 1)]
    skipped = [each.fields for each in told if each.kind == "visit.skipped"]
    assert [(each["holder"], each["reason"]) for each in skipped] == [
        (owner, "privacy-budget-spent")
    ]
    assert "epsilon" not in str(skipped)  # what other jobs spent is the owner's to know
    assert found.result["weights"]
    receipt = open_run((of.run / "receipt.json").read_bytes())
    terms = private_terms(receipt.agreement.agreement, receipt.manifest.visits)
    assert terms is not None
    assert [e.rounds for e in terms.tables if e.owner == owner] == [1]
    said = " ".join(terms.say())
    assert "had to be honest: the accelerator" in said
    assert "1 round of" in said


def test_a_spent_budget_ends_training_and_the_model_so_far_is_handed_out() -> None:
    """One round of two: the real broker of one owner refuses the second."""
    of = world("ddp-budget-world")  # its vaults have another agreement in force
    owner, one = with_budget(of, 1)
    write_job(of, WORK, ONE_BUFFER, "ddp")
    of.job.write_text(of.job.read_text() + PRIVACY.format(table=""))
    told: list[Any] = []
    found = run_ddp(of, lambda progress, event: told.append(event))
    limited = [each for each in told if each.kind == "job.limited"]
    assert [(e.fields["purpose"], e.fields["epoch"]) for e in limited][:1] == [
        ("train", 1)
    ]
    assert found.result["weights"]
    assert debited_of(of, owner) == [(one, 1)]
