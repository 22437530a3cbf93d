"""Where a graph recipe stands in for a program: loading, tasks, gradients of rows."""

from __future__ import annotations

import resource
import sys
from typing import Any, cast

import pytest
import torch

from sealift import recipes
from sealift.data.schema.document import schema_to_plain
from sealift.errors import JobError, MalformedError
from sealift.release.agreement.terms import GRAPH_ENTRY
from sealift.release.agreement.training import PrivateSteps
from sealift.train.loop.tasks import SliceTask, StepForm, TaskInputs, TaskParent
from sealift.train.sandboxed.carryout import carry_out, rehearse_beforehand
from sealift.train.sandboxed.graphrecipe import GraphRecipe, load_recipe
from sealift.train.sandboxed.imports import unnoticed
from sealift.train.sandboxed.mechanism import room_for
from sealift.train.sandboxed.placement import HERE
from sealift.train.sandboxed.privatesteps import PrivateGradients, row_gradients
from sealift.train.sandboxed.recipe import let_through
from sealift.travel.settings import TrainingSettings
from tests.unit.graph.models import HEAD, MLP, TAIL, VECTORS, export, load, rows_for

NORMED = f"""{HEAD}
def build():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
{TAIL}"""


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return export(MLP, VECTORS)


def test_the_mean_of_the_rows_gradients_is_the_batch_s(files: dict[str, bytes]) -> None:
    graph = load(files)
    model, batch = graph.build(), rows_for(VECTORS, 7)
    graph.loss(model, batch, 0).backward()
    found = row_gradients(graph, model, batch, 0)
    for name, each in model.named_parameters():
        assert found[name].shape == (7, *each.shape)
        assert each.grad is not None
        assert torch.allclose(found[name].mean(0), each.grad, atol=1e-6)


def test_private_steps_refuse_a_graph_that_mixes_rows() -> None:
    graph = load(export(NORMED, VECTORS))
    with pytest.raises(JobError, match="GroupNorm"):
        PrivateGradients(
            graph, graph.build(), PrivateSteps(1.0, 1.0, 4), 8,
            lambda some: rows_for(VECTORS, len(some)),
            placement=HERE, guard=let_through,
        )  # fmt: skip


def test_no_python_of_a_bundle_is_loaded(files: dict[str, bytes]) -> None:
    own = {n: memoryview(e) for n, e in files.items() if n != GRAPH_ENTRY}
    recipes.provide_assets(own)
    bundle = {GRAPH_ENTRY: files[GRAPH_ENTRY], "recipe.py": b"raise SystemExit"}
    finders, modules, noticed = list(sys.meta_path), set(sys.modules), list[str]()
    found = load_recipe(bundle, GRAPH_ENTRY, notice=noticed.append)
    model = found.build()
    found.optimization(model)
    found.loss(model, rows_for(VECTORS, 3), 0)  # type: ignore[arg-type]
    assert isinstance(found, GraphRecipe)
    assert sys.meta_path == finders
    assert not noticed
    assert "recipe" not in set(sys.modules) - modules


def test_a_bundle_without_its_files_is_refused(files: dict[str, bytes]) -> None:
    with pytest.raises(
        MalformedError, match=r"weights\.safetensors is missing"
    ) as none:
        load_recipe({GRAPH_ENTRY: files[GRAPH_ENTRY]}, GRAPH_ENTRY)
    assert none.value.code == "bad-graph"
    with pytest.raises(MalformedError) as other:
        load_recipe({}, GRAPH_ENTRY)
    assert other.value.code == "bad-entry"


def rehearse(files: dict[str, bytes], **more: Any) -> None:
    own = {n: memoryview(e) for n, e in files.items() if n != GRAPH_ENTRY}
    recipes.provide_assets(own)
    plain = schema_to_plain(VECTORS)
    forms = StepForm("train", 4, plain), StepForm("evaluate", 4, plain)
    settings = TrainingSettings(batch_rows=4)
    task = SliceTask("rehearse", settings, forms=forms, **more)
    bundle = {GRAPH_ENTRY: files[GRAPH_ENTRY]}
    carry_out(
        task, TaskInputs(), bundle, GRAPH_ENTRY, guard=let_through,
        parent=cast(TaskParent, None),  # a rehearsal tells nothing
    )  # fmt: skip


def test_a_task_whose_batches_take_too_much_is_refused(
    files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearse(files)
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (1 << 10, 1 << 10))
    with pytest.raises(MalformedError, match="GiB of memory") as found:
        rehearse(files)
    assert found.value.code == "bad-graph"


def test_a_rehearsal_beforehand_whose_batches_take_too_much_is_refused(
    files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {n: memoryview(e) for n, e in files.items() if n != GRAPH_ENTRY}
    recipes.provide_assets(own)
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (1 << 10, 1 << 10))
    task = SliceTask("rehearse", TrainingSettings(batch_rows=4))
    with pytest.raises(MalformedError, match="GiB of memory"):
        rehearse_beforehand(
            task, {GRAPH_ENTRY: files[GRAPH_ENTRY]}, GRAPH_ENTRY, guard=let_through,
            notice=unnoticed, placement=HERE, is_enough=lambda: False,
        )  # fmt: skip


def test_an_answer_that_takes_too_much_is_refused_before_it_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server knows how many rows it answers only as they are asked."""
    answers = 'def predict(model, batch):\n    return model(batch["x"])\n'
    graph = load(export(MLP + answers, VECTORS))
    model, batch = graph.build(), rows_for(VECTORS, 7)
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (1 << 5, 1 << 5))
    with pytest.raises(MalformedError, match="graph predict with a batch of 7 rows"):
        graph.predict(model, batch)


def test_private_steps_measure_as_many_rows_as_they_compute_at_once(
    files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = load(files)
    bounded = list[tuple[int, int]]()

    def demand(rows: int, name: str, *, copies: int) -> None:
        assert name == "loss"
        bounded.append((rows, copies))

    monkeypatch.setattr(graph, "demand_room", demand)
    PrivateGradients(
        graph, graph.build(), PrivateSteps(1.0, 1.0, 4), 8,
        lambda some: rows_for(VECTORS, len(some)), placement=HERE, guard=let_through,
    )  # fmt: skip
    [(rows, copies)] = bounded
    assert (rows, copies) == (1, room_for(8, 0.5))


def test_products_of_a_graph_cannot_be_outsourced(files: dict[str, bytes]) -> None:
    with pytest.raises(JobError, match="cannot be outsourced"):
        rehearse(files, outsourced=True)
