"""Three owners whose files are written in three ways train together, and nothing of that leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sealift.data.schema.card import read_card
from tests.sim.joining import meet

pytestmark = [pytest.mark.distributed, pytest.mark.long]
RECIPE = """
import torch
from torch import nn


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(2, 2)

    def training_step(self, batch, step):
        inputs = torch.stack([batch["mean_0"], batch["born"].float() / 1e4], dim=1)
        return nn.functional.cross_entropy(self.line(inputs), batch["clinic_type"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def build():
    return Line()
"""
# As `data schema` drafts it from the first owner's header.
SCHEMA = """
leave_out = ["remark"]

[[fields]]
name = "mean_0"
dtype = "float32"
column = "Mean 0"

[[fields]]
name = "born"
dtype = "int32"
date = "%d.%m.%Y"

[[fields]]
name = "clinic_type"
dtype = "int64"
column = "clinic type"
categories = ["day", "night"]
"""
NORTH = "Mean 0;born;clinic type;remark", "{mean};{day:02}.12.1980;{kind};ok"
SOUTH = "clinic_type,mean_0,born", "{kind},{mean},{day:02}.12.1980"  # the fields' names
WEST = "Station\tMittel\tgeb.\tNr", "{kind}\t{mean} %\t1980-12-{day:02}\t{day}"
OWN = """
decimal = "."
units = ["%"]
leave_out = ["Nr"]
[columns]
mean_0 = "Mittel"
born = "geb."
clinic_type = "Station"
[dates]
born = "%Y-%m-%d"
[synonyms.clinic_type]
"tags" = "day"
"nachts" = "night"
"""


def write(home: Path, form: tuple[str, str], kinds: tuple[str, str]) -> None:
    home.mkdir()
    rows = [
        form[1].format(mean=row / 8, day=row % 28 + 1, kind=kinds[row % 2])
        for row in range(80)
    ]
    (home / "train.csv").write_text("\n".join([form[0], *rows]) + "\n")


def test_what_columns_are_called_is_each_owners_own(tmp_path: Path) -> None:
    recipe = tmp_path / "host" / "kinds"
    recipe.mkdir(parents=True)
    (recipe / "recipe.py").write_text(RECIPE)
    (recipe / "schema.toml").write_text(SCHEMA)
    write(tmp_path / "north", NORTH, ("day", "night"))
    write(tmp_path / "south", SOUTH, ("day", "night"))
    write(tmp_path / "west", WEST, ("tags", "nachts"))
    (tmp_path / "west" / "table.toml").write_text(OWN)
    owners = ["north", "south", "west"]
    meet(tmp_path, dict.fromkeys(owners, ("train.csv", None)))
    cards = [
        read_card(tmp_path / name / "sealed" / f"{name}-train.resource.json")
        for name in owners
    ]
    assert cards[0].schema == cards[1].schema == cards[2].schema
    assert len({json.dumps(each.resource.schema) for each in cards}) == 1
    own = [word.encode() for word in ("Mittel", "geb.", "Station", "tags", "nachts")]
    for home in ("host", "north", "south"):
        for path in (tmp_path / home).rglob("*"):
            content = path.read_bytes() if path.is_file() else b""
            assert not any(word in content for word in own), path
