"""A meeting whose recipe is a graph: no program of the host runs on an owner's machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sealift.release.agreement.signed import load_verified
from tests.distributed.test_meeting import OWNERS, Parties

pytestmark = pytest.mark.distributed
JOB = "[training]\nepochs = {}\nbatch_rows = 32\nevaluate_every = 2\nseed = 7\n"


@pytest.fixture
def made() -> Iterator[Callable[[Path, str], Parties]]:
    found: list[Parties] = []

    def make(folder: Path, kind: str) -> Parties:
        parties = Parties(folder, 3)
        job = folder / "host" / "digits" / "job.toml"
        job.write_text(f'recipe = "{kind}"\n{JOB.format(3)}' if kind else JOB.format(3))
        found.append(parties)
        return parties

    yield make
    for each in (typed for parties in found for typed in parties.typed):
        if each.process.poll() is None:
            each.kill()


def train(parties: Parties) -> dict[str, torch.Tensor]:
    """Host and three owners to the end; the model."""
    host = parties.host("--invite", *OWNERS)
    owners = [parties.join(name) for name in OWNERS]
    codes = [each.end() for each in owners]
    assert host.end() == 0, host.text[-3000:]
    assert codes == [0, 0, 0], [each.text[-2000:] for each in owners]
    return dict(load_file(parties.folder / "host" / "model.safetensors"))


def test_a_graph_gives_what_the_program_gives(
    tmp_path: Path, made: Callable[[Path, str], Parties]
) -> None:
    """Proposed without a word in job.toml; the owners are told what runs on their machines."""
    (tmp_path / "graph").mkdir()
    (tmp_path / "code").mkdir()
    graph = made(tmp_path / "graph", "")
    model = train(graph)
    for name in OWNERS:
        home = graph.folder / name
        assert not [*home.rglob("*.py")]
        assert {e.name for e in (home / "graph").rglob("*") if e.is_file()} == {
            "graph.json", "weights.safetensors",
        }  # fmt: skip
    said = " ".join(graph.typed[1].text.replace("sealift:", "").split())
    assert "No program of host runs on your machine" in said
    assert "a list of 17 tensor operations" in said
    signed = load_verified(graph.folder / "east" / "agreement.json").agreement
    assert (signed.code.kind, signed.code.entry) == ("graph", "graph.json")
    program = made(tmp_path / "code", "code")
    other = train(program)
    assert model.keys() == other.keys()
    for name, each in model.items():
        torch.testing.assert_close(each, other[name], rtol=1e-4, atol=1e-5)
    numbers = [
        json.loads((p.folder / "host" / "run" / "manifest.json").read_text())
        for p in (graph, program)
    ]
    assert numbers[0].keys() == numbers[1].keys()
    said = " ".join(program.typed[1].text.replace("sealift:", "").split())
    assert "A program of host runs on your machine, in a sandbox" in said
