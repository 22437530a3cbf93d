"""Makes a graph recipe of a recipe that is a program: the host's program runs here, once.

`torch.export` follows the program with rows whose number is a symbol, and keeps composite
operations (linear layers, norms, attention) whole. What it found is written in the closed
list's terms. Runs where the host's program may run: on the host's machine, in the sandbox.
"""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import safetensors.torch
import sympy  # type: ignore[import-untyped]  # what torch writes sizes in
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from sealift.codec import MAX_INTEGER
from sealift.data.schema.schema import Schema
from sealift.errors import JobError, MalformedError
from sealift.graph.document import (
    Graph,
    GraphInput,
    GraphRecipeDocument,
    NamedOptimizer,
    Node,
    Size,
    StateEntry,
    StateKind,
    TensorForm,
    read_graph,
    size_text,
)
from sealift.graph.following import BUNDLE, Lines, followed
from sealift.graph.operations import OPERATIONS, Argument
from sealift.graph.optimizers import NoNameError, describe_optimizer
from sealift.graph.recurrent import RECURRENT
from sealift.graph.rowlosses import row_losses
from sealift.ids import Digest
from sealift.release.agreement.terms import GRAPH_ENTRY, GRAPH_WEIGHTS

Batch = dict[str, Tensor]
_LINE: Final = re.compile(r'File "bundle:([^"]+)", line (\d+)')
_MODEL: Final = "model."
# What is left out: these are the same wherever the graph runs.
_IGNORED: Final = frozenset({
    "device", "layout", "pin_memory", "memory_format", "non_blocking", "copy", "implicit",
    "cudnn_enabled", "cudnn_enable", "sparse_grad",
})  # fmt: skip
_IDENTITIES: Final = frozenset(
    {"clone", "contiguous", "alias", "lift_fresh_copy", "lift_fresh"}
)
_DROPPED: Final = frozenset(
    {"_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range_for_size"}
)
_TO_SIZE: Final = frozenset({
    "view", "reshape", "_unsafe_view", "squeeze", "squeeze.dim", "unflatten.int",
    "flatten.using_ints",
})  # fmt: skip
_REPLACED: Final = {"creation": ("self", "s")}
_SAME_OPERATION: Final = {
    "add.Scalar": "add.Tensor", "sub.Scalar": "sub.Tensor", "mul.Scalar": "mul.Tensor",
    "div.Scalar": "div.Tensor", "div.Scalar_mode": "div.Tensor_mode", "_to_copy": "to.dtype",
    "native_dropout": "dropout", "new_zeros": "zeros", "new_ones": "ones", "new_full": "full",
    "new_empty": "zeros", "empty.memory_format": "zeros", "empty_like": "zeros_like",
    "arange": "arange.start_step", "arange.start": "arange.start_step",
    "scalar_tensor": "full", "conv1d.padding": "conv1d", "conv2d.padding": "conv2d",
    "conv3d.padding": "conv3d",
}  # fmt: skip


class ExportedRecipe(Protocol):
    """What is asked of a recipe that is a program."""

    @property
    def takes_statistics(self) -> bool:
        """Whether ``build`` takes sums of ``prepare``."""
        ...

    def build(self, statistics: Any = None, parameters: Any = None) -> nn.Module:
        """A fresh model."""
        ...

    def optimization(self, model: nn.Module) -> Any:
        """Its optimizer and schedulers."""
        ...

    def unchecked_loss(self, model: nn.Module, batch: Batch, step: Any) -> Any:
        """The loss of a batch."""
        ...

    def predict(self, model: nn.Module, batch: Batch) -> Any:
        """The answer to a batch."""
        ...

    def find(self, name: str) -> Callable[..., Any] | None:
        """A function of the entry file."""
        ...


def export_recipe(
    recipe: ExportedRecipe,
    schema: Schema,
    *,
    parameters: Mapping[str, Any] | None = None,
    statistics: Mapping[str, Tensor] | None = None,
    rows: int = 4,
) -> dict[str, bytes]:
    """The bundle of the graph recipe: `graph.json` and its weights, by path.

    Args:
        recipe: Runs unguarded, so that its own errors say where.
        schema: Of the rows.
        parameters: The job's, for ``build``.
        statistics: Sums of ``prepare``, for a ``build`` that takes them.
        rows: Of the batch that is followed; no number of rows stands in the document.

    Raises:
        JobError: ``no-graph``, with the line of the recipe and the reason.
    """
    named = dict(parameters or {})
    with followed() as watching, torch.random.fork_rng(devices=()):
        if recipe.find("build") is not None and recipe.takes_statistics:
            raise _no_graph(
                "build() takes the sums of prepare(), which are known only when training begins"
            )
        begun = torch.get_rng_state()

        def exporter(values: dict[str, Any]) -> _Exporter:
            torch.set_rng_state(begun)
            return _Exporter(recipe, schema, values, rows, watching.lines)

        document, weights = exporter(named).document()
        others = {}
        for name, value in _candidates(document).items():
            with suppress(JobError):  # another model, which cannot be exported
                changed = exporter(named | {name: value}).optimizer()
                if value in _values(changed):
                    others[name] = value
        if others:
            with suppress(JobError):
                other = exporter(named | others).document()
                document = _with_names(document, weights, others, other)
    return {GRAPH_ENTRY: document.to_bytes(), GRAPH_WEIGHTS: weights}


def _no_graph(why: str, path: str = "", line: int = 0) -> JobError:
    """The error for a recipe of which no graph can be made."""
    at = f" because of {path}:{line}" if path else ""
    return JobError(
        f"the recipe cannot be a graph{at}",
        why=why,
        code="no-graph",
    )


def _candidates(document: GraphRecipeDocument) -> dict[str, Any]:
    """Another value for each of the job's parameters that equals an option."""
    found: dict[str, Any] = {}
    for name, value in document.parameters.items():
        if type(value) in (int, float) and value in _values(document.optimizer):
            step = len(found) + 2
            found[name] = value + step if type(value) is int else value * (1 + 1 / step)
    return found


def _values(optimizer: NamedOptimizer | None) -> list[Any]:
    return [value for table in _options(optimizer) for value in table.values()]


def _options(optimizer: NamedOptimizer | None) -> list[dict[str, Any]]:
    if optimizer is None:
        return []
    tables = [each.options for each in optimizer.groups]
    return tables + [each.options for each in optimizer.schedules]


def _with_names(
    document: GraphRecipeDocument,
    weights: bytes,
    others: Mapping[str, Any],
    other: tuple[GraphRecipeDocument, bytes],
) -> GraphRecipeDocument:
    """The document, whose options name the parameters that they follow.

    A parameter may be named if nothing but options differs where it has another value.
    """
    named = read_graph(document.to_bytes())
    for own, changed in zip(
        _options(named.optimizer), _options(other[0].optimizer), strict=False
    ):
        for option, value in own.items():
            for name, wanted in others.items():
                follows = changed.get(option) == wanted
                if follows and value == document.parameters[name]:
                    own[option] = changed[option] = {"parameter": name}
    alike = replace(other[0], parameters=named.parameters) == named
    return named if alike and other[1] == weights else document


class _StepNumber:
    """Stands for the number of the step, which a list of operations does not know."""

    def __eq__(self, other: object) -> bool:
        raise TypeError("the loss depends on the number of the step")

    def __bool__(self) -> bool:
        raise TypeError("the loss depends on the number of the step")

    __hash__ = None  # type: ignore[assignment]


class _Followed(nn.Module):
    """A function of a recipe as a module, with one argument for each field.

    Args:
        model: What the function is given; None for ``prepare``.
        work: The function; gives a list of tensors and numbers.
        fields: Names of the fields.
    """

    def __init__(
        self, model: nn.Module | None, work: Callable[..., Any], fields: list[str]
    ) -> None:
        super().__init__()
        self.model = model
        self.__dict__["work"], self.__dict__["fields"] = work, fields

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        """The outputs."""
        batch = dict(zip(self.fields, given, strict=True))
        return tuple(map(_as_tensor, self.work(self.model, batch)))


def _as_tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    whole = isinstance(value, (int, torch.SymInt))
    return torch.full((), value, dtype=torch.int64 if whole else torch.float64)


@dataclass
class _Found:
    """What several graphs of one recipe share."""

    inputs: list[str]
    entries: dict[str, StateEntry] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    constants: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def constant(self, tensor: Tensor) -> str:
        """The name of a constant; equal ones are one."""
        plain = tensor.detach().cpu().contiguous()
        content = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
        key = (plain.dtype, tuple(plain.shape), Digest.of(content))
        if key not in self.constants:
            name = f"constants.c{len(self.constants)}"
            self.constants[key] = name
            self.add(
                StateEntry(
                    name, "constant", _dtype_name(plain.dtype), tuple(plain.shape)
                ),
                plain,
            )
        return self.constants[key]

    def add(self, entry: StateEntry, tensor: Tensor) -> None:
        """Take an entry, and its content unless it shares another's memory."""
        self.entries[entry.name] = entry
        if not entry.same_as:
            self.tensors[entry.name] = tensor.detach().cpu().clone().contiguous()


class _Exporter:
    """One recipe's export."""

    def __init__(
        self,
        recipe: ExportedRecipe,
        schema: Schema,
        parameters: dict[str, Any],
        rows: int,
        lines: Lines,
    ) -> None:
        self._lines = lines
        self._recipe, self._schema, self._parameters = recipe, schema, parameters
        self._batch = _example_batch(schema, rows)
        self._found = _Found([each.name for each in schema.fields])

    def document(self) -> tuple[GraphRecipeDocument, bytes]:
        """The document, checked, and the state's bytes."""
        found, graphs, optimizer = self._found, dict[str, Any](), None
        recipe = self._recipe
        if recipe.find("build") is not None:
            model = _guarded(lambda: recipe.build({}, self._parameters))
            self._take_state(model)
            optimizer = self._optimizer_of(model)
            graphs = self._graphs_of(model)
        prepare = recipe.find("prepare")
        if prepare is not None:
            graphs["prepare"] = self._trace(None, lambda _model, batch: prepare(batch))
        inputs = tuple(
            GraphInput(each.name, each.dtype, tuple(each.shape))
            for each in self._schema.fields
        )
        weights = safetensors.torch.save(found.tensors)
        numbered = {name: _numbered(graph, found) for name, graph in graphs.items()}
        document = GraphRecipeDocument(
            version=1,
            inputs=inputs,
            state=tuple(found.entries.values()),
            weights=Digest.of(weights),
            parameters=self._parameters,
            loss=numbered.get("loss"),
            evaluate=numbered.get("evaluate"),
            predict=numbered.get("predict"),
            prepare=numbered.get("prepare"),
            optimizer=optimizer,
        )
        try:
            return read_graph(document.to_bytes()), weights
        except MalformedError as error:
            raise _no_graph(error.why) from None

    def _graphs_of(self, model: nn.Module) -> dict[str, Any]:
        recipe = self._recipe
        step = _StepNumber()
        model.train()
        graphs = {
            "loss": self._trace(
                model, lambda m, batch: {"loss": recipe.unchecked_loss(m, batch, step)}
            )
        }
        model.eval()
        evaluate = recipe.find("evaluate")
        if evaluate is not None:
            graphs["evaluate"] = self._trace(model, evaluate)
        else:
            graphs["evaluate"] = self._trace(model, self._loss_sum)
        if recipe.find("predict") is not None or self._answers(model):
            graphs["predict"] = self._trace(model, self._answer)
        return graphs

    def _loss_sum(self, model: nn.Module, batch: Batch) -> dict[str, Any]:
        loss = self._recipe.unchecked_loss(model, batch, _StepNumber()).to(
            torch.float64
        )
        return {"loss": loss * next(iter(batch.values())).shape[0]}

    def _answer(self, model: nn.Module, batch: Batch) -> Mapping[str, Any]:
        answer = self._recipe.predict(model, batch)
        return {"": answer} if isinstance(answer, Tensor) else answer

    def _answers(self, model: nn.Module) -> bool:
        """Whether a model without ``predict`` can be called with fields of the rows."""
        try:
            with torch.no_grad():
                found = self._recipe.predict(
                    model, {n: e.clone() for n, e in self._batch.items()}
                )
        except Exception:  # the recipe's own: such a model is trained, and not served
            return False
        found = {"": found} if isinstance(found, Tensor) else found
        rows = len(next(iter(self._batch.values())))
        tensors = isinstance(found, Mapping) and all(
            isinstance(e, Tensor) for e in found.values()
        )
        return tensors and all(e.dim() and len(e) == rows for e in found.values())

    def _take_state(self, model: nn.Module) -> None:
        parameters = dict(model.named_parameters(remove_duplicate=False))
        buffers = dict(model.named_buffers(remove_duplicate=False))
        saved = model.state_dict()
        places: dict[int, str] = {}
        for name in [*saved, *(n for n in buffers if n not in saved)]:
            own = parameters.get(name, buffers.get(name))
            if own is None:
                raise _no_graph(f"the model's state has {name}, which is not a tensor")
            kind: StateKind
            if name in parameters:
                kind = "parameter" if own.requires_grad else "frozen"
            else:
                kind = "buffer" if name in saved else "unsaved"
            same = places.setdefault(id(own), name)
            entry = StateEntry(
                name,
                kind,
                _dtype_name(own.dtype),
                tuple(own.shape),
                "" if same == name else same,
            )
            self._found.add(entry, own)

    def optimizer(self) -> NamedOptimizer:
        """The optimizer of a fresh model, in the document's words."""
        own = self._parameters
        return self._optimizer_of(_guarded(lambda: self._recipe.build({}, own)))

    def _optimizer_of(self, model: nn.Module) -> NamedOptimizer:
        def described(m: nn.Module) -> Any:
            return describe_optimizer(m, self._recipe.optimization(m))

        try:
            made: NamedOptimizer = _guarded(lambda: described(model))
        except NoNameError as error:
            raise _no_graph(str(error)) from None
        return made

    def _trace(self, model: nn.Module | None, work: Callable[..., Any]) -> _Traced:
        names: list[str] = []

        def values(of: Any, batch: Batch) -> list[Any]:
            named = work(of, batch)
            names[:] = named
            return list(named.values())

        module = _Followed(model, values, self._found.inputs)
        given = tuple(each.clone() for each in self._batch.values())
        axes = tuple({0: Dim("rows")} for _ in given)

        def follow() -> ExportedProgram:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exported = torch.export.export(
                    module, given, dynamic_shapes=(axes,), strict=False
                )
                return exported.run_decompositions(RECURRENT | row_losses(exported))

        return _Translation(_guarded(follow), names, self._found, self._lines).made()


@dataclass
class _Traced:
    """A graph whose values have names of their own; numbers come once the state is whole."""

    nodes: list[tuple[str, tuple[Any, ...], tuple[TensorForm, ...], tuple[str, ...]]]
    outputs: dict[str, str]
    updates: dict[str, str]


@dataclass(frozen=True)
class _Value:
    """A value by its name in the traced graph."""

    name: str


class _Translation:
    """From ATen's graph to the closed list's terms."""

    def __init__(
        self, program: ExportedProgram, names: list[str], found: _Found, lines: Lines
    ) -> None:
        self._lines = lines
        self._program, self._names, self._found = program, names, found
        self._values: dict[str, str] = {}  # by the name of a node in the program
        self._parts: dict[str, tuple[str, ...]] = {}
        self._nodes: list[Any] = []
        self._rows: Any = None

    def made(self) -> _Traced:
        """The graph."""
        outputs: list[Any] = []
        for node in self._program.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node)
            elif node.op == "output":
                outputs = list(node.args[0])
            else:
                self._operation(node)
        updates, wanted = dict[str, str](), list[str]()
        for spec, value in zip(
            self._program.graph_signature.output_specs, outputs, strict=True
        ):
            name = self._values.get(getattr(value, "name", ""))
            if name is None:
                raise _no_graph("it gives something other than a tensor")
            if spec.kind.name == "BUFFER_MUTATION":
                updates[str(spec.target).removeprefix(_MODEL)] = name
            elif spec.kind.name == "USER_OUTPUT":
                wanted.append(name)
            else:
                raise _no_graph("it changes a parameter, or a row, in place")
        named = dict(zip(self._names, wanted, strict=True))
        return _Traced(
            _without_unused(self._nodes, [*wanted, *updates.values()]), named, updates
        )

    def _placeholder(self, node: Any) -> None:
        signature = self._program.graph_signature
        state = signature.inputs_to_parameters | signature.inputs_to_buffers
        if node.name in state:
            self._values[node.name] = state[node.name].removeprefix(_MODEL)
        elif node.name in signature.inputs_to_lifted_tensor_constants:
            of = signature.inputs_to_lifted_tensor_constants[node.name]
            self._values[node.name] = self._found.constant(self._program.constants[of])
        else:
            place = sum(each.startswith("=") for each in self._values.values())
            self._values[node.name] = f"={self._found.inputs[place]}"
            size = node.meta["val"].shape[0]
            if isinstance(size, torch.SymInt):
                self._rows = size.node.expr

    def _operation(self, node: Any) -> None:
        if node.target is operator.getitem:
            of, place = node.args
            part = self._parts[of.name][place]
            if part == "":
                raise self._refuse(node, "it uses the mask of a dropout")
            self._values[node.name] = part
            return
        made = node.meta.get("val")
        if isinstance(made, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return  # numbers stand where they are used
        name = _operation_name(node.target)
        if name in _DROPPED:
            return
        if name in _IDENTITIES:
            self._values[node.name] = self._value(node, node.args[0])
            return
        if name == "broadcast_tensors":
            self._broadcast(node)
            return
        self._translate(node, name)

    def _broadcast(self, node: Any) -> None:
        """Stretch each of several tensors to the shape that all of them have then."""
        self._parts[node.name] = parts = tuple(
            f"{node.name}.{place}" for place in range(len(node.args[0]))
        )
        for own, given, made in zip(parts, node.args[0], node.meta["val"], strict=True):
            form = self._form(node, made)
            arguments = (_Value(self._value(node, given)), form.shape)
            self._nodes.append(("expand", arguments, (form,), (own,)))

    def _padding(self, node: Any, given: Mapping[str, Any]) -> list[int]:
        """A convolution's padding that is given by a word, as numbers."""
        kernel = given["weight"].meta["val"].shape[2:]
        around = [
            int(dilation) * (int(size) - 1)
            for dilation, size in zip(given["dilation"], kernel, strict=True)
        ]
        if given["padding"] == "valid":
            return [0 for _ in around]
        if any(each % 2 for each in around):
            raise self._refuse(node, "padding='same' needs a kernel of odd size")
        return [each // 2 for each in around]

    def _translate(self, node: Any, name: str) -> None:
        results = node.meta.get("val")
        many = isinstance(results, (list, tuple))
        forms = tuple(
            self._form(node, each) for each in (results if many else [results])
        )
        known = "view" if name in _TO_SIZE else _SAME_OPERATION.get(name, name)
        operation = OPERATIONS.get(known)
        if operation is None:
            raise self._refuse(
                node, f"operation {name} is not on the list (spec/graph.md)"
            )
        given = _bind(node)
        own = tuple(f"{node.name}.{place}" for place in range(len(forms)))
        self._parts[node.name] = own
        if name == "native_dropout":
            forms, own = forms[:1], own[:1]
            self._parts[node.name] = (*own, "")
            given["train"] = True
        if name.endswith(".padding"):
            given["padding"] = self._padding(node, given)
        if known in ("view", "expand"):
            given["size"] = list(forms[0].shape)
        if operation.family == "creation" or known in ("rand", "randn"):
            given |= _creation(name, given, forms[0])
        # The shape of the result stands for what such an operation was given.
        replaced = (
            given.keys() if name in _TO_SIZE else _REPLACED.get(operation.family, ())
        )
        known_names = {a.name for a in operation.arguments} | _IGNORED | set(replaced)
        for each, value in given.items():
            unknown = each not in known_names
            if unknown and value not in (None, False, _default(node, each)):
                raise self._refuse(node, f"{name} with {each} is not on the list")
        arguments = tuple(
            self._argument(node, each, given.get(each.name))
            for each in operation.arguments
        )
        self._nodes.append((known, arguments, forms, own))
        self._values[node.name] = own[0]

    def _argument(self, node: Any, argument: Argument, given: Any) -> Any:
        if argument.many and given is not None:
            items = given if isinstance(given, (list, tuple)) else [given]
            return tuple(self._item(node, argument, each) for each in items)
        return self._item(node, argument, given)

    def _item(self, node: Any, argument: Argument, given: Any) -> Any:
        if given is None or argument.kind in "BL":
            return given
        if argument.kind == "D":
            return given if isinstance(given, str) else _dtype_name(given)
        if isinstance(given, torch.fx.Node):
            made = given.meta.get("val")
            if not isinstance(made, (torch.SymInt, torch.SymFloat)):
                return _Value(self._value(node, given))
            given = made
        if isinstance(given, (torch.SymInt, torch.SymFloat)):
            given = self._size(node, given)
        if isinstance(given, str):
            return given
        if isinstance(given, int) and abs(given) > MAX_INTEGER:
            if argument.name != "end":
                raise self._refuse(node, "it uses a whole number above 2^53")
            return None  # the end of an axis
        if argument.kind == "F" or isinstance(given, float):
            return repr(float(given))
        return f"={int(given)}" if argument.kind == "N" else given

    def _value(self, node: Any, given: Any) -> str:
        found = self._values.get(getattr(given, "name", ""))
        if found is None:
            raise self._refuse(node, "it uses something that is not a tensor")
        return found

    def _form(self, node: Any, made: Any) -> TensorForm:
        if not isinstance(made, Tensor):
            raise self._refuse(node, f"{node.target} does not give a tensor")
        return TensorForm(
            _dtype_name(made.dtype),
            tuple(self._size(node, each) for each in made.shape),
        )

    def _size(self, node: Any, given: Any) -> Size:
        if isinstance(given, (torch.SymInt, torch.SymFloat)):
            expression = given.node.expr
            rows = sympy.Symbol("rows")
            plain = expression.replace(
                lambda e: type(e).__name__ == "ToFloat", lambda e: e.args[0]
            ).subs(self._rows, rows)
            try:
                polynomial = sympy.Poly(sympy.expand(plain), rows)
            except sympy.PolynomialError:
                polynomial = None
            parts = polynomial.all_coeffs() if polynomial is not None else []
            if not 1 <= len(parts) <= 2 or not all(each.is_Integer for each in parts):
                raise self._refuse(
                    node,
                    "a size or number depends on values, or on the number of rows in another way than a multiple of it",
                )
            more = int(parts[-1])
            return size_text(int(parts[0]) if len(parts) == 2 else 0, more)
        return int(given)

    def _refuse(self, node: Any, why: str) -> JobError:
        lines = _LINE.findall(node.meta.get("stack_trace") or "")
        base = _operation_name(node.target).partition(".")[0].strip("_")
        path, line = lines[-1] if lines else self._lines.get(base, ("", 0))
        return _no_graph(why, path, int(line))


def _bind(node: Any) -> dict[str, Any]:
    """All arguments of an ATen call by name."""
    schema = _schema_of(node.target)
    given: dict[str, Any] = {}
    for place, argument in enumerate(schema.arguments):
        if place < len(node.args):
            given[argument.name] = node.args[place]
        else:
            given[argument.name] = node.kwargs.get(
                argument.name, argument.default_value
            )
    return given


def _schema_of(target: Any) -> Any:
    return vars(target)["_schema"]


def _default(node: Any, name: str) -> Any:
    return next(
        a.default_value for a in _schema_of(node.target).arguments if a.name == name
    )


def _creation(name: str, given: Mapping[str, Any], form: TensorForm) -> dict[str, Any]:
    """What a new tensor is made of."""
    more: dict[str, Any] = {"dtype": form.dtype}
    if name.startswith("arange"):
        more |= {"start": given.get("start", 0), "step": given.get("step", 1)}
    elif name == "scalar_tensor":
        more |= {"size": [], "fill_value": given["s"]}
    else:
        more["size"] = list(form.shape)
    return more


def _operation_name(target: Any) -> str:
    text = str(target).removeprefix("aten.")
    return text.removesuffix(".default")


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _without_unused(nodes: list[Any], wanted: list[str]) -> list[Any]:
    """Nodes that somebody needs, in their order."""
    needed, kept = set(wanted), []
    for node in reversed(nodes):
        if needed & set(node[3]):
            kept.append(node)
            needed |= {each.name for each in _values_in(node[1])}
    return kept[::-1]


def _values_in(given: Any) -> Iterator[_Value]:
    if isinstance(given, _Value):
        yield given
    elif isinstance(given, tuple):
        for each in given:
            yield from _values_in(each)


def _numbered(traced: _Traced, found: _Found) -> Graph:
    """The graph with a number for each value."""
    order = [*(f"={name}" for name in found.inputs), *found.entries]
    numbers = {name: place for place, name in enumerate(order)}

    def number(given: Any) -> Any:
        if isinstance(given, _Value):
            return numbers[given.name]
        return tuple(map(number, given)) if isinstance(given, tuple) else given

    nodes = []
    for name, arguments, forms, own in traced.nodes:
        nodes.append(Node(name, number(arguments), forms))
        numbers |= {each: len(numbers) + place for place, each in enumerate(own)}
    return Graph(
        tuple(nodes),
        {name: numbers[each] for name, each in traced.outputs.items()},
        {name: numbers[each] for name, each in traced.updates.items()},
    )


def _example_batch(schema: Schema, rows: int) -> Batch:
    """Rows that the schema allows, all alike."""
    batch = {}
    for each in schema.fields:
        low, high = each.bounds
        value = (
            0 if (low or 0) <= 0 <= (high if high is not None else 0) else low or high
        )
        batch[each.name] = torch.full(
            (rows, *each.shape), value, dtype=getattr(torch, each.dtype)
        )
    return batch


def _guarded(work: Callable[[], Any]) -> Any:
    """Do what runs the recipe's code; its errors become one with its line.

    Raises:
        JobError: ``no-graph``.
    """
    try:
        return work()
    except (JobError, NoNameError):
        raise
    except Exception as error:
        trace, path, line = error.__traceback__, "", 0
        while trace is not None:
            name = trace.tb_frame.f_code.co_filename
            if name.startswith(BUNDLE):
                path, line = name.removeprefix(BUNDLE), trace.tb_lineno
            trace = trace.tb_next
        text = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise _no_graph(_plain_reason(error, text), path, line) from None


def _plain_reason(error: Exception, text: str) -> str:
    kind = type(error).__name__
    if "DataDependent" in kind or "data-dependent" in text:
        return "what it does next depends on values of the rows"
    if "Constraint" in text or "specialized" in text:
        return "it works only with one number of rows"
    return f"{kind}: {text[:200]}"
