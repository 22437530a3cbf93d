"""Runs a graph: one list of operations, under autograd and under ``vmap``.

Each operation is found once, in the table below, which is made of the closed list alone;
no text of a document ever names something of Python. Arguments that do not change are put
together once, so that a step costs one call an operation. A value is let go after its last
use. The first run compares shapes and element types with what the document says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import BuiltinFunctionType
from typing import Any, Final

import torch
from torch import Tensor
from torch._C import _nn as compiled

from sealift.graph.bounds import demand_bounds, last_uses, own_room
from sealift.graph.document import (
    Graph,
    GraphRecipeDocument,
    Node,
    TensorForm,
    is_value,
    refuse,
    resolve_item,
    values_of,
)
from sealift.graph.operations import OPERATIONS, Argument

Call = Callable[..., Any]
_DTYPES: Final = {
    name: getattr(torch, name)
    for name in (
        "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8",
        "uint8", "bool",
    )
}  # fmt: skip
# Where Python's binding takes other arguments than ATen's list.
_OWN: Final[Mapping[str, Call]] = {
    "view": torch.reshape,
    "expand": torch.Tensor.expand,
    "to.dtype": torch.Tensor.to,
    "rsub.Scalar": torch.rsub,
    "slice.Tensor": torch.ops.aten.slice.Tensor,
    "split.Tensor": torch.ops.aten.split.Tensor,
    "split_with_sizes": torch.ops.aten.split_with_sizes.default,
    "layer_norm": torch.layer_norm,
    "dropout": torch.dropout,
    "linear": compiled.linear,
    "max.dim": torch.max,
    "min.dim": torch.min,
    "sum.dim_IntList": torch.sum,
    "mean.dim": torch.mean,
}
# Made where the rows are: the device comes before the other arguments.
_PLACED: Final[Mapping[str, Call]] = {
    "zeros": lambda device, size, **more: torch.zeros(size, device=device, **more),
    "ones": lambda device, size, **more: torch.ones(size, device=device, **more),
    "full": lambda device, size, value, **more: torch.full(
        size, value, device=device, **more
    ),
    "arange.start_step": lambda device, start, end, step, **more: torch.arange(
        start, end, step, device=device, **more
    ),
    "rand": lambda device, size, **more: torch.rand(size, device=device, **more),
    "randn": lambda device, size, **more: torch.randn(size, device=device, **more),
}


def _binding(name: str) -> Call:
    """Torch's own function of an operation of the list; those in C, which cost least."""
    if name in _OWN:
        return _OWN[name]
    base, _, overload = name.partition(".")
    for place in (compiled, torch):
        found: Call | None = getattr(place, base, None)
        if found is not None and isinstance(found, BuiltinFunctionType):
            return found
    own: Call = getattr(getattr(torch.ops.aten, base), overload or "default")
    return own


CALLS: Final = {name: _binding(name) for name in OPERATIONS if name not in _PLACED}


class CompiledGraph:
    """One graph, ready to run.

    Args:
        document: Checked; see ``read_graph``.
        name: Of the graph.
    """

    def __init__(self, document: GraphRecipeDocument, name: str) -> None:
        self._document = document
        self._graph: Graph = document.graphs()[name]
        self._name = name
        self._inputs = len(document.inputs)
        self._first = self._inputs + len(document.state)
        used = {value for node in self._graph.nodes for value in values_of(node)}
        used |= {*self._graph.outputs.values(), *self._graph.updates.values()}
        names = [each.name for each in document.inputs]
        self.fields: Final = tuple(
            (place, names[place]) for place in range(self._inputs) if place in used
        ) or tuple(enumerate(names))
        self.state: Final = tuple(
            (place + self._inputs, entry.name)
            for place, entry in enumerate(document.state)
            if place + self._inputs in used
        )
        made = (form for node in self._graph.nodes for form in node.results)
        self._forms = [*document.forms(), *made]
        self._frees = last_uses(document, self._graph)
        self._size = self._first + sum(len(n.results) for n in self._graph.nodes)
        self._steps: dict[int, list[_Step]] = {}
        self._checked: set[int] = set()

    @property
    def mixes_rows(self) -> bool:
        """Whether a layer mixes the rows of a batch."""
        return any(OPERATIONS[n.operation].mixes_rows for n in self._graph.nodes)

    def run(
        self, state: Mapping[str, Tensor], batch: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Run it.

        Args:
            state: Entries of the document's state by name.
            batch: (rows, ...) by field.

        Returns:
            Outputs and updates, by name.

        Raises:
            MalformedError: ``bad-graph``, if a value is another one than was written.
        """
        values: list[Any] = [None] * self._size
        for place, name in self.fields:
            values[place] = batch[name]
        for place, name in self.state:
            values[place] = state[name]
        first = values[self.fields[0][0]]
        rows = len(first)
        steps = self._steps.get(rows)
        if steps is None:
            steps = self._compile(rows)
        if rows not in self._checked:
            self._check_batch(values)
            self._run_checked(steps, values, first.device, rows)
            self._checked.add(rows)
        else:
            _run(steps, values, first.device)
        graph = self._graph
        outputs = {name: values[each] for name, each in graph.outputs.items()}
        return outputs, {name: values[each] for name, each in graph.updates.items()}

    def _check_batch(self, values: Sequence[Any]) -> None:
        forms = self._forms
        for place, name in (*self.fields, *self.state):
            if not _fits(values[place], forms[place], len(values[self.fields[0][0]])):
                refuse(f"graph {self._name}: {name} has another shape or element type")

    def _run_checked(
        self, steps: Sequence[_Step], values: list[Any], device: Any, rows: int
    ) -> None:
        for place, (step, node) in enumerate(
            zip(steps, self._graph.nodes, strict=True)
        ):
            made = step.make(values, device)
            found = list(made) if step.many else [made]
            fits = len(found) == len(node.results) and all(
                _fits(each, form, rows)
                for each, form in zip(found, node.results, strict=False)
            )
            if not fits:
                refuse(
                    f"graph {self._name}, operation {place} ({node.operation}): it gives "
                    "another shape or element type than it states"
                )
            step.put(values, made)

    def _compile(self, rows: int) -> list[_Step]:
        """Its steps for a number of rows, once shapes and room are known to be right."""
        demand_bounds(self._document, rows, memory_bytes=own_room(), names=[self._name])
        if len(self._steps) >= _MOST_COMPILED:  # no job has so many sizes of batches
            self._steps.clear()
            self._checked.clear()
        steps, count = [], self._first
        for place, node in enumerate(self._graph.nodes):
            frees = tuple(self._frees.get(place, ()))
            steps.append(_Step(node, count, frees, rows))
            count += len(node.results)
        self._steps[rows] = steps
        return steps


class _Step:
    """One operation with its arguments, but for the values.

    Args:
        node: The operation.
        first: Number of its first result.
        frees: Values that nobody needs after it.
        rows: Of the batch.
    """

    __slots__ = ("call", "fills", "frees", "lists", "many", "out", "template")

    def __init__(
        self, node: Node, first: int, frees: tuple[int, ...], rows: int
    ) -> None:
        arguments = OPERATIONS[node.operation].arguments
        self.template: list[Any] = []
        fills, lists, named = [], [], {}
        if node.operation in _PLACED:
            self.template.append(None)
            fills.append((0, _DEVICE))
        for argument, given in zip(arguments, node.arguments, strict=True):
            at = len(self.template)
            if argument.many and given is not None and argument.kind == "T":
                lists.append((at, tuple(given)))
                self.template.append(None)
            elif given is not None and not argument.many and is_value(argument, given):
                fills.append((at, given))
                self.template.append(None)
            else:
                value = _constant(argument, given, rows)
                if not argument.by_name:
                    self.template.append(value)
                elif value != argument.default and value is not None:
                    named[argument.name] = value
        call = _PLACED.get(node.operation) or CALLS[node.operation]
        self.call: Call = partial(call, **named) if named else call
        self.fills, self.lists = tuple(fills), tuple(lists)
        self.many = len(node.results) != 1 or node.operation in _ALWAYS_MANY
        self.out, self.frees = first, frees

    def make(self, values: list[Any], device: Any) -> Any:
        """Its results."""
        arguments = self.template.copy()
        for at, value in self.fills:
            arguments[at] = device if value == _DEVICE else values[value]
        for at, many in self.lists:
            arguments[at] = [None if v is None else values[v] for v in many]
        return self.call(*arguments)

    def put(self, values: list[Any], made: Any) -> None:
        """Have its results among the values, and let go of what nobody needs."""
        if self.many:
            values[self.out : self.out + len(made)] = made
        else:
            values[self.out] = made
        for value in self.frees:
            values[value] = None


def _run(steps: Sequence[_Step], values: list[Any], device: Any) -> None:
    """All steps; as `make` and `put` do, in one loop without their calls."""
    for step in steps:
        arguments = step.template.copy()
        for at, value in step.fills:
            arguments[at] = values[value] if value >= 0 else device
        if step.lists:
            for at, many in step.lists:
                arguments[at] = [None if v is None else values[v] for v in many]
        if step.many:
            made = step.call(*arguments)
            values[step.out : step.out + len(made)] = made
        else:
            values[step.out] = step.call(*arguments)
        for value in step.frees:
            values[value] = None


def _constant(argument: Argument, given: Any, rows: int) -> Any:
    if given is None:
        return None
    if argument.many:
        return [resolve_item(argument.kind, each, rows) for each in given]
    if argument.kind == "D":
        return _DTYPES[given]
    return resolve_item(argument.kind, given, rows)


def _fits(value: Any, form: TensorForm, rows: int) -> bool:
    return tuple(value.shape) == form.at(rows) and value.dtype == _DTYPES[form.dtype]


_DEVICE: Final = -1
_MOST_COMPILED: Final = 32
# They give a list also where there is one part.
_ALWAYS_MANY: Final = frozenset({"split.Tensor", "split_with_sizes", "unbind.int"})
