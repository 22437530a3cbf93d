"""What a host proposes: its recipe as a graph, or the program and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from sealift.codec import parse_toml
from sealift.data.schema.document import schema_from_plain
from sealift.errors import JobError, UsageError
from sealift.graph.document import read_graph
from sealift.graph.export import export_recipe
from sealift.meet import proposal
from sealift.meet.declaration import job_text
from sealift.meet.proposal import proposed_graph
from sealift.train.job.settings import parse_job
from sealift.train.loop.held import Held
from sealift.train.loop.tasks import Rehearsal
from sealift.train.sandboxed.recipe import Recipe, let_through
from sealift.train.worker.messages import TrialOrder
from sealift.train.worker.trial import ExportedGraph

RECIPE = """
import torch
from torch import nn


def build(width=2, rate=0.1):
    model = nn.Sequential(nn.Linear(1, width), nn.Linear(width, 2))
    model[0].requires_grad_({trained})
    model.rate = rate
    return model


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch["age"].reshape(-1, 1)), batch["ward"])


def configure_optimizers(model):
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=model.rate)
"""
SCHEMA = """
[[fields]]
name = "age"
dtype = "float32"

[[fields]]
name = "ward"
dtype = "int64"
classes = 2
"""
TRIED = Rehearsal(steps=2, losses=(1.0, 1.0), metrics={"loss": 1.0})
Propose = Callable[..., Mapping[str, int] | None]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which recipes were written down; here, and not in a sandbox."""
    found: list[str] = []

    def export(
        files: dict[str, bytes], order: TrialOrder, **_how: Any
    ) -> ExportedGraph:
        found.append(order.entry)
        recipe = Recipe(files, order.entry, guard=let_through)
        schema = schema_from_plain(order.schema)
        made = export_recipe(
            recipe, schema, parameters=order.settings.parameters, rows=order.rows
        )
        weights = made["assets/weights.safetensors"]
        return ExportedGraph(made["graph.json"], Held.of(weights), TRIED)

    monkeypatch.setattr(proposal.trial, "export_recipe", export)
    return found


@pytest.fixture
def propose(tmp_path: Path, said: list[str], exports: list[str]) -> Propose:
    def made(job: str = "", *, trained: bool = True) -> Mapping[str, int] | None:
        recipe = tmp_path / "wards"
        recipe.mkdir(exist_ok=True)
        (recipe / "recipe.py").write_text(RECIPE.replace("{trained}", str(trained)))
        (recipe / "schema.toml").write_text(SCHEMA)
        (recipe / "job.toml").write_text(job)
        text = job_text(recipe, "wards", 2, "127.0.0.1:1")
        read = parse_job(parse_toml(text.encode(), source="job"))
        folder = tmp_path / "graph"
        return proposed_graph(recipe, folder, read, TRIED, steps=2, tell=said.append)

    return made


def test_a_graph_is_written_once(
    propose: Propose, tmp_path: Path, said: list[str], exports: list[str]
) -> None:
    """The same command declares the same bytes; another recipe or seed makes another graph."""
    counts = propose()
    assert counts is not None
    assert f"a graph of {sum(counts.values())} tensor operations" in said[-1]
    first = (tmp_path / "graph" / "graph.json").read_bytes()
    assert read_graph(first).counts() == counts
    assert propose() == counts
    assert exports == ["recipe.py"]
    propose("[training]\nseed = 3\n")
    assert exports == ["recipe.py"] * 2
    (tmp_path / "graph" / "graph.json").write_bytes(first[:-1])
    propose("[training]\nseed = 3\n")
    assert exports == ["recipe.py"] * 3


def test_what_cannot_be_a_graph_stays_a_program_and_says_why(
    propose: Propose, tmp_path: Path, said: list[str]
) -> None:
    assert propose(trained=False) is None
    assert "it freezes weights that are in none of its assets" in said[-1]
    with pytest.raises(JobError) as caught:
        propose('recipe = "graph"\n', trained=False)
    assert caught.value.code == "no-graph"
    assert not (tmp_path / "graph").exists()


def test_later_runs_change_options_of_the_optimizer_alone(
    propose: Propose, said: list[str]
) -> None:
    own = "[parameters]\nwidth = 2\nrate = 0.1\n[agreed]\nruns = 2\n"
    assert propose(f"{own}parameters.rate = {{ min = 0.01, max = 1 }}\n") is not None
    assert propose(f"{own}parameters.width = {{ min = 1, max = 4 }}\n") is None
    assert "later runs may change width" in said[-1]


def test_a_host_that_wants_a_program_exports_nothing(
    propose: Propose, exports: list[str]
) -> None:
    assert propose('recipe = "code"\n') is None
    assert exports == []


def test_a_folder_that_is_no_graphs_stays_as_it_is(
    propose: Propose, tmp_path: Path
) -> None:
    (tmp_path / "graph").mkdir()
    with pytest.raises(UsageError) as caught:
        propose()
    assert caught.value.code == "file-in-the-way"
