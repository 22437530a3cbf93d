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
from tests.unit.graph import larger
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

PARAMETERS = f"""{HEAD}
def build(width=8, rate=0.01, decay=0.2, drop=0.3):
    model = nn.Sequential(nn.Linear(6, width), nn.Dropout(drop), nn.Linear(width, 3))
    model.rate, model.decay = rate, decay
    return model


def loss(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])


def configure_optimizers(model):
    return torch.optim.AdamW(
        model.parameters(), lr=model.rate, weight_decay=model.decay
    )
"""
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


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        pytest.param(larger.CNN, larger.IMAGES, id="convolutions"),
        pytest.param(
            larger.RESNET, larger.IMAGES, id="resnet18", marks=pytest.mark.long
        ),
        pytest.param(larger.GPT, larger.TOKENS, id="gpt"),
        pytest.param(larger.LORA, larger.TOKENS, id="lora"),
    ],
)
def test_models_that_people_train_train_to_the_same_bits(
    text: str, schema: Schema
) -> None:
    assert train_both(text, schema) == 0.0


SEQUENCES = Schema((Field("x", "float32", (9, 6)), Field("y", "int64", classes=3)))
RECURRENT = f"""{HEAD}
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.KIND(6, 8, num_layers=2, batch_first=True, dropout=0.3, bidirectional=True)
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        return self.out(self.layers(x)[0][:, -1])


def build():
    return Reader()

{TAIL}
"""


@pytest.mark.parametrize(
    "kind", ["RNN", *(pytest.param(e, marks=pytest.mark.long) for e in ("LSTM", "GRU"))]
)
def test_recurrent_layers_train_as_they_do_in_torch(kind: str) -> None:
    """Step by step, as torch's own do not: the last bit differs, a dropout does not."""
    assert train_both(RECURRENT.replace("KIND", kind), SEQUENCES) < 1e-6


def test_a_long_sequence_is_refused_before_its_steps_are_followed() -> None:
    schema = Schema((Field("x", "float32", (51, 6)), Field("y", "int64", classes=3)))
    with pytest.raises(SealiftError, match="204 steps") as caught:
        export(RECURRENT.replace("KIND", "GRU"), schema)
    assert caught.value.code == "no-graph"


def test_what_lora_does_not_train_is_frozen_and_in_no_gradient() -> None:
    graph = load(export(larger.LORA, larger.TOKENS))
    model, batch = graph.build(), rows_for(larger.TOKENS, 3)
    kinds = {e.name: e.kind for e in graph.document.state}
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert trained == {n for n in kinds if n.endswith((".qkv.a", ".qkv.b"))}
    torch.manual_seed(0)
    found = row_gradients(graph, model, batch, 0)
    assert set(found) == trained
    assert all(len(each) == 3 for each in found.values())


def test_options_that_follow_the_job_s_parameters_name_them() -> None:
    values = {"rate": 0.02, "decay": 0.1, "drop": 0.1, "width": 16}
    graph = load(export(PARAMETERS, VECTORS, parameters=values))
    assert graph.options_named == {"rate", "decay"}
    model = graph.build(parameters={"rate": 0.5})
    assert graph.optimization(model).optimizer.param_groups[0]["lr"] == 0.5
    with pytest.raises(SealiftError, match="is fixed in its graph"):
        graph.build(parameters={"drop": 0.5})
    with pytest.raises(SealiftError, match="no argument"):
        graph.build(parameters={"other": 1})


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


def test_a_model_that_depends_on_sums_is_told_before_it_is_followed() -> None:
    with pytest.raises(SealiftError, match="sums of prepare") as found:
        export(MLP.replace("def build(", "def build(statistics"), VECTORS)
    assert found.value.code == "no-graph"


def test_a_step_that_depends_on_rows_is_told_with_its_line() -> None:
    text = MLP.replace(
        "    return F.cross", "    if batch['x'].sum() > 0: pass\n    return F.cross"
    )
    with pytest.raises(
        SealiftError, match=r"recipe\.py:\d+.*depends on values of the rows"
    ):
        export(text, VECTORS)


STEP = """
def configure_optimizers(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)
"""
OF_ROWS = {
    "squares": 'F.mse_loss(model(batch["x"]), batch["x"][:, :3])',
    "squares-of-rows": 'F.mse_loss(out, batch["x"][:, :3], reduction="none").mean()',
    "entropies": 'F.cross_entropy(out, batch["y"], reduction="none").mean()',
    "focal": '((1 - (-F.cross_entropy(out, batch["y"], reduction="none")).exp()) ** 2).sum()',
    "weighted": """F.cross_entropy(
        out, batch["y"], weight=torch.tensor([0.5, 1.0, 2.0]), ignore_index=1,
        reduction="none",
    ).mean()""",
    "likelihoods": 'F.nll_loss(out.log_softmax(1), batch["y"], reduction="none").sum()',
    "squeezed": 'F.cross_entropy(out.unsqueeze(1).squeeze(1), batch["y"])',
    "new": 'F.cross_entropy(out + out.new_zeros(len(out), 3), batch["y"])',
}


@pytest.mark.parametrize("name", OF_ROWS)
def test_losses_as_they_are_usually_written_have_a_graph(name: str) -> None:
    model = MLP.partition("def loss")[0]
    loss = f"""
def loss(model, batch):
    out = model(batch["x"])
    return {OF_ROWS[name]}
"""
    assert train_both(model + loss + STEP, VECTORS) < 1e-6
