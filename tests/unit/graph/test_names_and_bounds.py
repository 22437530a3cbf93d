"""Names of a state that do not fit each other, and shapes that differ for many rows alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sealift.errors import MalformedError
from sealift.graph.bounds import demand_bounds
from sealift.graph.document import (
    Form,
    Graph,
    GraphInput,
    GraphRecipeDocument,
    Node,
    StateEntry,
    read_graph,
)
from sealift.ids import Digest
from sealift.train.sandboxed.graphrecipe import GraphModel

ROWS = 1024


def _prepares(*nodes: Node) -> GraphRecipeDocument:
    first = 1 + sum(len(node.results) for node in nodes[:-1])
    return GraphRecipeDocument(
        1, (GraphInput("x", "float32", ()),), (), Digest.of(b""), {},
        None, None, None, Graph(nodes, {"total": first}, {}), None,
    )  # fmt: skip


def test_a_shape_that_grows_past_what_is_written_is_refused_before_it_runs() -> None:
    """It agrees for 2 and for 5 rows, with which a document is read, and for no more."""
    numbers = Node(
        "arange.start_step",
        (0, "1000*rows-4997", 1, "int64"),
        (Form("int64", ("rows-2",)),),
    )
    total = Node("sum", (1, None), (Form("int64", ()),))
    document = read_graph(_prepares(numbers, total).to_bytes())
    with pytest.raises(MalformedError, match="than is written") as caught:
        demand_bounds(document, ROWS, memory_bytes=1 << 40)
    assert caught.value.code == "bad-graph"


def test_a_name_cannot_be_a_module_and_a_tensor() -> None:
    state = (
        StateEntry("a", "parameter", "float32", (1,)),
        StateEntry("a.b", "parameter", "float32", (1,)),
    )
    one = torch.zeros(1)
    for order in (state, state[::-1]):
        document = replace(_prepares(), state=order)
        with pytest.raises(MalformedError) as caught:
            GraphModel(document, {"a": one, "a.b": one}, {})
        assert caught.value.code == "bad-graph"
