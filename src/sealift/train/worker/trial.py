"""A trial of a recipe on synthetic rows, seen from its parent: in the sandbox of a real run.

So a recipe that opens a file, a socket or a program that it will not have fails here, and
its code touches nothing of the machine of whoever tries it. What it says is shown in full,
made fit for a terminal: no row of anybody is near.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Final, TextIO

from sealift.attest.level import Level
from sealift.data.schedule.memory import free_memory_bytes
from sealift.errors import (
    JobError,
    MalformedError,
    PeerError,
    SealiftError,
    require_kind,
    visible,
)
from sealift.release.agreement.code import Asset
from sealift.release.agreement.terms import GRAPH_ENTRY
from sealift.train.loop.faults import Fault, believable, explain
from sealift.train.loop.held import Held
from sealift.train.loop.tasks import ONE_ROW, Rehearsal
from sealift.train.sandbox.confine import Confinement
from sealift.train.worker.executor import RecipeExecutor
from sealift.train.worker.messages import (
    Exported,
    NotExported,
    TrialFailed,
    TrialOrder,
)
from sealift.train.worker.process import FAREWELL_S, TextTap, WorkerProcess, garbled
from sealift.train.worker.requests import Area
from sealift.train.worker.taskprocess import TaskLimits

_AREA_BYTES: Final = 4096  # nothing but messages passes
_MOST_WEIGHTS: Final = 32 << 30  # bytes; pages are taken as they are written
_MAX_WHY: Final = 1000
_DEVELOPMENT: Final = (Level.DEVELOPMENT,)
_LAST_BATCH: Final = (
    "The last batch of a visit may have one row: set drop_last = true in the job's "
    "[training]"
)
_PLAIN_IMPORT: Final = "Import the recipe's own files by their plain names, without a dot: `from layers import ...`"
_CLASSES: Final = (
    "The rows were generated from the schema: set `classes`, the number of values, "
    "for each column of labels or indices"
)


def try_recipe(
    files: Mapping[str, bytes],
    entry: str,
    orders: Sequence[TrialOrder],
    *,
    text: TextIO,
    tell: Callable[[str], None],
    accept: Sequence[Level] = _DEVELOPMENT,
    assets: Sequence[Asset] = (),
) -> list[Rehearsal]:
    """Try a recipe on the rows of each order.

    Args:
        files: The recipe's.
        entry: Path of the recipe among them.
        orders: What to try.
        text: Where its prints and its traceback go.
        tell: Gets a line if nothing keeps the recipe in.
        accept: Levels of the agreement; by default there is none yet.
        assets: What the recipe may read, beside its code.

    Raises:
        JobError: ``recipe-error``, ``foreign-file``, and whatever is wrong with the recipe.
        UnavailableError: ``no-sandbox``, under an agreement; ``no-memory``.
        MalformedError: ``bad-entry``, ``bundle-hides-module``.
    """
    with _confined(
        files, entry, text=text, tell=tell, accept=accept, assets=assets
    ) as executor:
        return [_try_one(executor, order, text) for order in orders]


@dataclass(frozen=True, slots=True)
class ExportedGraph:
    """A recipe as a graph.

    Attributes:
        graph: The document.
        weights: The tensors that it names, safetensors; in pieces.
        tried: How it did on synthetic rows.
    """

    graph: bytes
    weights: Held
    tried: Rehearsal


def export_recipe(
    files: Mapping[str, bytes],
    order: TrialOrder,
    *,
    text: TextIO,
    tell: Callable[[str], None],
    assets: Sequence[Asset] = (),
) -> ExportedGraph:
    """Have a recipe written down as a graph, in the sandbox of a real run.

    Args:
        files: The recipe's.
        order: Its entry and settings, and on which rows the graph is tried.
        text: Where the recipe's prints go.
        tell: Gets a line if nothing keeps the recipe in.
        assets: What the recipe may read, beside its code.

    Raises:
        JobError: ``no-graph``, with the line and what in it no graph can have; as
            ``try_recipe``.
        UnavailableError: ``no-memory``.
        MalformedError: ``bad-entry``, ``bundle-hides-module``; ``bad-graph``.
    """
    room = min(_MOST_WEIGHTS, free_memory_bytes() // 2)
    order = replace(order, export=True)
    with (
        _confined(files, order.entry, text=text, tell=tell, assets=assets) as executor,
        closing(Area(room)) as area,
    ):
        answer = _ask(executor, order, area, text, Exported, NotExported)
        if isinstance(answer, NotExported):
            raise JobError(
                "the recipe cannot be a graph",
                why=visible(answer.why)[:_MAX_WHY],
                code="no-graph",
            )
        made = require_kind(answer, Exported)
        try:
            graph = area.copy(0, made.graph)
            weights = area.take(made.graph, made.weights)
        except MalformedError:
            raise garbled() from None
        return ExportedGraph(graph, weights, made.tried)


@contextmanager
def _confined(
    files: Mapping[str, bytes],
    entry: str,
    *,
    text: TextIO,
    tell: Callable[[str], None],
    assets: Sequence[Asset],
    accept: Sequence[Level] = _DEVELOPMENT,
) -> Iterator[RecipeExecutor]:
    known = entry.endswith(".py") or entry == GRAPH_ENTRY
    if entry not in files or not known:
        what = f"entry {entry!r} is not in the code bundle"
        raise MalformedError(what, code="bad-entry")
    with RecipeExecutor(files, entry, text=text, assets=assets) as executor:
        confinement = Confinement.parse(executor.sandbox)
        confinement.require(accept)
        if not confinement.holds:
            tell(f"development: {confinement.say()}")
        yield executor


def _try_one(executor: RecipeExecutor, order: TrialOrder, text: TextIO) -> Rehearsal:
    with closing(Area(_AREA_BYTES)) as area:
        answer = _ask(executor, order, area, text, Rehearsal)
    answer = require_kind(answer, Rehearsal)
    if len(answer.losses) != 2 * bool(answer.steps):
        raise garbled()
    return answer


def _ask(
    executor: RecipeExecutor,
    order: TrialOrder,
    area: Area,
    text: TextIO,
    *kinds: type,
) -> object:
    """Have one worker do it; what it answers, of these kinds.

    Raises:
        SealiftError: as ``try_recipe``.
    """
    with ExitStack() as stack:
        control, equipment = stack.enter_context(executor.lend())
        shown = None if order.export else text  # torch would print what it follows
        tap = stack.enter_context(closing(TextTap(shown)))
        process = WorkerProcess(control, equipment, area)
        stack.callback(process.end, FAREWELL_S)
        process.allow(TaskLimits().work_s)
        try:
            process.start(free_memory_bytes(), tap, ())
            process.tell(replace(order, bundle=equipment.bundle.length))
            answer = process.hear(*kinds, TrialFailed, Fault).message
        except MalformedError:
            raise garbled() from None
        except PeerError as error:
            raise process.died(error, "trial") from None
    # Its prints have come, all of them.
    match answer:
        case TrialFailed():
            for line in answer.text.splitlines():
                text.write(f"{visible(line)}\n")
            raise _failure(answer)
        case Fault():
            raise _explain(answer, order, equipment.files)
    return answer


def _explain(
    fault: Fault, order: TrialOrder, files: Mapping[str, bytes]
) -> SealiftError:
    fields = frozenset(str(each.get("name")) for each in order.schema["fields"])
    steps, none = range(order.steps + 1), frozenset[str]()
    believed = believable(
        fault, files, fields=fields, parameters=none, steps=steps, gpu=False
    )
    return explain(believed)


def _failure(failed: TrialFailed) -> JobError:
    if failed.file:
        what = f"the recipe opens the file {failed.file[:200]!r}"
        why = "the sandbox does not contain this file"
        return JobError(what, why=why, code="foreign-file")
    fix = {"IndexError": _CLASSES, "ImportError": _PLAIN_IMPORT}.get(failed.type, "")
    fix = _LAST_BATCH if failed.doing == ONE_ROW else fix
    doing = f" at {failed.doing[:40]}" if failed.doing else ""
    what = f"the recipe failed with {failed.type[:80]}{doing}"
    return JobError(
        what, why="the output above has the details", fix=fix, code="recipe-error"
    )
