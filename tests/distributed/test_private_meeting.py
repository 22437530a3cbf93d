"""A meeting of three owners, one with a privacy budget: four commands, and its broker's ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from sealift.crypto.identity import load_identity
from sealift.release.agreement.signed import load_verified
from sealift.release.broker.stores import opened_vault
from tests.distributed.test_meeting import OWNERS, YES, Parties, Typed

pytestmark = pytest.mark.distributed
JOB = (
    'recipe = "graph"\n[training]\nepochs = 2\nbatch_rows = 16\n'
    "[privacy]\nclip = 1.0\nnoise = 1.0\nbatch = 16\n"
)


@pytest.fixture
def parties(tmp_path: Path) -> Iterator[Parties]:
    made = Parties(tmp_path, 3)
    (tmp_path / "host" / "digits" / "job.toml").write_text(JOB)
    yield made
    for each in made.typed:
        if each.process.poll() is None:
            each.kill()


def with_budget(parties: Parties, name: str) -> Typed:
    parties.save(name)
    words = ["invitation.txt", "train.csv", "--heldout", "heldout.csv"]
    return parties.type(name, "join", *words, "--privacy", "50", "1e-5", answers=YES)


def test_an_owner_brings_a_budget_to_a_meeting(parties: Parties) -> None:
    host = parties.host("--invite", *OWNERS)
    first, *others = OWNERS
    owners = [
        with_budget(parties, first),
        *(parties.join(each) for each in others),
    ]
    codes = [each.end() for each in owners]
    assert host.end() == 0, host.text[-3000:]
    assert codes == [0, 0, 0], [each.text[-2000:] for each in owners]
    said = " ".join(owners[0].text.replace("sealift:", "").split())
    assert "epsilon 50, delta 1e-05, for each row" in said
    assert "No measure of rows is shared" in said
    home = parties.folder / first
    agreement = load_verified(home / "agreement.json").agreement
    assert [owner for owner in OWNERS if agreement.budgets_of(owner)] == [first]
    passphrase = (home / f"{first}.pass").read_text().strip()
    identity = load_identity(home / f"{first}.key", passphrase)
    with opened_vault(home / "vault.db", identity) as vault:
        rounds = vault.ledger.rounds()
    assert [each.round for each in rounds] == [1, 2]
    assert 0 < rounds[0].epsilon < rounds[1].epsilon <= 50
    assert load_file(parties.folder / "host" / "model.safetensors")
