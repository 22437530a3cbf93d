"""Three hospitals' tables, from a draft of the schema to predictions, typed at terminals.

The tasks of a newcomer: a table that does not fit is refused at home and mended in the owner's
``table.toml``; host and owners train, and measure with AUC; a second run has more epochs without
a new signature, is killed, and goes on; the model predicts on a new table and has a card; a
changed recipe is refused.
"""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sealift.train.output.modelfacts import read_facts
from tests.newcomer.hospitals import OWN_TABLE, STYLES, Style, write_table
from tests.newcomer.parties import SIGN, YES, Newcomers

pytestmark = pytest.mark.distributed
# So many that by the chance of a key no class has fewer than 16 rows held out.
ROWS = {"north": 440, "east": 400, "south": 420}
RECIPE = """
import torch
from torch import nn

from sealift.recipes import measures


class Model(nn.Module):
    def __init__(self, hidden, rate):
        super().__init__()
        self.rate = rate
        self.layers = nn.Sequential(nn.Linear(8, hidden), nn.GELU(), nn.Linear(hidden, 2))

    def forward(self, batch):
        columns = [
            (batch["age"] - 60) / 12,
            batch["sex"].float(),
            *nn.functional.one_hot(batch["smoker"], 3).float().T,
            (batch["admitted"].float() - 19700) / 365,
            batch["creatinine"],
            batch["creatinine_missing"].float(),
        ]
        return self.layers(torch.stack(columns, dim=1))

    def training_step(self, batch, step):
        return nn.functional.cross_entropy(self(batch), batch["readmitted"])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.rate)


def build(hidden, rate=0.01):
    return Model(hidden, rate)


def predict(model, batch):
    return {"readmitted": model(batch).softmax(1)[:, 1]}


def evaluate(model, batch):
    logits, label = model(batch), batch["readmitted"]
    return {
        **measures.count_classes(logits.argmax(1), label, classes=2),
        **measures.count_scores(logits.softmax(1)[:, 1], label),
    }
"""
JOB = """
[training]
epochs = {}
evaluate_every = 1

[parameters]
hidden = 16

[run]
checkpoint_every = 1
gather_s = 600
rejoin_s = 600

[agreed]
runs = 3
epochs = {{ max = 30 }}
"""


@pytest.fixture
def parties(tmp_path: Path) -> Iterator[Newcomers]:
    made = Newcomers(tmp_path, [*ROWS], "readmission")
    for seed, (name, rows) in enumerate(ROWS.items()):
        write_table(tmp_path / name / "train.csv", STYLES[name], rows, seed=seed)
    write_table(made.home / "sample.csv", Style(), 60, seed=9)
    yield made
    made.close()


def test_three_hospitals(
    parties: Newcomers, record_property: Callable[[str, object], None]
) -> None:
    began_s = time.monotonic()
    write_recipe(parties)
    compared = refuse_tables_at_home(parties)
    host = parties.host()
    owners = parties.join(
        "train.csv",
        "--stay",
        answers={"north": YES, "east": YES, "south": SIGN if compared else YES},
    )
    assert host.end() == 0, host.text[-5000:]
    first = (parties.home / "model.safetensors").read_bytes()
    facts = read_facts(parties.home / "model.safetensors")
    assert {n: facts.train[n] + facts.heldout[n] for n in ROWS} == ROWS
    assert {"accuracy", "majority", "auc", "auc_error", "recall"} <= {*facts.measures}
    for name, owner in owners.items():
        owner.wait_text("waiting for the host's next run")
        held = f"your {facts.heldout[name]} held-out rows"
        assert re.search(rf"{held}.*auc \S+ ±\S+ \(all owners", owner.text)

    train_more_and_kill(parties)
    assert (parties.home / "model.safetensors").read_bytes() == first
    verify_at_an_owner(parties)
    use_the_model(parties)
    change_the_recipe(parties)
    assert all(each.process.poll() is None for each in owners.values())
    took_s = time.monotonic() - began_s
    record_property("figure", f"newcomer's tables, eight tasks: {took_s:.0f} s")


def write_recipe(parties: Newcomers) -> None:
    """The schema is drafted; its label gets its number of classes, as the README says."""
    words = ["data", "schema", "sample.csv", "-o", "readmission/schema.toml"]
    parties.run("host", *words)
    with (parties.recipe / "schema.toml").open("a") as file:
        file.write("classes = 2\n")
    (parties.recipe / "recipe.py").write_text(RECIPE)
    (parties.recipe / "job.toml").write_text(JOB.format(2))


def refuse_tables_at_home(parties: Newcomers) -> bool:
    """Two of the tables do not fit: their owners alone hear why, and nobody has signed.

    Whether the third was compared before the meeting ended: it is not asked for that again.
    """
    host = parties.invite()
    owners = parties.join("train.csv", answers=dict.fromkeys(ROWS, YES[:1]))
    assert host.end() == 5, host.text[-3000:]
    assert "[meeting-declined]" in host.text
    ends = {name: owner.end() for name, owner in owners.items()}
    assert ends == {"north": 6, "east": 6, "south": 5}
    for cell in ("Fall-Nr.", "Kreatinin"):
        assert cell in owners["north"].text
        assert cell not in host.text + owners["south"].text
    assert "femlae" in owners["east"].text
    assert "femlae" not in host.text + owners["north"].text
    # What is known of the host's schema by now is compared ahead, too.
    for name, code in {"north": 6, "east": 6}.items():
        words = ["join", "invitation.txt", "train.csv", "--check"]
        looked = parties.type(name, *words)
        assert looked.end() == code, looked.text
        (parties.folder / name / "table.toml").write_text(OWN_TABLE[name])
    return "that your table fits" in owners["south"].text


def train_more_and_kill(parties: Newcomers) -> None:
    """More epochs without a new signature; host and one owner are killed in the midst."""
    (parties.recipe / "job.toml").write_text(JOB.format(30))  # they last past the kill
    host = parties.host()
    host.wait_text("train epoch 3 of 30")
    host.kill()
    host = parties.host()
    assert host.end() == 0, host.text[-5000:]
    assert "train epoch 1 of" not in host.text
    assert "which has no model of one owner's rows alone" in host.text
    assert (parties.home / "model-2.safetensors").stat().st_size


def verify_at_an_owner(parties: Newcomers) -> None:
    report = (parties.folder / "north" / "run-2" / "report.html").read_text()
    assert "no model of your rows alone is trained any more" in report
    words = ["receipt", "verify", "run-2/receipt.json", "--with-log", "audit.db"]
    text = parties.run("north", *words, "--model", "../host/model-2.safetensors")
    assert "resumed 1 time" in text


def use_the_model(parties: Newcomers) -> None:
    """A new table of north's kind, without labels; and what the file says of itself."""
    write_table(parties.home / "new.csv", STYLES["north"], 12, seed=5, labels=False)
    (parties.home / "table.toml").write_text(OWN_TABLE["north"])
    words = ["predict", "model-2.safetensors", "new.csv", "-o", "predictions.csv"]
    parties.run("host", *words)
    with (parties.home / "predictions.csv").open() as file:
        found = [float(row["readmitted"]) for row in csv.DictReader(file)]
    assert len(found) == 12
    assert all(0 <= each <= 1 for each in found)
    card = parties.run("host", "model", "card", "model-2.safetensors")
    for said in ("auc", *ROWS, "female", "creatinine_missing", "hidden 16"):
        assert said in card
    assert "patient_id" not in card


def change_the_recipe(parties: Newcomers) -> None:
    """Other code is another agreement; the models that are there stay."""
    with (parties.recipe / "recipe.py").open("a") as file:
        file.write("# changed\n")
    host = parties.host()
    assert host.end() == 5
    assert "[recipe-signed]" in host.text
    (parties.recipe / "recipe.py").write_text(RECIPE)
