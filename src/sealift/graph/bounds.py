"""Memory and work of a graph recipe, from shapes alone, before anything is computed."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sealift.errors import MalformedError
from sealift.graph.document import (
    ELEMENT_BYTES,
    Graph,
    GraphRecipeDocument,
    TensorForm,
    refuse,
    values_of,
    walk,
)
from sealift.graph.operations import GraphOperation
from sealift.graph.shapes import Shape, UnfitError, count_work

# What a batch may take at most: an hour of a machine that makes 10^12 operations a second.
MAX_WORK: Final = 1 << 52
_FORWARD_AND_BACK: Final = 3


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one batch takes at most.

    Attributes:
        memory_bytes: Of values that are there at one time, without the state.
        work: Additions and multiplications, roughly.
    """

    memory_bytes: int
    work: int


def _measure_graph(document: GraphRecipeDocument, name: str, rows: int) -> Bounds:
    """What a graph takes for a batch of ``rows``; the loss with its gradients."""
    graph = document.graphs()[name]
    trains = name == "loss"
    last = {} if trains else last_uses(document, graph)
    sizes = [form.bytes_at(rows) for form in document.forms()]
    now = peak = sum(sizes[: len(document.inputs)])
    work = scratch = place = 0
    try:
        for node, operation, arguments, shapes in walk(document, graph, rows):
            if [form.at(rows) for form in node.results] != shapes:
                # Two shapes may agree for the numbers of rows that a document is read with.
                raise UnfitError(
                    f"with {rows:,} rows it gives another shape than the graph states"
                )
            made = [form.bytes_at(rows) for form in node.results]
            sizes += made
            now += sum(made)
            beside = _beside(operation.name, arguments)
            columns = _columns(operation, arguments, node.results, shapes)
            scratch = max(scratch, columns)
            peak = max(peak, now + beside + (0 if trains else columns))
            now += beside if trains else 0
            now -= sum(sizes[value] for value in last.get(place, ()))
            work += count_work(operation.name, operation.family, arguments, shapes)
            place += 1
    except UnfitError as error:
        refuse(
            f"graph {name}, operation {place} ({graph.nodes[place].operation}): {error}"
        )
    if trains:  # columns are there for one operation at a time, forward and back
        memory = 2 * max(now, peak) + scratch + _state_bytes(document)
        return Bounds(memory, _FORWARD_AND_BACK * work)
    return Bounds(peak, work)


def own_room() -> int:
    """Bytes of memory that this process may have."""
    limit, _hard = resource.getrlimit(resource.RLIMIT_DATA)
    if limit == resource.RLIM_INFINITY:
        limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return limit


def demand_bounds(
    document: GraphRecipeDocument,
    rows: int,
    *,
    memory_bytes: int,
    names: Iterable[str] | None = None,
    copies: int = 1,
) -> None:
    """Refuse a document that takes too much for a batch of ``rows``.

    Args:
        document: Checked.
        rows: Of the batch.
        memory_bytes: That there are.
        names: Of the graphs that will run; by default all.
        copies: How many such batches are computed at one time.

    Raises:
        MalformedError: ``bad-graph``.
    """
    for name in document.graphs() if names is None else names:
        found = _measure_graph(document, name, rows)
        memory, work = found.memory_bytes * copies, found.work * copies
        if memory > memory_bytes:
            _refuse(
                name, rows * copies, f"{memory / 2**30:,.1f} GiB of memory; "
                f"{memory_bytes / 2**30:,.1f} GiB are available",
            )  # fmt: skip
        if work > MAX_WORK:
            _refuse(
                name,
                rows * copies,
                f"{work:.1e} operations, and {MAX_WORK:.1e} are the most",
            )


def last_uses(document: GraphRecipeDocument, graph: Graph) -> dict[int, list[int]]:
    """For each node the values that nobody needs after it; state and inputs stay."""
    first = len(document.inputs) + len(document.state)
    kept = {*graph.outputs.values(), *graph.updates.values()}
    seen: set[int] = set()
    found: dict[int, list[int]] = {}
    count = first + sum(len(node.results) for node in graph.nodes)
    for place in reversed(range(len(graph.nodes))):
        node = graph.nodes[place]
        made = range(count - len(node.results), count)
        count -= len(node.results)
        for value in (*values_of(node), *made):
            if value >= first and value not in kept and value not in seen:
                seen.add(value)
                found.setdefault(place, []).append(value)
    return found


def _beside(name: str, arguments: Mapping[str, Any]) -> int:
    """What an operation keeps besides its results."""
    if name != "scaled_dot_product_attention":
        return 0
    query, key = arguments["query"], arguments["key"]
    return 2 * math.prod(query[:-1]) * int(key[-2]) * ELEMENT_BYTES["float32"]


def _columns(
    operation: GraphOperation,
    arguments: Mapping[str, Any],
    forms: Sequence[TensorForm],
    shapes: Sequence[Shape],
) -> int:
    """Bytes of the windows that a convolution may lay out, one for each place."""
    if operation.family != "convolution":
        return 0
    weight = arguments["weight"]
    places = arguments["input"] if "output_padding" in arguments else shapes[0]
    windows = math.prod(places) // max(weight[0], 1)
    return windows * math.prod(weight[1:]) * ELEMENT_BYTES[forms[0].dtype]


def _state_bytes(document: GraphRecipeDocument) -> int:
    """Of gradients."""
    return sum(each.size_bytes for each in document.state if each.kind == "parameter")


def _refuse(name: str, rows: int, what: str) -> None:
    raise MalformedError(
        "the graph recipe takes too much memory or time",
        why=f"graph {name} with a batch of {rows:,} rows takes {what}",
        code="bad-graph",
    )
