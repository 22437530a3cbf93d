"""The four commands of the README, typed in four folders, with the README's own files."""

from __future__ import annotations

import csv
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.sim.ownaddress import own_address
from tests.sim.typed import Typed

pytestmark = [pytest.mark.distributed, pytest.mark.long]
README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
TOGETHER = README.partition("\n## Together")[2].partition("\n## ")[0]
OWNERS = ("north", "east", "south")
YES = (("Compare?", "y"), ("Sign?", "y"), ("compare the words with", "n"))


def boxes(kind: str) -> list[str]:
    """All of a kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", TOGETHER, re.M | re.S)


def box(kind: str) -> str:
    """The first one of a kind."""
    return boxes(kind)[0]


def command(verb: str) -> list[str]:
    """A line's words behind ``sealift``."""
    line = next(
        line for line in TOGETHER.splitlines() if line.startswith(f"sealift {verb}")
    )
    return shlex.split(line, comments=True)[1:]


@pytest.fixture
def typed() -> Iterator[list[Typed]]:
    found: list[Typed] = []
    yield found
    for each in found:
        if each.process.poll() is None:
            each.kill()


def write_rows(path: Path, seed: int) -> None:
    draw = np.random.default_rng(seed)
    age, dose = draw.normal(size=(2, 200))
    healed = (age + dose > 0).astype(int)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["age", "dose", "healed"])
        rows.writerows(zip(age.round(3), dose.round(3), healed, strict=True))


def draft_schema(home: Path) -> None:
    """A draft from a sample, to which the label's classes are added, as the README says."""
    write_rows(home / "sample.csv", 7)
    draft = Typed(home, *command("data schema"))
    assert draft.end() == 0, draft.text
    schema = home / "recipe" / "schema.toml"
    fields = tomllib.loads(schema.read_text())["fields"]
    fields[-1]["classes"] = 2
    names = ("name", "dtype", "classes")
    drafted = [{key: each[key] for key in names if key in each} for each in fields]
    assert drafted == tomllib.loads(box("toml"))["fields"]
    schema.write_text(box("toml"))


def test_four_commands_from_the_readme(tmp_path: Path, typed: list[Typed]) -> None:
    recipe = tmp_path / "host" / "recipe"
    recipe.mkdir(parents=True)
    (recipe / "recipe.py").write_text(box("python"))
    draft_schema(tmp_path / "host")
    for number, name in enumerate(OWNERS):
        (tmp_path / name).mkdir()
        write_rows(tmp_path / name / "train.csv", number)
    address = own_address()
    words = [address if ":7420" in each else each for each in command("host")]
    host = Typed(tmp_path / "host", *words)
    typed.append(host)
    host.wait_text("send each party its line")
    invitations = dict(re.findall(r"(\w+)  (sealift-invitation-[\w-]+)", host.text))
    for name in OWNERS:
        words = command("join")
        (tmp_path / name / words[1]).write_text(f"{invitations[name]}\n")
        typed.append(Typed(tmp_path / name, *words, answers=YES))
    for each in (*typed[1:], host):
        assert each.end() == 0, each.text[-3000:]
    there = Typed(tmp_path / "host", *command("receipt verify"))
    assert there.end() == 0, there.text
    assert "model.safetensors is the file" in there.text
    use_the_model(tmp_path / "host")
    here = Typed(tmp_path / "east", *command("receipt verify receipt.json --with-log"))
    assert here.end() == 0, here.text
    assert re.search(r"parties compared +no", here.text)


def use_the_model(home: Path) -> None:
    """A card, predictions from a table without labels, and the same in plain PyTorch."""
    card = Typed(home, *command("model card"))
    assert card.end() == 0, card.text
    assert "trained by  east, north and south" in card.text
    (home / "new.csv").write_text("age,dose\n1.5,-0.5\n-0.25,2.0\n")
    predict = Typed(home, *command("predict"))
    assert predict.end() == 0, predict.text
    name, *found = (home / "predictions.csv").read_text().split()
    asked = (
        'import torch\nrows = {"age": torch.tensor([1.5, -0.25]), "dose": torch.tensor([-0.5, 2.0])}\n'
        "print(*model(rows).softmax(1)[:, 1].tolist())\n"
    )
    assert (
        'model.load_state_dict(safetensors.torch.load_file("model.safetensors"))'
        in TOGETHER
    )
    lines = (
        "import safetensors.torch\nfrom recipe.recipe import build\nmodel = build()\n"
        'model.load_state_dict(safetensors.torch.load_file("model.safetensors"))\n'
    ) + asked
    ran = subprocess.run(
        [sys.executable, "-c", lines],
        check=False,
        cwd=home,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert name == "healed"
    assert [*map(float, found)] == pytest.approx(
        [*map(float, ran.stdout.split())], abs=2e-6
    )


def test_a_recipe_that_cannot_run_costs_nobodys_signature(
    tmp_path: Path, typed: list[Typed]
) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "recipe.py").write_text("class Model: ...\n")
    (tmp_path / "recipe" / "schema.toml").write_text(box("toml"))
    host = Typed(tmp_path, "host", "recipe", "--invite", "north", "east")
    typed.append(host)
    assert host.end() == 7, host.text
    assert "build() [bad-recipe]" in host.text
    assert "sealift-invitation-" not in host.text
    assert not (tmp_path / "meeting.db").exists()
