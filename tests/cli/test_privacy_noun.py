"""`sealift privacy`: the plan is what a broker debits, and the ledger is shown as it stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sealift.cli.main import main
from sealift.crypto.identity import create_identity, save_identity
from sealift.release.accountant import PrivateRound, spent_epsilon
from sealift.release.agreement import PrivacyBudget
from sealift.release.vault.ledger import Debit, PrivateDebit
from sealift.release.vault.vault import Vault
from tests.worlds.consortium import make_resource
from tests.worlds.private import DELTA, ROUND, RUN

PLAN = ("privacy", "plan", "--rows", "10000", "--batch", "250", "--epochs", "4")


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, float]:
    assert main([*PLAN, "--delta", "1e-6", *words, "--json"]) == 0
    found: dict[str, float] = json.loads(capsys.readouterr().out)
    return found


def test_the_least_noise_that_fits_is_found_and_said_the_other_way_round(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = plan(capsys, "--epsilon", "2")
    assert (found["steps"], found["rate"]) == (160, 0.025)
    rounds = [PrivateRound(found["noise"], 0.025, 40)] * 4
    assert spent_epsilon(rounds, 1e-6) <= 2.0
    less = [PrivateRound(found["noise"] - 0.001, 0.025, 40)] * 4
    assert spent_epsilon(less, 1e-6) > 2.0
    back = plan(capsys, "--noise", str(found["noise"]))
    assert back == found


@pytest.mark.parametrize(
    ("changed", "code", "says"),
    [
        (("--epsilon", "0"), 6, "epsilon is 0"),
        (("--epsilon", "nan"), 6, "epsilon is nan"),
        (("--noise", "-1"), 6, "noise is -1"),
        (("--noise", "inf"), 6, "noise is inf"),
        (("--epsilon", "1", "--delta", "0.5"), 6, "10,000 rows"),
        (("--epsilon", "1", "--rows", "0"), 6, "--rows is 0"),
        (("--epsilon", "1", "--epochs", "-3"), 6, "--epochs is -3"),
        (("--epsilon", "1", "--batch", "0"), 6, "batch is 0"),
        (("--epsilon", "1e-9"), 2, "no noise is large enough"),
    ],
)
def test_numbers_that_make_no_sense_are_one_line(
    capsys: pytest.CaptureFixture[str], changed: tuple[str, ...], code: int, says: str
) -> None:
    assert main([*PLAN, "--delta", "1e-6", *changed]) == code
    said = capsys.readouterr()
    assert says in said.err
    assert said.err.count("\n") == 1
    assert not said.out


def test_the_ledger_shows_what_is_spent_and_the_rounds_of_each_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    identity, phrase = create_identity("ada"), tmp_path / "pw"
    phrase.write_text("correct horse battery\n")
    save_identity(identity, tmp_path / "ada.key", "correct horse battery")
    vault, table = Vault.create(tmp_path / "ada.vault", identity), make_resource("ada")
    debit = PrivateDebit(
        content=table.content, resource=table.name, job="job",
        budget=PrivacyBudget(epsilon=9.0, delta=DELTA), run=RUN.digest(table.content), cost=ROUND,
    )  # fmt: skip
    for number in range(2):
        visit = Debit.of_visits("line", "train", 1, bytes([number]) * 32)
        vault.ledger.spend(visit, lambda _count: None, (debit,))
    vault.close()
    words = ["privacy", "ledger", str(tmp_path / "ada.vault"), "--key", str(tmp_path / "ada.key"), "--passphrase-file", str(phrase)]  # fmt: skip
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    found = told["tables"][table.content.to_text()]
    spent = spent_epsilon([ROUND] * 2, DELTA)
    assert told["spent"] == f"epsilon {spent:.4g}, delta 1e-05"
    assert (found["rounds"], found["steps"]) == ("2 rounds", 10)
    assert found["jobs"] == "line/job"
    assert main(words) == 0
    assert table.content.to_text() in capsys.readouterr().out
