"""A look ahead at `host`: what would be declared, and what of it would be refused."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from sealift.cli.ahead import looks
from sealift.cli.main import main
from tests.sim.ownaddress import own_address

RECIPE = """
import torch
from torch import nn


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def training_step(self, batch, step):
        return nn.functional.cross_entropy(self.layer(batch["x"]), batch["y"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-2)


def build():
    return Line()
"""
SCHEMA = """
[[fields]]
name = "x"
dtype = "float32"
shape = [3]

[[fields]]
name = "y"
dtype = "int64"
classes = 2
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the host types; recipe/ lies there."""
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "recipe.py").write_text(RECIPE)
    (tmp_path / "recipe" / "schema.toml").write_text(SCHEMA)
    job = "[training]\nepochs = 3\nbatch_rows = 8\n"
    (tmp_path / "recipe" / "job.toml").write_text(job)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def free() -> str:
    return own_address()


Host = Callable[..., tuple[int, str]]


@pytest.fixture
def host(free: str, capsys: pytest.CaptureFixture[str]) -> Host:
    def typed(*words: str) -> tuple[int, str]:
        code = main(["host", "recipe", "--dry-run", "--listen", free, *words])
        return code, capsys.readouterr().out

    return typed


def refused(out: str) -> list[str]:
    lines = out.split("what is refused:\n")[1].split("\n\n")[0].splitlines()
    return [line.rpartition("[")[2][:-1] for line in lines if line.endswith("]")]


def test_host_would(folder: Path, host: Host, free: str) -> None:
    code, out = host("--invite", "north", "east")
    assert (code, refused(out)) == (0, [])
    assert f"host: the meeting, at {free}" in out
    assert "east: rank, with a sandboxed worker" in out
    assert "At level development, your rows stay on this machine." in out
    assert "The trained model goes to host" in out  # what guests are asked
    assert "3 epochs, in steps of 8 rows" in out
    assert "a step with random rows" in out
    assert "sealift-invitation-" not in out
    assert [each.name for each in folder.iterdir()] == ["recipe"]


def test_host_would_be_refused(
    folder: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks, "find_spec", lambda name: None)
    (folder / "recipe" / "schema.toml").write_text("fields = 1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        code, out = host("--invite", "north", "--days", "0", "--listen", place)
    assert refused(out)[0] == "invitation-expired"
    assert refused(out)[2:] == ["port-in-use", "extra-missing"]
    assert code == 5


def test_nobody_is_invited(folder: Path, host: Host) -> None:
    code, out = host()
    assert (code, refused(out)) == (2, ["nobody-invited"])


def test_an_address_that_means_every_one_is_in_no_invitation(
    folder: Path, host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    for listen in ("0.0.0.0:7420", "[::]:7420"):
        words = ["host", "recipe", "--invite", "north", "east", "--listen", listen]
        assert main(words) == 2
        said = capsys.readouterr()
        assert "[no-address]" in said.err
        assert "--address" in said.err
        assert said.out == ""
        assert (
            refused(host("--invite", "north", "east", *words[-2:])[1])[0]
            == "no-address"
        )
    assert [each.name for each in folder.iterdir()] == ["recipe"]


def test_one_owner_is_no_group(folder: Path, host: Host) -> None:
    """What could never be signed is refused before anybody is invited."""
    code, out = host("--invite", "north")
    assert (code, refused(out)) == (6, ["bad-agreement"])


def test_a_recipe_that_fails(
    folder: Path, host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "recipe" / "recipe.py").write_text("def build():\n    return 1 / 0\n")
    code, out = host("--invite", "north", "east")
    assert (code, refused(out)) == (7, ["recipe-error"])
    assert "the time is unknown" in out


def test_a_label_without_its_number_is_explained(folder: Path, host: Host) -> None:
    schema = folder / "recipe" / "schema.toml"
    schema.write_text(schema.read_text().replace("classes = 2\n", ""))
    code, out = host("--invite", "north", "east")
    assert (code, refused(out)) == (7, ["recipe-error"])
    assert "IndexError" in out
    assert "`classes`" in out
