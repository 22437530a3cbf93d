"""`sealift recipe`: show a graph recipe, operation by operation; write a recipe down as a graph."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sealift.cli.console import say
from sealift.errors import PolicyError, UsageError, visible
from sealift.graph.document import (
    GraphRecipeDocument,
    Node,
    is_value,
    read_graph,
)
from sealift.graph.operations import OPERATIONS
from sealift.ids import Digest
from sealift.release.agreement.code import measure_bundle, read_bundle
from sealift.release.agreement.phrases import count, say_list
from sealift.release.agreement.terms import GRAPH_ENTRY, GRAPH_WEIGHTS
from sealift.release.files import read_whole
from sealift.train.loop.states import parse_tensors

_WIDTH = 11


def add_parser(subparsers: Any) -> None:
    """Add the noun `recipe`."""
    verbs = subparsers.add_parser("recipe").add_verbs()
    parser = verbs.add_parser(
        "show",
        run=_show,
        help="show what a graph computes: inputs, state, optimizer, operations",
        description="Checks the graph as an owner's machine does before anything is signed, and "
        "prints its inputs, its first state and its tensor operations. It computes none "
        "of them.",
    )
    parser.add_path("graph", metavar="GRAPH", help="its folder, or its graph.json")
    parser.add_flag("--all", "print every operation, one on a line")
    parser = verbs.add_parser(
        "export",
        run=_export,
        help="convert a recipe to a graph, as `sealift host` does",
        description="Runs the recipe of a folder once, in the sandbox, and writes the graph and "
        "its first weights, for an agreement that is made by hand. Seed and batch come from "
        "[training] of the folder's job.toml, and parameters from [parameters].",
    )
    parser.add_path("recipe", metavar="RECIPE", help="the recipe's folder")
    parser.add_path("-o", "--out", required=True, metavar="DIR", help="must not exist")


def _show(args: argparse.Namespace) -> int:
    """Print the graph; the exit code.

    Raises:
        MalformedError: ``bad-graph``, ``graph-files``.
        PolicyError: ``graph-weights``: its weights are other ones.
    """
    place = args.graph
    path = place / GRAPH_ENTRY if place.is_dir() else place
    graph = read_graph(read_whole(path, 1 << 26))
    weights = path.parent / GRAPH_WEIGHTS
    held = weights.read_bytes() if weights.exists() else None
    if held is not None and Digest.of(held) != graph.weights:
        raise PolicyError(
            "the weights are not those of the graph",
            why=f"{weights} has another digest than {path.name} names",
            code="graph-weights",
        )
    if place.is_dir():  # refuses what is beside a graph
        digests = {} if held is None else {GRAPH_WEIGHTS: Digest.of(held)}
        measure_bundle(read_bundle(place), GRAPH_ENTRY, digests)
    for name, line in _facts(graph, held):
        print(visible(f"{name:<{_WIDTH}} {line}"))
    if args.all:
        for line in _operations(graph):
            print(visible(line))
    return 0


def _facts(graph: GraphRecipeDocument, held: bytes | None) -> Iterator[tuple[str, str]]:
    yield "kind", "graph: no program, only tensor operations"
    name = "inputs"
    for each in graph.inputs:
        yield name, f"{each.name}: {each.dtype} {_sizes(each.shape)}"
        name = ""
    numbers = sum(math.prod(e.shape) for e in graph.state if not e.same_as)
    yield (
        "state",
        f"{count(len(graph.state), 'tensor')}, {numbers:,} numbers; weights {graph.weights}",
    )
    bytes_of = {} if held is None else parse_tensors(held)
    for entry in graph.state:
        shared = f", the same as {entry.same_as}" if entry.same_as else ""
        found = bytes_of.get(entry.name)
        digest = ""
        if found is not None:
            digest = f" {hashlib.sha256(bytes(found.content)).hexdigest()[:16]}"  # type: ignore[arg-type]
        yield (
            "",
            f"{entry.name}: {entry.kind} {entry.dtype} {_sizes(entry.shape)}{digest}{shared}",
        )
    yield from _training(graph)
    counts = graph.counts()
    yield "operations", f"{sum(counts.values()):,}, of {count(len(counts), 'kind')}"
    for title, part in graph.graphs().items():
        outputs = say_list([name or "the answer" for name in part.outputs])
        yield "", f"{title}: {count(len(part.nodes), 'operation')}, gives {outputs}"
    for operation, times in counts.items():
        yield "", f"{times:>6,}  {operation}"


def _training(graph: GraphRecipeDocument) -> Iterator[tuple[str, str]]:
    if graph.optimizer is None:
        yield "optimizer", "none: this graph only computes sums"
        return
    name = "optimizer"
    for group in graph.optimizer.groups:
        said = _options(group.options)
        yield (
            name,
            f"{graph.optimizer.name} of {count(len(group.parameters), 'tensor')}: {said}",
        )
        name = ""
    for each in graph.optimizer.schedules:
        every = f"every {count(each.frequency, each.interval)}"
        yield "schedule", f"{each.name} {every}: {_options(each.options)}"
    if graph.parameters:
        yield "parameters", _options(graph.parameters)


def _options(options: Mapping[str, Any]) -> str:
    said = []
    for name, value in sorted(options.items()):
        if isinstance(value, dict):
            said.append(f"{name} = the job's {value['parameter']}")
        elif value is not None:
            said.append(f"{name} = {json.dumps(value)}")
    return ", ".join(said) or "default options"


def _operations(graph: GraphRecipeDocument) -> Iterator[str]:
    """Each on a line: values have numbers, and inputs and state their names."""
    named = [each.name for each in graph.inputs] + [each.name for each in graph.state]
    for title, part in graph.graphs().items():
        yield f"{title}:"
        at = len(named)
        for node in part.nodes:
            made = [f"%{at + place}" for place in range(len(node.results))]
            at += len(made)
            forms = [f"{each.dtype} {_sizes(each.shape)}" for each in node.results]
            yield (
                f"  {', '.join(made)} = {node.operation}({', '.join(_arguments(node, named))})"
                f" -> {', '.join(forms)}"
            )
        for output, value in part.outputs.items():
            yield f"  gives {output or 'the answer'}: {_value(value, named)}"
        for output, value in part.updates.items():
            yield f"  replaces {output}: {_value(value, named)}"


def _arguments(node: Node, named: list[str]) -> Iterator[str]:
    for argument, given in zip(
        OPERATIONS[node.operation].arguments, node.arguments, strict=True
    ):
        items = given if argument.many and given is not None else [given]
        said = [
            _value(each, named)
            if each is not None and is_value(argument, each)
            else "nothing"
            if each is None
            else str(each).lower()
            for each in items
        ]
        text = (
            f"[{', '.join(said)}]" if argument.many and given is not None else said[0]
        )
        yield f"{argument.name}={text}"


def _value(number: int, named: list[str]) -> str:
    return named[number] if number < len(named) else f"%{number}"


def _sizes(shape: tuple[int | str, ...]) -> str:
    return "x".join(map(str, shape)) or "a number"


def _export(args: argparse.Namespace) -> int:
    """Write the graph; the exit code.

    Raises:
        JobError: ``no-graph``.
        UsageError: ``output-exists``.
    """
    from sealift.codec import parse_toml
    from sealift.meet.declaration import read_recipe, trial_order
    from sealift.meet.proposal import write_graph
    from sealift.release.agreement.code import JOB_NAME, load_assets, measure_assets
    from sealift.train.job.settings import training_of
    from sealift.train.worker.trial import export_recipe

    if args.out.exists():
        raise UsageError(f"{args.out} exists already", code="output-exists")
    files, schema = read_recipe(args.recipe)
    job: Path = args.recipe / JOB_NAME
    plain = parse_toml(job.read_bytes(), source=job.name) if job.is_file() else {}
    made = export_recipe(
        files,
        trial_order(schema, training_of(plain), 2),
        text=sys.stderr,
        tell=say,
        assets=load_assets(args.recipe, measure_assets(args.recipe)),
    )
    graph = read_graph(made.graph)
    write_graph(args.out, made)
    say(f"{args.out}: a graph of {sum(graph.counts().values()):,} tensor operations")
    print(args.out)
    return 0
