"""A meeting of three owners, one with a privacy budget: four commands, and its broker's ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from sealift.crypto.identity import load_identity
from sealift.release.agreement.signed import load_verified
from sealift.release.broker.stores import opened_vault
from tests.distributed.test_iterating import wait_for_receipt
from tests.distributed.test_meeting import OWNERS, YES, Parties, Typed

pytestmark = pytest.mark.distributed
JOB = (
    'recipe = "graph"\n[training]\nepochs = {}\nbatch_rows = 16\nkeep_state = true\n'
    "[privacy]\nclip = 1.0\nnoise = 1.0\nbatch = 16\n[agreed]\nruns = 2\nepochs = {{ max = 3 }}\n"
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
    words = ["invitation.txt", "train.csv", "--heldout", "heldout.csv", "--stay"]
    return parties.type(name, "join", *words, *more, answers=YES)


def test_an_owner_brings_a_budget_to_a_meeting(parties: Parties) -> None:
    """A second run goes on from the state that the first left, and pays for its rounds alone."""
    host = parties.host("--invite", *OWNERS)
    first, *others = OWNERS
    owners = [
        joined(parties, first, "--privacy", "50", "1e-5"),
        *(joined(parties, each) for each in others),
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
    assert "goes on from the state that run 1 left, with epoch 3" in again.text
    home = parties.folder / first
    wait_for_receipt(owners[0], home / "run-2")
    agreement = load_verified(home / "agreement.json").agreement
    assert [owner for owner in OWNERS if agreement.budgets_of(owner)] == [first]
    passphrase = (home / f"{first}.pass").read_text().strip()
    owners[0].kill()  # its broker has the vault
    identity = load_identity(home / f"{first}.key", passphrase)
    with opened_vault(home / "vault.db", identity) as vault:
        rounds = vault.ledger.rounds()
    spent = [each.epsilon for each in rounds]
    assert len(rounds) == 3, rounds
    assert 0 < spent[0] < spent[1] < spent[2] <= 50
    assert load_file(parties.folder / "host" / "model-2.safetensors")
