"""`sealift agreement sign` below the floor: --yes is no --allow, and nothing is signed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sealift.cli.main import main
from sealift.crypto.identity import save_identity
from sealift.release.agreement.signed import SignedAgreement, load_signed, save_signed
from tests.worlds.consortium import OUTPUT, Consortium, make_consortium

USAGE, REFUSED = 2, 5
# Of three owners; cleo is the model's owner as well, and bern gets it, too.
LEAKS = replace(
    OUTPUT,
    metric_rows=16,
    min_owner_rows=16,
    statistics=("cells",),
    statistics_rows=1,
    model_to=("cleo", "bern"),
)


@pytest.fixture
def consortium() -> Consortium:
    return make_consortium(cell_rows=16, output=LEAKS)


@pytest.fixture
def folder(tmp_path: Path, consortium: Consortium) -> Path:
    """An agreement that nobody signed, and ada's key."""
    (tmp_path / "pw").write_text("correct horse\n")
    for name in ("ada", "bern"):
        path = tmp_path / f"{name}.key"
        save_identity(consortium.identities[name], path, "correct horse")
    save_signed(SignedAgreement(consortium.agreement), tmp_path / "agreement.json")
    return tmp_path


def sign(folder: Path, *more: str, name: str = "ada") -> int:
    words = ["--key", str(folder / f"{name}.key"), "--yes"]
    words += ["--passphrase-file", str(folder / "pw"), *more]
    return main(["agreement", "sign", str(folder / "agreement.json"), *words])


def signers(folder: Path) -> list[str]:
    return sorted(load_signed(folder / "agreement.json").signatures)


def test_yes_is_no_exception(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sign(folder) == REFUSED
    said = capsys.readouterr().err
    assert "[below-floor]" in said
    assert "--allow statistics" in said
    assert "--allow model-to" in said
    assert "--allow recipe-text" not in said
    assert sign(folder, "--allow", "statistics") == REFUSED
    assert "--allow statistics" not in capsys.readouterr().err
    assert signers(folder) == []


def test_each_exception_by_its_name(folder: Path) -> None:
    assert sign(folder, "--allow", "statistics", "--allow", "model-to") == 0
    assert signers(folder) == ["ada"]
    assert sign(folder, "--allow", "statistics", name="bern") == 0  # who gets the model
    assert signers(folder) == ["ada", "bern"]


def test_an_unknown_exception_is_no_word_of_the_command(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sign(folder, "--allow", "everything") == USAGE
    assert "statistics" in capsys.readouterr().err
    assert signers(folder) == []
