"""The document of a graph recipe: a model, its loss and its optimizer as lists of operations.

Guarantees: a document that ``read_graph`` returns is whole. Every operation is one of the
closed list, takes values that stand before it and arguments of the right kinds, and gives
the shapes that are written, for any number of rows. So nothing about it has to be checked
again where it runs, but for element types. No torch here. Source: spec/graph.md.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn

from sealift.codec import MAX_INTEGER, decode, encode
from sealift.errors import MalformedError, nearest, visible
from sealift.graph.operations import OPERATIONS, Argument, GraphOperation
from sealift.graph.shapes import Shape, UnfitError, infer_shapes
from sealift.ids import Digest

MAX_BYTES: Final = 32 << 20
MAX_NODES: Final = 20_000
MAX_CONSTANT_BYTES: Final = 64 << 20
MAX_STATE_ENTRIES: Final = 20_000
MAX_AXES: Final = 16
_MOST_ELEMENTS: Final = (1 << 63) - 1
MAX_NAMED: Final = 1_000  # outputs of a graph, and its updates
ELEMENT_BYTES: Final = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4,
    "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
# Two numbers of rows tell every straight line apart; neither is 1, which broadcasts.
_CHECKED_ROWS: Final = (2, 5)
_SIZE: Final = re.compile(r"(?:([1-9]\d{0,14})\*)?rows(?:([+-])([1-9]\d{0,14}))?")
_NAME: Final = re.compile(r"\w+(?:\.\w+)*", re.ASCII)
_MAX_NAME: Final = 512

Size = int | str
StateKind = Literal["parameter", "frozen", "buffer", "unsaved", "constant"]


@dataclass(frozen=True, slots=True)
class TensorForm:
    """Element type and shape of a value.

    Attributes:
        dtype: A key of ``ELEMENT_BYTES``.
        shape: Whole numbers, or texts like ``rows``, ``64*rows`` or ``2*rows-1``.
    """

    dtype: str
    shape: tuple[Size, ...]

    def at(self, rows: int) -> Shape:
        """The shape for a number of rows."""
        return tuple(_size_at(each, rows) for each in self.shape)

    def bytes_at(self, rows: int) -> int:
        """Bytes of the value for a number of rows."""
        return math.prod(self.at(rows)) * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class GraphInput:
    """A field of the rows: its shape has no axis of rows."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StateEntry:
    """A tensor that the recipe begins with.

    Attributes:
        name: Of the model's parameter or buffer.
        kind: ``parameter`` is trained; ``frozen`` is one that is not; ``buffer`` is in the
            model's state, and ``unsaved`` is not; ``constant`` belongs to no model.
        dtype: A key of ``ELEMENT_BYTES``.
        shape: Its sizes.
        same_as: The entry that it shares its memory with; empty for most.
    """

    name: str
    kind: StateKind
    dtype: str
    shape: tuple[int, ...]
    same_as: str = ""

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Node:
    """One operation.

    Attributes:
        operation: Its name in the closed list.
        arguments: All of them, in the list's order. A value is given by its number, a
            fraction by its text, a whole number by itself or as a text in ``rows``.
        results: What it gives; their numbers follow those of the values before.
    """

    operation: str
    arguments: tuple[Any, ...]
    results: tuple[TensorForm, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """Operations, in the order in which they are made.

    Attributes:
        nodes: The operations. Values 0, 1, ... are the document's inputs, then its state.
        outputs: What is wanted of it: values by name.
        updates: Values that replace entries of the state after the step.
    """

    nodes: tuple[Node, ...]
    outputs: dict[str, int]
    updates: dict[str, int]


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """Parameters that an optimizer treats alike, and its options for them."""

    parameters: tuple[str, ...]
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class NamedSchedule:
    """A scheduler of the optimizer, by name.

    Attributes:
        name: Of a class of ``torch.optim.lr_scheduler``.
        options: Of that class.
        interval: What it counts.
        frequency: Of these, from one call to the next.
    """

    name: str
    options: dict[str, Any]
    interval: Literal["epoch", "step"]
    frequency: int


@dataclass(frozen=True, slots=True)
class NamedOptimizer:
    """An optimizer by name, its groups of parameters, and its schedulers."""

    name: str
    groups: tuple[OptionGroup, ...]
    schedules: tuple[NamedSchedule, ...]


@dataclass(frozen=True, slots=True)
class GraphRecipeDocument:
    """A whole graph recipe but for the bytes of its state.

    Attributes:
        version: 1.
        inputs: The fields of the rows.
        state: What the model begins with, and constants.
        weights: Digest of the safetensors file that holds the state.
        parameters: Values of the job's parameters that it was made with. An option of the
            optimizer may name one, which a job may then change.
        loss: Gives ``loss``, a number; None where the recipe only prepares sums.
        evaluate: Gives sums over the rows.
        predict: Gives answers, one for each row; the name of a single one is empty.
        prepare: Gives sums over the rows, of the inputs alone.
        optimizer: Changes the parameters.
    """

    version: int
    inputs: tuple[GraphInput, ...]
    state: tuple[StateEntry, ...]
    weights: Digest
    parameters: dict[str, Any]
    loss: Graph | None
    evaluate: Graph | None
    predict: Graph | None
    prepare: Graph | None
    optimizer: NamedOptimizer | None

    def graphs(self) -> dict[str, Graph]:
        """Those that it has, by name."""
        named = {
            "loss": self.loss, "evaluate": self.evaluate,
            "predict": self.predict, "prepare": self.prepare,
        }  # fmt: skip
        return {name: graph for name, graph in named.items() if graph is not None}

    def counts(self) -> dict[str, int]:
        """How often each operation stands in it, by name, the most frequent first."""
        found = Counter(n.operation for g in self.graphs().values() for n in g.nodes)
        return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))

    def forms(self) -> list[TensorForm]:
        """Of the values that every graph begins with: inputs, then state."""
        inputs = [TensorForm(each.dtype, ("rows", *each.shape)) for each in self.inputs]
        return inputs + [TensorForm(each.dtype, each.shape) for each in self.state]

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return encode(self)


_SWITCHES: Final = frozenset({"maximize", "foreach", "fused", "nesterov", "amsgrad"})
_COUNTS: Final = frozenset({"step_size", "T_max", "T_0", "T_mult", "total_iters"})
_ALL: Final = frozenset({"lr", "weight_decay", "maximize", "foreach", "fused"})
_ADAM: Final = _ALL | {"betas", "eps", "amsgrad"}
OPTIMIZERS: Final[Mapping[str, frozenset[str]]] = {
    "SGD": _ALL | {"momentum", "dampening", "nesterov"}, "Adam": _ADAM, "AdamW": _ADAM,
}  # fmt: skip
SCHEDULES: Final[Mapping[str, frozenset[str]]] = {
    "StepLR": frozenset({"step_size", "gamma"}),
    "MultiStepLR": frozenset({"milestones", "gamma"}),
    "ConstantLR": frozenset({"factor", "total_iters"}),
    "LinearLR": frozenset({"start_factor", "end_factor", "total_iters"}),
    "ExponentialLR": frozenset({"gamma"}),
    "PolynomialLR": frozenset({"total_iters", "power"}),
    "CosineAnnealingLR": frozenset({"T_max", "eta_min"}),
    "CosineAnnealingWarmRestarts": frozenset({"T_0", "T_mult", "eta_min"}),
}
_REQUIRED: Final[Mapping[str, str]] = {
    "SGD": "lr", "Adam": "lr", "AdamW": "lr", "StepLR": "step_size",
    "MultiStepLR": "milestones", "ExponentialLR": "gamma", "CosineAnnealingLR": "T_max",
    "CosineAnnealingWarmRestarts": "T_0",
}  # fmt: skip


def option_problem(name: str, value: Any) -> str:
    """What is wrong with the value of an optimizer's or schedule's option; empty if nothing."""
    if name in _SWITCHES:
        return (
            "" if value is None or type(value) is bool else "is neither true nor false"
        )
    if name in _COUNTS:
        return (
            "" if type(value) is int and value >= 1 else "is not a whole number above 0"
        )
    if name in ("betas", "milestones"):
        kinds = (int,) if name == "milestones" else (int, float)
        plain = isinstance(value, list | tuple) and all(type(v) in kinds for v in value)
        if not plain or (name == "betas" and len(value) != 2):
            return (
                "is not a list of two numbers"
                if name == "betas"
                else "is not a list of whole numbers"
            )
        return "" if len(value) <= MAX_NODES else "has too many numbers"
    return "" if type(value) in (int, float) else "is not a number"


def _size_at(size: Size, rows: int) -> int:
    """A size for a number of rows."""
    if type(size) is not str:
        return int(size)
    match = _SIZE.fullmatch(size)
    if match is None:
        raise ValueError(size)
    factor, sign, more = match.groups()
    return int(factor or 1) * rows + int(f"{sign or ''}{more or 0}")


def size_text(factor: int, more: int) -> Size:
    """How ``factor * rows + more`` is written."""
    if not factor:
        return more
    front = "rows" if factor == 1 else f"{factor}*rows"
    return f"{front}{more:+d}" if more else front


def _fraction_at(text: str) -> float:
    """A fraction from its text; raises ``ValueError`` unless it is written as Python does."""
    value = float(text)
    if repr(value) != text:
        raise ValueError(text)
    return value


def read_graph(data: bytes) -> GraphRecipeDocument:
    """Read a document, and refuse everything that is not whole.

    Args:
        data: Canonical JSON.

    Raises:
        MalformedError: ``bad-graph``, with the graph, the operation and what is wrong.
    """
    try:
        document = decode(GraphRecipeDocument, bytes(data), max_bytes=MAX_BYTES)
    except MalformedError as error:
        where = f"{error.what} {getattr(error, 'field', '')}".strip()
        refuse(f"{where}: {error.why}" if error.why else where)
    _check(document)
    return document


def refuse(why: str) -> NoReturn:
    """Raise the error for a document that is not valid."""
    raise MalformedError(
        "the graph recipe is not valid", why=visible(why)[:400], code="bad-graph"
    )


def walk(
    document: GraphRecipeDocument, graph: Graph, rows: int
) -> Iterator[tuple[Node, GraphOperation, dict[str, Any], list[Shape]]]:
    """Each node with its arguments for a number of rows, and its results' shapes.

    A value among the arguments is given by its shape.

    Raises:
        UnfitError: an operation that does not fit what stands before it.
    """
    shapes = [form.at(rows) for form in document.forms()]
    for node in graph.nodes:
        operation = OPERATIONS[node.operation]
        pairs = zip(operation.arguments, node.arguments, strict=True)
        arguments = {a.name: _resolve(a, value, shapes, rows) for a, value in pairs}
        found = infer_shapes(operation.name, operation.family, arguments)
        if max(map(math.prod, found), default=0) > _MOST_ELEMENTS:
            raise UnfitError("a result has more elements than can be counted")
        yield node, operation, arguments, found
        shapes += found


def _check(document: GraphRecipeDocument) -> None:
    if document.version != 1:
        refuse(f"its version is {document.version}; this release reads version 1")
    _check_inputs(document.inputs)
    _check_state(document.state)
    for name, value in document.parameters.items():
        if not isinstance(value, str | int | float):
            refuse(f"parameter {name[:80]!r} is neither a number nor a text")
    _check_optimizer(document)
    nodes = sum(len(graph.nodes) for graph in document.graphs().values())
    if nodes > MAX_NODES:
        refuse(f"it has {nodes:,} operations, and {MAX_NODES:,} are the most")
    for name, graph in document.graphs().items():
        _check_graph(document, name, graph)
    _check_outputs(document)


def _check_inputs(inputs: Sequence[GraphInput]) -> None:
    _check_names("input", [each.name for each in inputs])
    if not inputs:
        refuse("it has no inputs")
    for each in inputs:
        _check_form(f"input {each.name}", each.dtype, each.shape)


def _check_state(state: Sequence[StateEntry]) -> None:
    if len(state) > MAX_STATE_ENTRIES:
        refuse(
            f"its state has {len(state):,} entries, and {MAX_STATE_ENTRIES:,} are the most"
        )
    _check_names("state", [each.name for each in state])
    before: dict[str, StateEntry] = {}
    for each in state:
        _check_form(f"state {each.name}", each.dtype, each.shape)
        if each.kind == "constant" and each.size_bytes > MAX_CONSTANT_BYTES:
            refuse(
                f"constant {each.name} has {each.size_bytes:,} bytes, and "
                f"{MAX_CONSTANT_BYTES:,} are the most"
            )
        is_weight = each.kind in ("parameter", "frozen")
        if is_weight and not _is_fraction_type(each.dtype):
            refuse(f"state {each.name} is a parameter, but its elements are not floats")
        if each.same_as:
            other = before.get(each.same_as)
            fits = (
                other is not None
                and "constant" not in (each.kind, other.kind)
                and is_weight == (other.kind in ("parameter", "frozen"))
                and (other.dtype, other.shape, other.same_as)
                == (each.dtype, each.shape, "")
            )
            if not fits:
                refuse(f"state {each.name} cannot share the memory of {each.same_as}")
        before[each.name] = each


def _check_names(what: str, names: Sequence[str]) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            refuse(f"{what} {name[:80]} occurs twice")
        if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
            refuse(f"{what} {name[:80]!r} is not a valid name")


def _check_form(what: str, dtype: str, shape: Sequence[Size]) -> None:
    if dtype not in ELEMENT_BYTES:
        refuse(f"{what}: unknown element type {dtype[:40]!r}")
    for each in shape:
        if not _is_size(each) or (type(each) is int and each < 0):
            refuse(f"{what}: {each!r} is not a size")
    if len(shape) > MAX_AXES:
        refuse(f"{what}: a shape has {MAX_AXES} axes at most")


def _check_optimizer(document: GraphRecipeDocument) -> None:
    optimizer, trained = document.optimizer, _trained(document)
    if (optimizer is None) != (document.loss is None):
        refuse("it has a loss without an optimizer, or the reverse")
    if optimizer is None:
        return
    options = OPTIMIZERS.get(optimizer.name)
    if options is None:
        refuse(
            f"optimizer {optimizer.name[:80]!r} is not one of {', '.join(OPTIMIZERS)}"
        )
    named = [name for group in optimizer.groups for name in group.parameters]
    if len(set(named)) != len(named) or not set(named) <= trained or not named:
        refuse("the optimizer's groups must name trained parameters, each once")
    for group in optimizer.groups:
        _check_options(document, optimizer.name, group.options, options)
    for schedule in optimizer.schedules:
        known = SCHEDULES.get(schedule.name)
        if known is None:
            refuse(
                f"schedule {schedule.name[:80]!r} is not one of {', '.join(SCHEDULES)}"
            )
        if schedule.frequency < 1:
            refuse("a schedule's frequency must be at least 1")
        _check_options(document, schedule.name, schedule.options, known)


def _trained(document: GraphRecipeDocument) -> set[str]:
    kinds = {"parameter"}
    return {e.name for e in document.state if e.kind in kinds and not e.same_as}


def _check_options(
    document: GraphRecipeDocument,
    of: str,
    options: Mapping[str, Any],
    known: frozenset[str],
) -> None:
    for name, value in options.items():
        if name not in known:
            refuse(f"{of} has no option {name[:80]!r}. {nearest(name, known)}".strip())
        if isinstance(value, dict):
            if (
                set(value) != {"parameter"}
                or value["parameter"] not in document.parameters
            ):
                refuse(f"option {name} of {of} names no parameter of the job")
            value = document.parameters[value["parameter"]]
        problem = option_problem(name, value)
        if problem:
            refuse(f"option {name} of {of} {problem}")
    required = _REQUIRED.get(of)
    if required is not None and required not in options:
        refuse(f"{of} has no {required}")


def _check_graph(document: GraphRecipeDocument, name: str, graph: Graph) -> None:
    values = document.forms()
    if max(len(graph.outputs), len(graph.updates)) > MAX_NAMED:
        refuse(f"graph {name}: {MAX_NAMED:,} outputs or updates are the most")
    for place, node in enumerate(graph.nodes):
        where = f"graph {name}, operation {place} ({node.operation[:80]})"
        _check_node(where, node, values)
        values += node.results
    for rows in _CHECKED_ROWS:
        _check_shapes(document, name, graph, rows)
    for kind, named in (("output", graph.outputs), ("update", graph.updates)):
        for each, value in named.items():
            if not 0 <= value < len(values):
                refuse(f"graph {name}: {kind} {each[:80]} is not a value")
    entries = {e.name: e for e in document.state if e.kind in ("buffer", "unsaved")}
    for each, value in graph.updates.items():
        entry = entries.get(each)
        if name != "loss" or entry is None or entry.same_as:
            refuse(f"graph {name}: update {each[:80]} is not a buffer of the loss")
        if values[value] != TensorForm(entry.dtype, entry.shape):
            refuse(
                f"graph {name}: update {each[:80]} has another shape or element type"
            )


def _check_node(where: str, node: Node, values: Sequence[TensorForm]) -> None:
    operation = OPERATIONS.get(node.operation)
    if operation is None:
        refuse(f"{where}: this operation is not on the list")
    if len(node.arguments) != len(operation.arguments):
        refuse(
            f"{where}: it takes {len(operation.arguments)} arguments, not {len(node.arguments)}"
        )
    for argument, given in zip(operation.arguments, node.arguments, strict=True):
        problem = _problem(argument, given, len(values))
        if problem:
            refuse(f"{where}: argument {argument.name} {problem}")
    for form in node.results:
        _check_form(where, form.dtype, form.shape)
    _check_types(where, operation, node, values)


def _check_types(
    where: str, operation: GraphOperation, node: Node, values: Sequence[TensorForm]
) -> None:
    """Refuse element types for which an operation's shape, or the process's end, is open."""
    truncates = operation.name == "div.Tensor_mode" and node.arguments[2] == "trunc"
    # The smallest whole number by -1 ends the process.
    if truncates and not _is_fraction_type(values[node.arguments[0]].dtype):
        refuse(f"{where}: integers can be divided only with rounding mode floor")
    for argument, given in zip(operation.arguments, node.arguments, strict=True):
        if argument.name in ("index", "indices", "target") and argument.kind == "T":
            numbers = [
                n for n in (given if argument.many else [given]) if n is not None
            ]
            whole = all(values[n].dtype in ("int64", "int32", "uint8") for n in numbers)
            if operation.family == "selection" and not (
                whole and _is_index(operation, numbers, values)
            ):
                refuse(
                    f"{where}: an index must be whole numbers: the shape may not depend on values"
                )


def _is_fraction_type(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def _is_index(
    operation: GraphOperation, numbers: Sequence[int], values: Sequence[TensorForm]
) -> bool:
    """To ATen, an index of ``uint8`` is a mask."""
    return operation.name != "index.Tensor" or all(
        values[n].dtype != "uint8" for n in numbers
    )


def _problem(argument: Argument, given: Any, values: int) -> str:
    """What is wrong with an argument; empty if nothing is."""
    if given is None:
        return "" if argument.optional else "is missing"
    if not argument.many:
        return _item_problem(argument, given, values)
    if type(given) not in (list, tuple):
        return "must be a list"
    if len(given) > MAX_NODES:
        return "is a list that is too long"
    for each in given:
        if each is None and argument.items_optional:
            continue
        if problem := _item_problem(argument, each, values):
            return problem
    return ""


def _item_problem(argument: Argument, given: Any, values: int) -> str:
    kind = argument.kind
    if kind == "N":  # a value, or a number, which is written as a text
        kind = "T" if type(given) is int else "S"
        if kind == "S" and type(given) is str and given.startswith("="):
            given = _integer_in(given)
    if kind == "T":
        if type(given) is not int or given < 0:
            return "must be a value"
        return "" if given < values else "is a value that is computed only later"
    fits = {
        "I": _is_size(given),
        "S": type(given) is bool or _is_size(given) or _is_fraction(given),
        "F": _is_fraction(given),
        "B": type(given) is bool,
        "D": type(given) is str and given in ELEMENT_BYTES,
        "L": type(given) is str and given in argument.words,
    }
    return "" if fits[kind] else f"is of the wrong kind: {str(given)[:40]!r}"


def _integer_in(text: str) -> int | None:
    return int(text[1:]) if re.fullmatch(r"=-?\d{1,15}", text) else None


def _is_size(value: Any) -> bool:
    if type(value) is int:
        return abs(value) <= MAX_INTEGER
    return type(value) is str and _SIZE.fullmatch(value) is not None


def _is_fraction(value: Any) -> bool:
    try:
        return type(value) is str and math.isfinite(len(repr(_fraction_at(value))))
    except ValueError:
        return False


def resolve_item(kind: str, given: Any, rows: int) -> Any:
    """An argument that is no value, as a number, a word or nothing."""
    if type(given) is not str or kind in "DL":
        return given
    if given.startswith("="):
        return _integer_in(given)
    return _size_at(given, rows) if "rows" in given else _fraction_at(given)


def is_value(argument: Argument, given: Any) -> bool:
    """Whether an argument's item is the number of a value."""
    return argument.kind == "T" or (argument.kind == "N" and type(given) is int)


def _resolve(argument: Argument, given: Any, shapes: Sequence[Shape], rows: int) -> Any:
    if given is None:
        return None
    if argument.many:
        return [_resolve_item(argument, each, shapes, rows) for each in given]
    return _resolve_item(argument, given, shapes, rows)


def _resolve_item(
    argument: Argument, given: Any, shapes: Sequence[Shape], rows: int
) -> Any:
    if given is not None and is_value(argument, given):
        return shapes[given]
    return resolve_item(argument.kind, given, rows)


def _check_shapes(
    document: GraphRecipeDocument, name: str, graph: Graph, rows: int
) -> None:
    place = 0
    try:
        for node, _operation, _arguments, shapes in walk(document, graph, rows):
            written = [form.at(rows) for form in node.results]
            if shapes != written:
                raise UnfitError(
                    f"it gives {_say(shapes)}, but the graph states {_say(written)} "
                    f"(for {rows} rows)"
                )
            place += 1
    except UnfitError as error:
        operation = graph.nodes[place].operation
        refuse(f"graph {name}, operation {place} ({operation}): {error}")


def _say(shapes: Sequence[Shape]) -> str:
    return ", ".join(str(list(each)) for each in shapes[:4]) or "nothing"


def _check_outputs(document: GraphRecipeDocument) -> None:
    if document.loss is None and document.prepare is None:
        refuse("it has neither a loss nor sums to prepare")
    for name, graph in document.graphs().items():
        values = document.forms()  # once: this runs where nobody limits its time
        values += [form for node in graph.nodes for form in node.results]
        forms = {each: values[v] for each, v in graph.outputs.items()}
        if not forms:
            refuse(f"graph {name} has no output")
        if name == "loss":
            _check_loss(forms)
        for each, form in forms.items():
            alone = each == "" and len(forms) == 1 and name == "predict"
            if not alone:
                _check_names(f"output of graph {name}", [each])
            if name == "predict" and form.shape[:1] != ("rows",):
                refuse(
                    f"graph predict: {each[:80]!r} does not have one answer for each row"
                )
            if name in ("evaluate", "prepare") and any(
                type(s) is str for s in form.shape
            ):
                refuse(
                    f"graph {name}: the sum {each[:80]!r} has a shape that depends on the rows"
                )
    if document.prepare is not None:
        _check_prepare(document, document.prepare)


def _check_loss(forms: Mapping[str, TensorForm]) -> None:
    loss = forms.get("loss")
    if set(forms) != {"loss"} or loss is None or loss.shape:
        refuse("the loss is not a single number")
    if not _is_fraction_type(loss.dtype):
        refuse("the loss is not a float")


def _check_prepare(document: GraphRecipeDocument, graph: Graph) -> None:
    """What is prepared is of the rows alone, or of constants."""
    first = len(document.inputs)
    for node in graph.nodes:
        for value in values_of(node):
            entry = value - first
            if (
                0 <= entry < len(document.state)
                and document.state[entry].kind != "constant"
            ):
                refuse("graph prepare uses the model's state")


def values_of(node: Node) -> list[int]:
    """Numbers of the values that a node takes, in their order."""
    found: list[int] = []
    for argument, given in zip(
        OPERATIONS[node.operation].arguments, node.arguments, strict=True
    ):
        items = given if argument.many and given is not None else [given]
        found += [n for n in items if n is not None and is_value(argument, n)]
    return found
