"""Recipes become lists of operations that train as they do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import sealift.demo
from sealift.data.schema.schema import Field, Schema
from sealift.errors import SealiftError
from sealift.graph.document import read_graph
from sealift.train.sandboxed.privatesteps import row_gradients
from tests.unit.graph.models import (
    HEAD,
    MLP,
    TAIL,
    VECTORS,
    export,
    load,
    program,
    rows_for,
    train_both,
)

DEMO = Path(sealift.demo.__file__).parent
DIGITS = Schema(
    (
        Field("pixels", "float32", (64,), minimum=0, maximum=16),
        Field("label", "int64", classes=10),
    )
)
TEXT = Schema((Field("text", "uint8", (64,)),))


@pytest.mark.parametrize(("task", "schema"), [("digits", DIGITS), ("text", TEXT)])
def test_the_demo_s_recipes_train_to_the_same_bits(task: str, schema: Schema) -> None:
    text = (DEMO / task / "recipe.py").read_text()
    assert train_both(text, schema) == 0.0


def test_measures_and_answers_are_the_program_s() -> None:
    text = (DEMO / "digits/recipe.py").read_text()
    own, graph = program(text), load(export(text, DIGITS))
    batch = rows_for(DIGITS, 5)
    model, mine = own.build(), graph.build()
    model.load_state_dict(mine.state_dict())
    model.eval()
    with torch.no_grad():
        assert graph.evaluate(mine, batch) == own.evaluate(model, batch)
        answer, wanted = graph.predict(mine, batch), own.predict(model, batch)
    assert all(torch.equal(answer[name], wanted[name]) for name in wanted)


def test_the_mean_of_the_rows_gradients_is_the_batch_s() -> None:
    graph = load(export(MLP, VECTORS))
    model, batch = graph.build(), rows_for(VECTORS, 7)
    graph.loss(model, batch, 0).backward()
    found = row_gradients(graph, model, batch, 0)
    for name, each in model.named_parameters():
        assert found[name].shape == (7, *each.shape)
        assert torch.allclose(found[name].mean(0), each.grad, atol=1e-6)


def test_batchnorm_goes_on_and_has_no_gradient_of_one_row() -> None:
    text = f"""{HEAD}
def build():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
{TAIL}"""
    assert train_both(text, VECTORS) < 1e-6
    graph = load(export(text, VECTORS))
    assert graph.graph("loss").mixes_rows


def test_a_document_reads_back_as_it_was_written() -> None:
    files = export(MLP, VECTORS)
    document = read_graph(files["graph.json"])
    assert document.to_bytes() == files["graph.json"]
    assert document.counts()["linear"] == 4


def test_an_operation_that_is_not_listed_is_told_with_its_line() -> None:
    text = MLP.replace(
        "F.cross_entropy(", "torch.linalg.det(torch.eye(2)) * F.cross_entropy("
    )
    with pytest.raises(SealiftError, match=r"recipe\.py:\d+.*not on the list") as found:
        export(text, VECTORS)
    assert found.value.code == "no-graph"


def test_a_step_that_depends_on_rows_is_told_with_its_line() -> None:
    text = MLP.replace(
        "    return F.cross", "    if batch['x'].sum() > 0: pass\n    return F.cross"
    )
    with pytest.raises(
        SealiftError, match=r"recipe\.py:\d+.*depends on values of the rows"
    ):
        export(text, VECTORS)
