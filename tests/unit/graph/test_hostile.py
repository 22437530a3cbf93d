"""A document that is not whole is refused by one line, and nothing of it runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sealift.codec import encode
from sealift.data.schema.schema import Field, Schema
from sealift.errors import JobError, MalformedError, SealiftError
from sealift.graph.bounds import demand_bounds
from sealift.graph.document import read_graph
from sealift.release.agreement.terms import GRAPH_ENTRY
from sealift.train.sandboxed.graphrecipe import GraphRecipe
from tests.unit.graph.models import HEAD, TAIL, VECTORS, export, load, rows_for

TEXT = f"""{HEAD}
def build():
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3)
    )


def predict(model, batch):
    return model(batch["x"]).softmax(1)


def prepare(batch):
    return {{"sum": batch["x"].sum(0), "rows": len(batch["x"])}}
{TAIL}
"""
IMAGES = Schema((Field("x", "float32", (3, 8, 8)), Field("y", "int64", classes=3)))
Plain = dict[str, Any]


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return export(TEXT, VECTORS)


def change(files: dict[str, bytes], work: Callable[[Plain], object]) -> bytes:
    plain = json.loads(files[GRAPH_ENTRY])
    work(plain)
    return encode(plain)


def node(plain: Plain, operation: str) -> Plain:
    return next(n for n in plain["loss"]["nodes"] if n["operation"] == operation)


def a_loss_that_is_a_vector(p: Plain) -> None:
    node(p, "cross_entropy_loss")["arguments"][3] = 0
    node(p, "cross_entropy_loss")["results"][0]["shape"] = ["rows"]


def a_constant_too_large(p: Plain) -> None:
    entry = {"name": "c", "kind": "constant", "dtype": "float32", "same_as": ""}
    p["state"].append(entry | {"shape": [1 << 30]})


def too_many_outputs(p: Plain) -> None:
    outputs = p["evaluate"]["outputs"]
    outputs.update({f"n{place}": outputs["loss"] for place in range(1_001)})


def a_mask_as_index(p: Plain) -> None:
    node(p, "relu").update(
        operation="index.Tensor",
        arguments=[0, [0]],
        results=[{"dtype": "float32", "shape": ["rows", 6]}],
    )


def whole_numbers_cut_off(p: Plain) -> None:
    p["prepare"]["nodes"].append(
        {
            "operation": "div.Tensor_mode",
            "arguments": [1, "=-1", "trunc"],
            "results": [{"dtype": "int64", "shape": ["rows"]}],
        }
    )


def add_state(p: Plain, kind: str, dtype: str = "float32", same_as: str = "") -> None:
    entry = {"name": "c", "kind": kind, "dtype": dtype, "same_as": same_as}
    p["state"].append(entry | {"shape": [8, 6]})


def options(p: Plain) -> Plain:
    found: Plain = p["optimizer"]["groups"][0]["options"]
    return found


def schedule(p: Plain, name: str, **given: Any) -> None:
    named = {"name": name, "options": given, "interval": "step", "frequency": 1}
    p["optimizer"]["schedules"].append(named)


BAD: dict[str, tuple[Callable[[Plain], object], str]] = {
    "unknown-operation": (
        lambda p: node(p, "relu").update(operation="nonzero"),
        r"graph loss, operation 3 \(nonzero\): this operation is not on the list",
    ),
    "python": (
        lambda p: node(p, "relu").update(operation="__import__"),
        "not on the list",
    ),
    "own-result": (
        lambda p: node(p, "relu")["arguments"].__setitem__(0, 4000),
        "is a value that is computed only later",
    ),
    "negative-value": (
        lambda p: node(p, "relu")["arguments"].__setitem__(0, -1),
        "must be a value",
    ),
    "shape": (
        lambda p: node(p, "linear")["results"][0].update(shape=["rows", 9]),
        r"it gives \[2, 8\], but the graph states \[2, 9\]",
    ),
    "shape-of-weight": (
        lambda p: p["state"][0].update(shape=[8, 7]),
        "do not fit",
    ),
    "shape-for-one-number-of-rows": (
        lambda p: node(p, "linear")["results"][0].update(shape=[2, 8]),
        r"it gives \[5, 8\]",
    ),
    "loss": (a_loss_that_is_a_vector, "the loss is not a single number"),
    "kind": (
        lambda p: node(p, "dropout")["arguments"].__setitem__(1, True),
        "argument p is of the wrong kind",
    ),
    "fraction": (
        lambda p: node(p, "dropout")["arguments"].__setitem__(1, "0.10"),
        "argument p is of the wrong kind",
    ),
    "probability": (
        lambda p: node(p, "dropout")["arguments"].__setitem__(1, "1.5"),
        "a probability lies between 0 and 1",
    ),
    "too-few": (
        lambda p: node(p, "dropout")["arguments"].pop(),
        "it takes 3 arguments, not 2",
    ),
    "constant": (a_constant_too_large, "constant c has 4,294,967,296 bytes"),
    "mask": (a_mask_as_index, "an index must be whole numbers"),
    "twice": (lambda p: p["state"].append(p["state"][0]), "occurs twice"),
    "version": (lambda p: p.update(version=2), "this release reads version 1"),
    "field": (lambda p: p.update(program="x"), "unknown field program"),
    "update-of-weight": (
        lambda p: p["loss"]["updates"].update({"0.weight": 0}),
        "is not a buffer of the loss",
    ),
    "update-of-another-form": (
        lambda p: p["loss"]["updates"].update({"1.running_mean": 0}),
        "has another shape or element type",
    ),
    "output": (
        lambda p: p["loss"]["outputs"].update(loss=9999),
        "is not a value",
    ),
    "outputs": (
        too_many_outputs,
        "graph evaluate: 1,000 outputs or updates are the most",
    ),
    "whole-numbers-cut-off": (whole_numbers_cut_off, "only with rounding mode floor"),
    "whole-parameter": (lambda p: add_state(p, "parameter", "int64"), "are not floats"),
    "shared-constant": (
        lambda p: add_state(p, "constant", same_as="0.weight"),
        "state c cannot share the memory of 0.weight",
    ),
    "buffer-that-is-a-weight": (
        lambda p: add_state(p, "buffer", same_as="0.weight"),
        "state c cannot share the memory of 0.weight",
    ),
    "rate": (
        lambda p: options(p).update(lr=None),
        "option lr of AdamW is not a number",
    ),
    "no-rate": (lambda p: options(p).pop("lr"), "AdamW has no lr"),
    "betas": (lambda p: options(p).update(betas=[0.9]), "not a list of two numbers"),
    "switch": (lambda p: options(p).update(amsgrad=1), "neither true nor false"),
    "step-size": (
        lambda p: schedule(p, "StepLR", step_size=0),
        "option step_size of StepLR is not a whole number above 0",
    ),
    "no-step-size": (lambda p: schedule(p, "StepLR"), "StepLR has no step_size"),
    "optimizer": (
        lambda p: p["optimizer"].update(name="Rprop"),
        "'Rprop' is not one of SGD, Adam, AdamW",
    ),
    "option": (
        lambda p: p["optimizer"]["groups"][0]["options"].update(lrr=1),
        "AdamW has no option 'lrr'. Did you mean lr?",
    ),
    "option-parameter": (
        lambda p: p["optimizer"]["groups"][0]["options"].update(lr={"parameter": "a"}),
        "names no parameter of the job",
    ),
    "prepare": (
        lambda p: p["prepare"]["nodes"][0]["arguments"].__setitem__(0, 2),
        "graph prepare",
    ),
    "sums-of-rows": (
        lambda p: p["prepare"]["outputs"].update(x=0),
        "has a shape that depends on the rows",
    ),
    "tensor-by-two-names": (
        lambda p: p["state"][2].update(same_as="0.weight"),
        "cannot share the memory",
    ),
    "no-loss": (
        lambda p: p.update(loss=None),
        "it has a loss without an optimizer, or the reverse",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_whole_is_refused(files: dict[str, bytes], name: str) -> None:
    work, said = BAD[name]
    with pytest.raises(MalformedError, match=said) as found:
        read_graph(change(files, work))
    assert found.value.code == "bad-graph"
    assert "\n" not in str(found.value)


def test_a_million_operations_are_refused(files: dict[str, bytes]) -> None:
    """By the bytes, before they are parsed; as many as fit into these, by their number."""
    added: list[int] = []

    def longer(plain: Plain) -> None:
        plain["loss"]["nodes"] += [node(plain, "relu")] * added[-1]

    added.append(30_000)
    with pytest.raises(MalformedError, match=r"30,0\d\d operations, and 20,000"):
        read_graph(change(files, longer))
    added.append(1)
    one = len(change(files, longer)) - len(files[GRAPH_ENTRY])
    with pytest.raises(MalformedError, match="bytes") as found:
        read_graph(files[GRAPH_ENTRY] + bytes(one * 1_000_000))
    assert found.value.code == "bad-graph"


def test_bytes_that_are_not_canonical_are_refused(files: dict[str, bytes]) -> None:
    for raw in (b"", b"{}", files[GRAPH_ENTRY] + b" ", b"\xff", b"[" * 99):
        with pytest.raises(MalformedError) as found:
            read_graph(raw)
        assert found.value.code == "bad-graph"


def test_weights_of_another_digest_are_refused(files: dict[str, bytes]) -> None:
    weights = bytearray(files["assets/weights.safetensors"])
    weights[-1] ^= 1
    with pytest.raises(MalformedError, match="another digest") as found:
        GraphRecipe(files[GRAPH_ENTRY], bytes(weights))
    assert found.value.code == "bad-graph"


def test_weights_that_are_others_than_named_are_refused(
    files: dict[str, bytes],
) -> None:
    raw = change(files, lambda p: p["state"][-1].update(name="other"))
    with pytest.raises(MalformedError):
        GraphRecipe(raw, files["assets/weights.safetensors"])


def test_memory_and_work_are_bounded_before_anything_runs(
    files: dict[str, bytes],
) -> None:
    document = read_graph(files[GRAPH_ENTRY])
    demand_bounds(document, 64, memory_bytes=1 << 30)
    with pytest.raises(MalformedError, match="GiB of memory") as found:
        demand_bounds(document, 64, memory_bytes=1 << 10)
    assert found.value.code == "bad-graph"
    with pytest.raises(MalformedError, match="are the most"):
        demand_bounds(document, 1 << 46, memory_bytes=1 << 80)


def test_an_element_type_that_is_written_wrongly_is_refused_as_it_runs(
    files: dict[str, bytes],
) -> None:
    raw = change(files, lambda p: node(p, "relu")["results"][0].update(dtype="float16"))
    recipe = load({**files, GRAPH_ENTRY: raw})
    with pytest.raises(
        MalformedError, match=r"operation \d+ \(relu\): it gives another"
    ):
        recipe.loss(recipe.build(), rows_for(VECTORS, 4), 0)


def test_a_batch_of_another_form_is_refused(files: dict[str, bytes]) -> None:
    recipe = load(files)
    batch = rows_for(VECTORS, 4)
    with pytest.raises(MalformedError, match="another shape or element type"):
        recipe.loss(recipe.build(), batch | {"x": batch["x"].double()}, 0)


def test_what_an_operation_says_of_its_values_does_not_leave(
    files: dict[str, bytes],
) -> None:
    recipe = GraphRecipe(files[GRAPH_ENTRY], files["assets/weights.safetensors"])
    batch = rows_for(VECTORS, 4) | {"y": torch.full((4,), 424242)}
    with pytest.raises(SealiftError) as found:
        recipe.loss(recipe.build(), batch, 0)
    assert found.value.code == "recipe-error"
    assert "424242" not in repr(found.value) + str(found.value)
    assert found.value.__context__ is None or "424242" not in str(
        found.value.__context__
    )


_PLACES = st.lists(st.integers(0, 1 << 16), min_size=1, max_size=12)
_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 9), st.integers(-(2**53) + 1, 2**53 - 1),
    st.sampled_from(["rows", "3*rows-2", "=2", "0.5", "nan", "view", "float16", ""]),
    st.just([]), st.just({}),
)  # fmt: skip


def _put(plain: Any, places: list[int], value: Any) -> None:
    """Go down at random, and have another value there."""
    at = plain
    for place in places:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return
        key = keys[place % len(keys)]
        if not isinstance(at[key], dict | list) or place == places[-1]:
            at[key] = value
            return
        at = at[key]


@given(changes=st.lists(st.tuples(_PLACES, _VALUES), min_size=1, max_size=3))
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None,
    max_examples=150,
)  # fmt: skip
def test_any_change_is_refused_or_harmless(
    files: dict[str, bytes], changes: list[tuple[list[int], Any]]
) -> None:
    plain = json.loads(files[GRAPH_ENTRY])
    for places, value in changes:
        _put(plain, places, value)
    try:
        recipe = GraphRecipe(encode(plain), files["assets/weights.safetensors"])
        if recipe.defines("build"):
            demand_bounds(recipe.document, 4, memory_bytes=1 << 26)
            model = recipe.build()
            recipe.optimization(model)
            loss = recipe.loss(model, rows_for(VECTORS, 4), 0)
            assert loss.shape == ()
    except (MalformedError, JobError):
        return  # by a line of ours: bad-graph, bad-recipe or recipe-error
