"""A recipe without a program: what `Recipe` does, from a list of operations.

No Python of anybody else is executed: the document is read, its operations are run by
`sealift.graph`, and optimizers are made by name. The guard is there for what an operation
may say of the values that it was given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from sealift import recipes
from sealift.errors import MalformedError, SealiftError, require_value
from sealift.graph.bounds import demand_bounds, own_room
from sealift.graph.document import GraphRecipeDocument, read_graph
from sealift.graph.interpreter import CompiledGraph
from sealift.graph.optimizers import make_optimizer
from sealift.ids import Digest
from sealift.release.agreement.terms import GRAPH_ENTRY, GRAPH_WEIGHTS
from sealift.release.agreement.training import Parameter
from sealift.train.loop.faults import unfit
from sealift.train.sandboxed.imports import Files, Guard, Notice, unnoticed
from sealift.train.sandboxed.placement import Batch
from sealift.train.sandboxed.recipe import Containment, Recipe, sums_by_place
from sealift.train.sandboxed.schedules import Optimization, Schedule


class GraphModel(nn.Module):
    """The parameters and buffers of a document, under their names.

    Args:
        document: Checked.
        tensors: Its state by name.
        parameters: The job's, which options of the optimizer may name.
    """

    def __init__(
        self,
        document: GraphRecipeDocument,
        tensors: Mapping[str, Tensor],
        parameters: Mapping[str, Parameter],
    ) -> None:
        super().__init__()
        self.__dict__["job_parameters"] = dict(parameters)
        places: dict[str, tuple[dict[str, Any], str]] = {}
        self.__dict__["places"] = places
        self.__dict__["constants"] = constants = dict[str, Any]()
        for entry in document.state:
            if entry.kind == "constant":
                constants[entry.name] = tensors[entry.name].clone()
                places[entry.name] = constants, entry.name
                continue
            *path, name = entry.name.split(".")
            module: nn.Module = self
            for each in path:
                inner = vars(module)["_modules"]
                if each not in inner:
                    _require_free(module, each, entry.name)
                    inner[each] = nn.Module()
                module = inner[each]
            _require_free(module, name, entry.name)
            if entry.same_as:
                own = places[entry.same_as]
                value = own[0][own[1]]
            else:
                value = tensors[entry.name].clone()
            if entry.kind in ("parameter", "frozen"):
                if not entry.same_as:
                    value = nn.Parameter(value, requires_grad=entry.kind == "parameter")
                vars(module)["_parameters"][name] = value
                places[entry.name] = vars(module)["_parameters"], name
            else:
                vars(module)["_buffers"][name] = value
                if entry.kind == "unsaved":
                    vars(module)["_non_persistent_buffers_set"].add(name)
                places[entry.name] = vars(module)["_buffers"], name

    def tensors(self, device: torch.device) -> dict[str, Tensor]:
        """All that its graphs begin with, by name, as it is now."""
        constants = self.__dict__["constants"]
        for name, each in constants.items():
            if each.device != device:
                constants[name] = each.to(device)
        return {
            name: held[own] for name, (held, own) in self.__dict__["places"].items()
        }

    def put(self, updates: Mapping[str, Tensor]) -> None:
        """Have other tensors in the place of buffers."""
        for name, value in updates.items():
            held, own = self.__dict__["places"][name]
            # It may be a view of a weight, or one number that is seen many times.
            held[own] = value.detach().clone(memory_format=torch.contiguous_format)


class GraphRecipe:
    """A recipe that is a list of operations.

    Args:
        document: As bytes.
        weights: The safetensors file with its state.
        guard: Runs operations; by default nothing that they say leaves.

    Raises:
        MalformedError: ``bad-graph``.
    """

    def __init__(
        self, document: bytes, weights: bytes, *, guard: Guard | None = None
    ) -> None:
        self.guard: Final[Guard] = guard or Containment(())
        self.document: Final = read_graph(document)
        self._tensors = _read_weights(self.document, weights)
        self._graphs = {
            n: CompiledGraph(self.document, n) for n in self.document.graphs()
        }
        self._prepares: GraphModel | None = None

    def defines(self, name: str) -> bool:
        """Whether it has what a program would have as a function of this name."""
        return ("loss" if name == "build" else name) in self._graphs

    def build(
        self,
        statistics: Mapping[str, Tensor] | None = None,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> GraphModel:
        """The model as the document has it; draws nothing.

        Args:
            statistics: Not used: the document's state was made without them.
            parameters: Of the job: others than the document's only for options.

        Raises:
            JobError: ``bad-recipe``: a parameter that it has not, or cannot change.
        """
        self._graph("loss", "no-build")
        own, named = self.document.parameters, dict(parameters or {})
        changed = {name for name, value in named.items() if own.get(name) != value}
        if not named.keys() <= own.keys():
            raise unfit("parameters")
        if changed - self.options_named:
            raise unfit("graph-parameters")
        return GraphModel(self.document, self._tensors, {**own, **named})

    @property
    def options_named(self) -> frozenset[str]:
        """The job's parameters that options of the optimizer name."""
        optimizer = self.document.optimizer
        if optimizer is None:
            return frozenset()
        tables = [each.options for each in optimizer.groups]
        tables += [each.options for each in optimizer.schedules]
        values = [value for table in tables for value in table.values()]
        return frozenset(each["parameter"] for each in values if isinstance(each, dict))

    @property
    def takes_statistics(self) -> bool:
        """Never: what ``build`` makes of sums is no list of operations."""
        return False

    def optimization(self, model: nn.Module) -> Optimization:
        """The optimizer that the document names, and its schedulers."""
        tensors = dict(model.named_parameters())
        named = require_value(self.document.optimizer, "a document with a loss has one")
        parameters = vars(model)["job_parameters"]
        try:
            optimizer, schedules = make_optimizer(named, tensors, parameters)
        except (TypeError, ValueError):
            raise unfit("no-optimizer") from None
        return Optimization(
            optimizer,
            [
                Schedule(each, by_step=step, every=every)
                for each, step, every in schedules
            ],
        )

    def loss(self, model: GraphModel, batch: Batch, step: int) -> Tensor:
        """The scalar training loss of one batch; buffers go on."""
        outputs, updates = self._run("loss", model, batch)
        model.put(updates)
        return outputs["loss"]

    def evaluate(self, model: GraphModel, batch: Batch) -> dict[str, float]:
        """Sums over one batch, by metric; as `Recipe.evaluate`."""
        outputs, _updates = self._run("evaluate", model, batch)
        return sums_by_place(outputs)

    def prepare(self, batch: Batch) -> Mapping[str, Any]:
        """Sums of one batch."""
        if self._prepares is None:
            self._prepares = GraphModel(self.document, self._tensors, {})
        return self._run("prepare", self._prepares, batch)[0]

    def predict(self, model: GraphModel, batch: Batch) -> Any:
        """What answers one batch: tensors by name, or one."""
        outputs, _updates = self._run("predict", model, batch)
        return outputs[""] if set(outputs) == {""} else outputs

    def generate(self, model: GraphModel, batch: Batch) -> Iterator[Any]:
        """A list of operations has an end: it generates nothing.

        Raises:
            JobError: ``bad-recipe``.
        """
        raise unfit("no-generate")

    def demand_room(self, rows: int, *names: str, copies: int = 1) -> None:
        """Refuse batches of so many rows if they take more than this process may have.

        Args:
            rows: Of a batch.
            names: Of the graphs that will run; none: all.
            copies: How many such batches are computed at one time.

        Raises:
            MalformedError: ``bad-graph``.
        """
        wanted = names or None
        demand_bounds(
            self.document, rows, memory_bytes=own_room(), names=wanted, copies=copies
        )

    def graph(self, name: str) -> CompiledGraph:
        """One of its graphs; ``loss``, say."""
        return self._graph(name, "no-build" if name == "loss" else f"no-{name}")

    def _graph(self, name: str, reason: str) -> CompiledGraph:
        if name not in self._graphs:
            raise unfit(reason)
        return self._graphs[name]

    def _run(
        self, name: str, model: GraphModel, batch: Batch
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        graph = self.graph(name)
        device = next(iter(batch.values())).device

        def run() -> Any:
            try:
                return graph.run(model.tensors(device), batch)
            except SealiftError as error:  # the guard would hide it
                return error

        found = self.guard(run)
        if isinstance(found, SealiftError):
            raise found
        return found


LoadedRecipe = Recipe | GraphRecipe


def load_recipe(
    files: Files, entry: str, *, guard: Guard | None = None, notice: Notice = unnoticed
) -> LoadedRecipe:
    """The recipe of a bundle: a list of operations if the entry is ``graph.json``.

    Args:
        files: The bundle: relative path -> bytes, already measured.
        entry: Path of the recipe inside it.
        guard: Runs what may be a recipe's own; by default nothing it says leaves.
        notice: Told of each of the bundle's modules before it runs.

    Raises:
        MalformedError: if the entry is not in the bundle, or is not valid.
        JobError: if the bundle does not load.
    """
    if entry != GRAPH_ENTRY:
        return Recipe(files, entry, guard=guard, notice=notice)
    if entry not in files:
        raise MalformedError(
            f"entry {entry!r} is not in the code bundle", code="bad-entry"
        )
    try:
        weights = bytes(recipes.asset(GRAPH_WEIGHTS.removeprefix("assets/")))
    except FileNotFoundError:
        _refuse(f"{GRAPH_WEIGHTS} is missing")
    return GraphRecipe(files[entry], weights, guard=guard)


def _require_free(module: nn.Module, name: str, of: str) -> None:
    """Refuse a state whose name is that of another one's module, or the other way round."""
    if any(
        name in vars(module)[f"_{kind}"]
        for kind in ("modules", "parameters", "buffers")
    ):
        _refuse(f"state {of[:80]}: {name[:80]} is a module and a tensor")


def _read_weights(document: GraphRecipeDocument, weights: bytes) -> dict[str, Tensor]:
    if Digest.of(weights) != document.weights:
        _refuse(f"{GRAPH_WEIGHTS} has another digest than the one in {GRAPH_ENTRY}")
    try:
        tensors = load(weights)
    except (SafetensorError, ValueError, KeyError):
        _refuse(f"{GRAPH_WEIGHTS} is no safetensors file")
    forms = {
        n: (str(e.dtype).removeprefix("torch."), tuple(e.shape))
        for n, e in tensors.items()
    }
    wanted = {e.name: (e.dtype, e.shape) for e in document.state if not e.same_as}
    if forms != wanted:
        _refuse(f"{GRAPH_WEIGHTS} has other tensors than {GRAPH_ENTRY} names")
    return tensors


def _refuse(why: str) -> NoReturn:
    raise MalformedError("the graph recipe is not valid", why=why, code="bad-graph")
