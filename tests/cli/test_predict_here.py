"""`sealift predict MODEL TABLE` and `sealift model card`: a run's model, at home."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from sealift.cli.main import main
from sealift.data.schema.document import parse_schema, schema_to_plain
from sealift.errors import UsageError
from sealift.ids import Digest
from sealift.release.agreement import PrivacyBudget
from sealift.release.agreement.code import measure_bundle
from sealift.release.agreement.training import PrivateSteps
from sealift.serve.rowfiles import beside
from sealift.train.output.modelfacts import ModelFacts, write_facts
from sealift.train.output.privateterms import PrivateTable, PrivateTerms

RECIPE = b"""
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, 1, bias=False)

    def forward(self, batch):
        x = torch.stack([batch["age"], batch["dose"] + batch["ward"]], 1)
        return self.layer(x)[:, 0]


def build(width=1):
    return Model(width)
"""
SCHEMA = b"""
fields = [
    { name = "age", dtype = "float32" },
    { name = "dose", dtype = "float32" },
    { name = "ward", dtype = "int64", categories = ["a", "b"] },
    { name = "healed", dtype = "int64", classes = 2 },
]
"""
ROWS = [(30.5, 1.0, "a"), (41.0, 2.5, "b"), (7.25, 0.0, "b")]
EXPECTED = [2 * age + dose + "ab".index(ward) for age, dose, ward in ROWS]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, its recipe, and a table in the way of another country."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "recipe.py").write_bytes(RECIPE)
    write_model(tmp_path)
    lines = ["Alter;Dosis;Station"]
    lines += [f"{age};{dose};{ward}".replace(".", ",") for age, dose, ward in ROWS]
    (tmp_path / "new.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "table.toml").write_text(
        '[columns]\nage = "Alter"\ndose = "Dosis"\nward = "Station"\n'
    )
    return tmp_path


def write_model(folder: Path, **changes: Any) -> None:
    content = save({"layer.weight": np.array([[2.0, 1.0]], np.float32)})
    facts = ModelFacts(
        job="wards",
        agreement="wards",
        number=1,
        digest=Digest(bytes(32)),
        code=measure_bundle({"recipe.py": RECIPE}, "recipe.py"),
        parameters={"width": 2},
        schema=schema_to_plain(parse_schema(SCHEMA)),
        train={"north": 1200, "east": 300},
        heldout={"north": 100},
        level="development",
        plan="ddp",
        steps=7,
        rows=3000,
        measures={"auc": 0.875},
        weights=Digest(bytes(32)),
    )
    whole = write_facts(content, replace(facts, **changes))
    (folder / "model.safetensors").write_bytes(b"".join(whole.pieces()))


def predicted(place: Path) -> list[float]:
    with place.open(newline="") as file:
        return [float(row["prediction"]) for row in csv.DictReader(file)]


@pytest.mark.cold
def test_an_unlabelled_table_is_predicted_as_its_owner_writes_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", "model.safetensors", "new.csv", "-o", "out.csv"]) == 0
    assert predicted(folder / "out.csv") == EXPECTED
    assert "new.csv has no healed: predicting without" in capsys.readouterr().err
    ages, doses, wards = zip(*ROWS, strict=True)
    np.savez(
        folder / "new.npz",
        age=np.array(ages, np.float32),
        dose=np.array(doses, np.float32),
        ward=np.array(["ab".index(each) for each in wards]),
    )
    assert main(["predict", "model.safetensors", "new.npz", "-o", "same.csv"]) == 0
    assert predicted(folder / "same.csv") == EXPECTED


@pytest.mark.cold
def test_answers_are_known_by_a_column_of_the_table(folder: Path) -> None:
    """Also by one that is written oddly, is no field, or is left out in table.toml."""
    ids = ['"P;1"', "007", ""]
    lines = (folder / "new.csv").read_text().splitlines()
    lines = [
        f"{line};{each}" for line, each in zip(lines, ["Fall-Nr.", *ids], strict=True)
    ]
    (folder / "new.csv").write_text("\n".join(lines) + "\n\n")
    own = (folder / "table.toml").read_text()
    (folder / "table.toml").write_text('leave_out = ["Fall-Nr."]\n' + own)
    words = ["predict", "model.safetensors", "new.csv", "--keep", "Fall-Nr."]
    assert main([*words, "--keep", "Station", "-o", "out.csv"]) == 0
    assert predicted(folder / "out.csv") == EXPECTED
    with (folder / "out.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [*rows[0]] == ["Fall-Nr.", "Station", "prediction"]
    assert [row["Fall-Nr."] for row in rows] == ["P;1", "007", ""]
    assert main([*words, "-o", "out.json"]) == 0
    told = json.loads((folder / "out.json").read_text())
    assert told["Fall-Nr."] == ["P;1", "007", ""]
    columns = {"prediction": np.zeros(1)}
    with pytest.raises(UsageError, match="the model's answer has that name"):
        beside(columns, columns)


@pytest.mark.cold
def test_a_parquet_table_may_have_other_columns(folder: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    ages, doses, wards = zip(*ROWS, strict=True)
    columns = {
        "id": ["x", None, "z"],
        "age": pa.array(ages, pa.float32()),
        "dose": pa.array(doses, pa.float32()),
        "ward": ["ab".index(each) for each in wards],
    }
    parquet.write_table(pa.table(columns), folder / "new.parquet")
    words = ["predict", "model.safetensors", "new.parquet", "--keep", "id"]
    (folder / "table.toml").unlink()
    assert main([*words, "-o", "out.csv"]) == 0
    assert predicted(folder / "out.csv") == EXPECTED
    assert (folder / "out.csv").read_text().splitlines()[1].startswith("x,")


@pytest.mark.cold
def test_a_recipe_reads_its_assets(folder: Path) -> None:
    recipe = RECIPE.replace(
        b"def build(width=1):",
        b"from sealift import recipes\n\n\ndef build():\n"
        b"    width = int(bytes(recipes.asset('width.txt')))",
    )
    (folder / "recipe" / "recipe.py").write_bytes(recipe)
    (folder / "recipe" / "assets").mkdir()
    asset = folder / "recipe" / "assets" / "width.txt"
    asset.write_text("2")
    assets = {"assets/width.txt": Digest.of(b"2")}
    code = measure_bundle({"recipe.py": recipe}, "recipe.py", assets)
    write_model(folder, code=code, parameters={})
    assert main(["predict", "model.safetensors", "new.csv", "-o", "out.csv"]) == 0
    assert predicted(folder / "out.csv") == EXPECTED
    asset.write_text("3")
    assert main(["predict", "model.safetensors", "new.csv"]) == 5


@pytest.mark.cold
def test_a_column_that_the_recipe_needs_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "few.csv").write_text("age,ward\n1,a\n")
    (folder / "table.toml").unlink()
    assert main(["predict", "model.safetensors", "few.csv"]) == 7
    said = capsys.readouterr().err
    assert "The recipe may need dose, healed, which few.csv does not have" in said


@pytest.mark.parametrize(
    ("words", "rc", "said"),
    [
        (["none.safetensors", "new.csv"], 3, "[cannot-read]"),
        (["model.safetensors"], 2, "the input rows are missing"),
        (["model.safetensors", "new.csv", "-o", "new.csv"], 2, "[exists]"),
        (["model.safetensors", "other.csv"], 6, "none of the model's columns"),
        (["model.safetensors", "new.csv", "--bundle", "."], 5, "[code-bundle-differs]"),
        (["server:1", "new.csv"], 2, "add --agreement FILE"),
        (
            ["model.safetensors", "new.csv", "--keep", "Statoin"],
            2,
            "Did you mean Station?",
        ),
        (
            ["model.safetensors", "new.npz", "--keep", "age"],
            2,
            "--keep can only be used",
        ),
    ],
)
def test_what_cannot_be_predicted_is_said(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    rc: int,
    said: str,
) -> None:
    (folder / "other.csv").write_text("a,b\n1,2\n")
    columns = {"age": np.ones(1, np.float32), "dose": np.ones(1, np.float32)}
    np.savez(folder / "new.npz", ward=np.zeros(1, np.int64), **columns)
    (folder / "table.toml").rename(folder / "new.toml")
    if "new.csv" in words:
        words = [*words, "--table", "new.toml"]
    assert main(["predict", *words]) == rc
    assert said in capsys.readouterr().err


def test_a_recipe_of_other_bytes_does_not_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "recipe" / "recipe.py").write_bytes(RECIPE + b"raise SystemExit\n")
    assert main(["predict", "model.safetensors", "new.csv"]) == 5
    assert "recipe.py differs" in capsys.readouterr().err


def test_without_a_sandbox_nothing_of_a_recipe_runs(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sealift.serve.modelworker.RecipeExecutor.sandbox", "none")
    assert main(["predict", "model.safetensors", "new.csv"]) == 3
    assert "[no-sandbox]" in capsys.readouterr().err


def test_parameters_that_nobody_knows_are_not_guessed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(folder, parameters=None)
    assert main(["predict", "model.safetensors", "new.csv"]) == 2
    assert "which parameters" in capsys.readouterr().err


def test_a_card_quotes_what_a_file_says(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(folder, parameters={"width": 2, "kind": "x, depth 9 " + "y" * 999})
    assert main(["model", "card", "model.safetensors"]) == 0
    (line,) = (
        each
        for each in capsys.readouterr().out.splitlines()
        if each.startswith("parameters")
    )
    assert 'kind "x, depth 9 yyy' in line
    assert len(line) < 120


def test_the_card_of_private_steps(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = PrivacyBudget(epsilon=3.0, delta=1e-6)
    tables = tuple(
        PrivateTable(owner=owner, rows=rows, rounds=2, budget=each)
        for owner, rows, each in (("north", 1200, budget), ("east", 300, None))
    )
    steps = PrivateSteps(clip=1.0, noise=2.0, batch=30)
    terms = PrivateTerms(steps=steps, at_home=True, trusts_code=True, tables=tables)
    write_model(folder, privacy=terms)
    assert main(["model", "card", "model.safetensors"]) == 0
    shown = capsys.readouterr().out
    assert "privacy     private steps, unit one row: sampler Poisson" in shown
    assert "north: 2 rounds of 40 steps over 1,200 rows" in shown
    assert f"at most {budget}" in shown
    assert "had to be honest" in shown
    assert "privacy_trusts_code = true" in shown
    assert "no differential privacy" not in shown


def test_the_card(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "card", "model.safetensors"]) == 0
    shown = capsys.readouterr()
    for line in (
        "trained by  east and north, in the run wards",
        "rows        1,500 to train on (east 300, north 1,200)",
        "            100 held out (north 100)",
        "columns     age float32",
        "            ward int64, one of a, b",
        "            healed int64, a label of 2 classes",
        "measures    auc 0.875",
        "level       development",
        "            the model may remember single rows: there is no differential privacy",
    ):
        assert line in shown.out.splitlines()
    assert "keeps NOBODY out" in shown.out
    assert "the file's own words" in shown.err
    assert main(["model", "card", "model.safetensors", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["train"] == {"north": 1200, "east": 300}
