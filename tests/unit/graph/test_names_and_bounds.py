"""Names of a state that do not fit each other, and shapes that differ for many rows alone."""

from __future__ import annotations

import resource
from dataclasses import replace

import pytest
import torch

from sealift.errors import MalformedError
from sealift.graph.bounds import demand_bounds
from sealift.graph.document import (
    Graph,
    GraphInput,
    GraphRecipeDocument,
    Node,
    Size,
    StateEntry,
    TensorForm,
    read_graph,
)
from sealift.graph.interpreter import CompiledGraph
from sealift.graph.shapes import count_work
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
        (TensorForm("int64", ("rows-2",)),),
    )
    total = Node("sum", (1, None), (TensorForm("int64", ()),))
    document = read_graph(_prepares(numbers, total).to_bytes())
    with pytest.raises(MalformedError, match=r"than (it|the graph) states") as caught:
        demand_bounds(document, ROWS, memory_bytes=1 << 40)
    assert caught.value.code == "bad-graph"


def _numbers(end: Size, size: Size) -> Node:
    return Node(
        "arange.start_step", (0, end, 1, "int64"), (TensorForm("int64", (size,)),)
    )


def test_a_batch_of_another_size_is_measured_before_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A last batch has fewer rows than those that a task is measured with."""
    total = Node("sum", (1, None), (TensorForm("int64", ()),))
    document = read_graph(
        _prepares(_numbers("1000*rows-4997", "rows-2"), total).to_bytes()
    )
    graph = CompiledGraph(document, "prepare")
    with pytest.raises(MalformedError, match=r"than (it|the graph) states"):
        graph.run({}, {"x": torch.zeros(7)})
    large = read_graph(_prepares(_numbers("1000*rows", "1000*rows"), total).to_bytes())
    graph = CompiledGraph(large, "prepare")
    assert int(graph.run({}, {"x": torch.zeros(2)})[0]["total"]) == 1999 * 1000
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (1 << 15, 1 << 15))
    with pytest.raises(MalformedError, match="GiB of memory") as caught:
        graph.run({}, {"x": torch.zeros(7)})
    assert caught.value.code == "bad-graph"


def test_sizes_that_no_machine_counts_are_refused() -> None:
    far = "999999999999999*rows"
    total = Node("sum", (1, None), (TensorForm("int64", ()),))
    document = read_graph(_prepares(_numbers(far, far), total).to_bytes())
    with pytest.raises(MalformedError) as caught:
        demand_bounds(document, 100_000, memory_bytes=1 << 40)
    assert caught.value.code == "bad-graph"


def _of_pooling(kernel: int, pad: int) -> GraphRecipeDocument:
    image = Node("view", (0, ("rows", 1, 1)), (TensorForm("float32", ("rows", 1, 1)),))
    pool = Node(
        "max_pool1d", (1, (kernel,), (kernel,), (pad,), (1,), False),
        (TensorForm("float32", ("rows", 1, 1)),),
    )  # fmt: skip
    return _prepares(image, pool, Node("sum", (2, None), (TensorForm("float32", ()),)))


def test_the_windows_of_a_pooling_are_counted_as_work() -> None:
    with pytest.raises(MalformedError, match="more than half of the window"):
        read_graph(_of_pooling(3, 2).to_bytes())
    document = read_graph(_of_pooling(1 << 50, 1 << 49).to_bytes())
    with pytest.raises(MalformedError, match="operations, and"):
        demand_bounds(document, ROWS, memory_bytes=1 << 40)


def test_values_of_attention_are_counted_as_work() -> None:
    query, value = (1, 8, 2), (1, 8, 1024)
    given = {"query": query, "key": query, "value": value}
    assert count_work("scaled_dot_product_attention", "product", given, [value]) == (
        2 * 8 * 8 * (2 + 1024)
    )


def test_the_columns_of_a_convolution_are_counted_as_memory() -> None:
    """64 places with a window of 64 x 31 x 31 each, which is more than all else."""
    image = Node(
        "zeros", ((1, 64, 38, 38), "float64"), (TensorForm("float64", (1, 64, 38, 38)),)
    )
    weight = Node(
        "zeros", ((1, 64, 31, 31), "float64"), (TensorForm("float64", (1, 64, 31, 31)),)
    )
    convolved = Node(
        "conv2d",
        (1, 2, None, (1, 1), (0, 0), (1, 1), 1),
        (TensorForm("float64", (1, 1, 8, 8)),),
    )
    total = Node("sum", (3, None), (TensorForm("float64", ()),))
    document = read_graph(_prepares(image, weight, convolved, total).to_bytes())
    columns = 64 * 64 * 31 * 31 * 8
    with pytest.raises(MalformedError, match="GiB of memory"):
        demand_bounds(document, 2, memory_bytes=columns)
    demand_bounds(document, 2, memory_bytes=columns + (4 << 20))


def test_what_replaces_a_buffer_is_memory_of_its_own() -> None:
    state = (
        StateEntry("w", "parameter", "float32", (2,)),
        StateEntry("b", "buffer", "float32", (2,)),
    )
    model = GraphModel(
        replace(_prepares(), state=state), {"w": torch.ones(2), "b": torch.zeros(2)}, {}
    )
    weight = model.get_parameter("w")
    model.put({"b": weight})
    model.get_buffer("b").add_(1)
    assert weight.tolist() == [1, 1]
    model.put({"b": torch.ones(1).expand(2)})
    assert model.get_buffer("b").is_contiguous()


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
