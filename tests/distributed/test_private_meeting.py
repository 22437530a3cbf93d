"""Meetings of three owners, one with a privacy budget: four commands, and its broker's ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from sealift.cli.main import main
from sealift.crypto.identity import load_identity
from sealift.release.accountant import ACCOUNTANT, SAMPLER, PrivateRound
from sealift.release.agreement import PrivacyBudget
from sealift.release.agreement.signed import load_verified
from sealift.release.agreement.training import PrivateSteps
from sealift.release.broker.stores import opened_vault
from sealift.release.vault.ledger import DebitedRound
from sealift.train.output.modelfacts import read_facts
from sealift.train.output.privateterms import private_terms
from sealift.train.output.runreceipt import open_run
from tests.distributed.test_iterating import wait_for_receipt
from tests.distributed.test_meeting import OWNERS, YES, Parties, Typed

pytestmark = pytest.mark.distributed
JOB = (
    'recipe = "graph"\n[training]\nepochs = {}\nbatch_rows = 16\nkeep_state = true\n'
    "[privacy]\nclip = 1.0\nnoise = 1.0\nbatch = 16\n[agreed]\nruns = 2\nepochs = {{ max = 3 }}\n"
)
SHARED_JOB = (
    'recipe = "graph"\n[training]\nepochs = 2\nbatch_rows = 64\n'
    "[privacy]\nclip = 1.0\nnoise = 1.0\nbatch = 64\nhonest_ranks = 2\n"
)


@pytest.fixture
def parties(tmp_path: Path) -> Iterator[Parties]:
    made = Parties(tmp_path, 3)
    (tmp_path / "host" / "digits" / "job.toml").write_text(JOB.format(2))
    yield made
    for each in made.typed:
        if each.process.poll() is None:
            each.kill()


def joined(parties: Parties, name: str, *more: str) -> Typed:
    parties.save(name)
    words = ["invitation.txt", "train.csv", "--heldout", "heldout.csv"]
    return parties.type(name, "join", *words, *more, answers=YES)


def test_an_owner_brings_a_budget_to_a_meeting(parties: Parties) -> None:
    """A second run goes on from the state that the first left, and pays for its rounds alone."""
    host = parties.host("--invite", *OWNERS)
    first, *others = OWNERS
    owners = [
        joined(parties, first, "--stay", "--privacy", "50", "1e-5"),
        *(joined(parties, each, "--stay") for each in others),
    ]
    assert host.end() == 0, host.text[-3000:]
    for owner in owners:
        owner.wait_text("waiting for the host's next run")
    said = " ".join(owners[0].text.replace("sealift:", "").split())
    assert "epsilon 50, delta 1e-05, for each row" in said
    assert "No measure of rows is shared" in said
    (parties.folder / "host" / "digits" / "job.toml").write_text(JOB.format(3))
    again = parties.type("host", "host", "digits", "--listen", parties.address)
    assert again.end() == 0, again.text[-3000:]
    assert "continues from the state that run 1 left, with epoch 3" in again.text
    home = parties.folder / first
    wait_for_receipt(owners[0], home / "run-2")
    agreement = load_verified(home / "agreement.json").agreement
    assert [owner for owner in OWNERS if agreement.budgets_of(owner)] == [first]
    owners[0].kill()  # its broker has the vault
    rounds = rounds_of(home)
    spent = [each.epsilon for each in rounds]
    assert len(rounds) == 3, rounds
    assert 0 < spent[0] < spent[1] < spent[2] <= 50
    assert load_file(parties.folder / "host" / "model-2.safetensors")


def rounds_of(home: Path) -> tuple[DebitedRound, ...]:
    """What an owner's broker debited."""
    passphrase = (home / f"{home.name}.pass").read_text().strip()
    identity = load_identity(home / f"{home.name}.key", passphrase)
    with opened_vault(home / "vault.db", identity) as vault:
        return vault.ledger.rounds()


def unfolded(text: str) -> str:
    """Whatever the width of the screen, and whatever begins a new line on it."""
    return " ".join(text.replace(";", " ").split())


def test_owners_whose_ranks_share_the_noise(
    parties: Parties, capsys: pytest.CaptureFixture[str]
) -> None:
    """Receipt, card and ledger say one thing of two rounds, in which two of three had to be honest."""
    (parties.folder / "host" / "digits" / "job.toml").write_text(SHARED_JOB)
    host = parties.host("--invite", *OWNERS)
    first, *others = OWNERS
    budget = ("--privacy", "50", "1e-5", "--allow", "shared-noise")
    owners = [
        joined(parties, first, *budget),
        *(joined(parties, each) for each in others),
    ]
    for typed in (host, *owners):
        assert typed.end() == 0, typed.text[-3000:]
    home = parties.folder / first
    receipt = open_run((home / "receipt.json").read_bytes())
    terms = private_terms(receipt.agreement.agreement, receipt.manifest.visits)
    assert terms is not None
    assert (terms.unit, terms.at_home, terms.trusts_code) == ("row", True, False)
    assert terms.steps == PrivateSteps(1.0, 1.0, 64, honest_ranks=2)
    assert (terms.sampler, terms.accountant) == (SAMPLER, ACCOUNTANT)
    (own,) = [each for each in terms.tables if each.owner == first]
    assert own.budget == PrivacyBudget(epsilon=50.0, delta=1e-5)
    assert [each.rounds for each in terms.tables] == [2, 2, 2]
    model = parties.folder / "host" / "model.safetensors"
    assert read_facts(model).privacy == terms
    for words in (
        ["receipt", "verify", str(home / "receipt.json")],
        ["model", "card", str(model)],
    ):
        assert main(words) == 0
        shown = unfolded(capsys.readouterr().out)
        assert [e for e in terms.say() if unfolded(e) not in shown] == []
    one = PrivateRound(1.0, terms.steps.rate(own.rows), terms.steps.steps(own.rows))
    rounds = rounds_of(home)
    assert [each.cost for each in rounds] == [one, one]
    assert rounds[-1].epsilon == pytest.approx(terms.epsilon_of(own, own.budget))
    assert [rounds_of(parties.folder / each) for each in others] == [(), ()]
