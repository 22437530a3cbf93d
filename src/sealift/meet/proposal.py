"""The host's recipe as a graph, which is what it proposes wherever that can be.

The recipe itself writes the graph, once, on the host's machine and in its sandbox. Beside it
lies a note of what it was made from, so that the same command declares the same graph again.
"""

from __future__ import annotations

import ast
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sealift.codec import decode, encode
from sealift.errors import JobError, MalformedError, UnavailableError
from sealift.graph.document import GraphRecipeDocument, read_graph
from sealift.ids import Digest
from sealift.meet.declaration import read_recipe, trial_order
from sealift.meet.folder import file_exists
from sealift.meet.messages import MAX_FILES_BYTES
from sealift.release.agreement.code import (
    digest_of,
    load_assets,
    measure_assets,
    measure_bundle,
)
from sealift.release.agreement.terms import GRAPH_ENTRY, GRAPH_WEIGHTS
from sealift.release.agreement.training import Parameter
from sealift.release.files import make_folder, read_whole, write_whole
from sealift.train.job.settings import JobTable
from sealift.train.loop.measures import names_of
from sealift.train.loop.tasks import Rehearsal
from sealift.train.worker import trial
from sealift.travel.settings import TrainingSettings

_MAX_NOTE: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeOf:
    """What a graph was made from; it lies beside the graph's folder.

    Attributes:
        recipe: Digest of the recipe's files, its schema's among them.
        seed: Of its first weights.
        batch_rows: Of the batch that it was written down with.
        parameters: Of its ``build``.
        graph: Digest of the graph's own files.
    """

    recipe: Digest
    seed: int
    batch_rows: int
    parameters: dict[str, Parameter] = field(default_factory=dict)
    graph: Digest


def _note_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")


def read_note(folder: Path) -> MadeOf | None:
    """What the graph in a folder was made from; None where none was made.

    Raises:
        UsageError: ``file-in-the-way``: something else lies there.
    """
    note = _note_of(folder)
    if not note.exists():
        if folder.exists():
            raise file_exists(folder.name)
        return None
    try:
        return decode(MadeOf, read_whole(note, _MAX_NOTE))
    except MalformedError:
        raise file_exists(note.name) from None


def proposed_graph(
    recipe: Path,
    folder: Path,
    job: JobTable,
    tried: Rehearsal,
    *,
    steps: int,
    tell: Callable[[str], None],
) -> Mapping[str, int] | None:
    """Write the recipe down as a graph, unless that lies there already.

    Args:
        recipe: Its folder.
        folder: Where the graph is to lie.
        job: As the recipe's folder says it; ``recipe = "code"`` asks for none.
        tried: How the recipe itself did on synthetic rows.
        steps: That the graph makes on them.
        tell: Gets a line for people.

    Returns:
        How often it has each operation; None where the recipe stays a program, which is said.

    Raises:
        JobError: ``no-graph``, with line and reason, if the job asks for a graph.
        UsageError: ``file-in-the-way``.
        SealiftError: as ``trial.export_recipe``; the disk refuses.
    """
    if job.recipe == "code":
        return None
    try:
        graph = _propose(recipe, folder, job.training, tried, steps=steps, tell=tell)
        _require_changeable(graph, job)
    except JobError as error:
        if error.code != "no-graph" or job.recipe == "graph":
            raise
        tell(
            f"the recipe cannot be a graph, so it runs as a program on every owner's machine: {error.why}"
        )
        return None
    counts = graph.counts()
    tell(
        f"the recipe is a graph of {sum(counts.values()):,} tensor operations: no program of "
        f"yours runs on an owner's machine (`sealift recipe show {folder.name}`)"
    )
    return counts


def _propose(
    recipe: Path,
    folder: Path,
    training: TrainingSettings,
    tried: Rehearsal,
    *,
    steps: int,
    tell: Callable[[str], None],
) -> GraphRecipeDocument:
    if recipe.resolve() == folder.resolve():
        raise _no_graph(
            "its folder has the name of the folder that Sealift writes graphs to"
        )
    files, schema = read_recipe(recipe)
    assets = load_assets(recipe, measure_assets(recipe))
    digests = {each.name: each.digest for each in assets}
    source = measure_bundle(files, "recipe.py", digests).digest
    before = read_note(folder)
    if before is not None and _is_made_of(before, source, training, folder):
        return read_graph((folder / GRAPH_ENTRY).read_bytes())
    tell("converting the recipe to a graph: a list of tensor operations")
    if _has(files["recipe.py"], "generate"):
        tell(
            "a graph has no generate(): if the model is served, it answers only predict()"
        )
    order = trial_order(schema, training, steps)
    made = trial.export_recipe(files, order, text=sys.stderr, tell=tell, assets=assets)
    graph = read_graph(made.graph)
    if len(made.graph) > MAX_FILES_BYTES:
        raise _no_graph(
            f"its graph has {len(made.graph):,} bytes, and a meeting's recipe at most "
            f"{MAX_FILES_BYTES:,}"
        )
    if set(names_of(made.tried.metrics)) != set(names_of(tried.metrics)):
        raise _no_graph("the graph returns other measures than evaluate()")
    if not assets and any(each.kind == "frozen" for each in graph.state):
        # Beside assets what is frozen stays with them; here the model would lack it.
        raise _no_graph("it freezes weights that are in none of its assets")
    note = _note_of(folder)
    note.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    write_graph(folder, made)
    written = MadeOf(
        recipe=source,
        seed=training.seed,
        batch_rows=training.batch_rows,
        parameters=training.parameters,
        graph=graph_digest(folder),
    )
    write_whole(note, encode(written))
    return graph


def _has(text: bytes, name: str) -> bool:
    """Whether a recipe defines or imports something of that name."""
    found = (
        [each.asname or each.name for each in node.names]
        if isinstance(node, ast.ImportFrom)
        else [getattr(node, "name", "")]
        for node in ast.parse(text).body
    )
    return any(name in each for each in found)


def _require_changeable(graph: GraphRecipeDocument, job: JobTable) -> None:
    """Refuse ranges of what later runs could not change: only options of the optimizer go on.

    Raises:
        JobError: ``no-graph``.
    """
    ranges = job.agreed.get("parameters", {})
    if graph.optimizer is None or not isinstance(ranges, Mapping):
        return
    tables = [each.options for each in graph.optimizer.groups]
    tables += [each.options for each in graph.optimizer.schedules]
    options = [value for table in tables for value in table.values()]
    named = {each["parameter"] for each in options if isinstance(each, Mapping)}
    if fixed := sorted(set(ranges) - named):
        raise _no_graph(
            f"later runs may change {', '.join(fixed)} ([agreed]), and only options of the "
            "optimizer, like its learning rate, can change in a graph"
        )


def _no_graph(why: str) -> JobError:
    """The error for a recipe that cannot be written down as a graph."""
    return JobError("the recipe cannot be a graph", why=why, code="no-graph")


def graph_digest(folder: Path) -> Digest:
    """Of the bundle that a folder has.

    Raises:
        UnavailableError: a file cannot be read.
    """
    graph = (folder / GRAPH_ENTRY).read_bytes()
    weights = {GRAPH_WEIGHTS: digest_of(folder / GRAPH_WEIGHTS)}
    return measure_bundle({GRAPH_ENTRY: graph}, GRAPH_ENTRY, weights).digest


def _is_made_of(
    note: MadeOf, source: Digest, training: TrainingSettings, folder: Path
) -> bool:
    own = (note.recipe, note.seed, note.batch_rows, note.parameters)
    now = (source, training.seed, training.batch_rows, training.parameters)
    try:
        return own == now and graph_digest(folder) == note.graph
    except (OSError, UnavailableError):
        return False


def write_graph(folder: Path, made: trial.ExportedGraph) -> None:
    """Write the two files of a graph.

    Raises:
        UnavailableError: ``cannot-write``.
    """
    path = folder / GRAPH_WEIGHTS
    make_folder(path.parent)
    try:
        with path.open("wb") as file:
            for piece in made.weights.pieces():
                file.write(piece)
    except OSError as error:
        raise UnavailableError(
            f"cannot write {path}", why=error, code="cannot-write"
        ) from None
    write_whole(folder / GRAPH_ENTRY, made.graph)
