"""A recipe on synthetic rows, and a recipe that is written down as a graph; in the sandbox."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Final

from sealift.data.schema.document import schema_from_plain
from sealift.errors import SealiftError, require_kind
from sealift.graph.export import export_recipe
from sealift.recipes import provide_assets
from sealift.release.agreement.terms import GRAPH_ENTRY, GRAPH_WEIGHTS
from sealift.train.loop.faults import describe
from sealift.train.loop.tasks import Rehearsal
from sealift.train.sandboxed.graphrecipe import LoadedRecipe, load_recipe
from sealift.train.sandboxed.parentpipe import WorkerEnd
from sealift.train.sandboxed.recipe import Recipe, let_through
from sealift.train.sandboxed.rehearsal import Asked, find_difference, rehearse
from sealift.train.sandboxed.training import enter_stream
from sealift.train.worker.messages import (
    Exported,
    NotExported,
    TrialFailed,
    TrialOrder,
)

MAX_TRACEBACK: Final = 60_000  # characters
MAX_CAUSES: Final = 20


class TriedRecipe:
    """A recipe on synthetic rows: all that it says may be shown.

    Args:
        order: What to try.
        parent: Is told how it went.
        files: The bundle's.
    """

    def __init__(
        self, order: TrialOrder, parent: WorkerEnd, files: Mapping[str, bytes]
    ) -> None:
        self._order, self._parent, self._files = order, parent, files

    def do(self) -> None:
        """Try it, and say how it went."""
        answer: object
        doing = [""]
        try:
            recipe = load_recipe(self._files, self._order.entry, guard=let_through)
            if self._order.export:
                answer = self._exported(recipe)
            else:
                answer = self._try(recipe, doing.append)
        except SealiftError as error:
            answer = describe(error)
        except BaseException as error:  # sys.exit() included
            answer = _failed(error, doing[-1])
        self._parent.answer(answer)

    def _exported(self, recipe: LoadedRecipe) -> Exported | NotExported:
        """Whatever keeps it from being a graph is a reason: the recipe itself was tried."""
        try:
            return self._export(recipe)
        except SealiftError as error:
            return NotExported(
                f"{error.what}: {error.why}" if error.why else error.what
            )
        except Exception as error:
            text = str(error).strip().partition("\n")[0]
            return NotExported(
                f"{type(error).__name__} while it was written down: {text}"
            )

    def _export(self, recipe: LoadedRecipe) -> Exported | NotExported:
        """Write it down as a graph, and try that; the graph is what will run."""
        order, schema = self._order, schema_from_plain(self._order.schema)
        settings = order.settings
        enter_stream(settings.seed, "build")  # as a run builds its model
        own = require_kind(recipe, Recipe)
        files = export_recipe(
            own,
            schema,
            parameters=settings.parameters,
            rows=settings.batch_rows,
        )
        provide_assets({GRAPH_WEIGHTS: memoryview(files[GRAPH_WEIGHTS])})
        graph, weights = files[GRAPH_ENTRY], files[GRAPH_WEIGHTS]
        code = {GRAPH_ENTRY: graph}
        again = load_recipe(code, GRAPH_ENTRY, guard=let_through)
        differs = find_difference(own, again, schema, settings)
        if differs:
            return NotExported(
                f"as a graph it computes something else: {differs}. A graph does not follow "
                "torch.no_grad(), hooks, a torch.autograd.Function of your own, or values "
                "that change from step to step"
            )
        tried = self._try(again, lambda _what: None)
        if len(graph) + len(weights) > len(self._parent.buffers):
            return NotExported("its weights are larger than this machine's free memory")
        self._parent.buffers[: len(graph)] = graph
        self._parent.buffers[len(graph) : len(graph) + len(weights)] = weights
        return Exported(len(graph), len(weights), tried)

    def _try(self, recipe: LoadedRecipe, begin: Callable[[str], None]) -> Rehearsal:
        order, asked = self._order, None
        if order.inputs:
            schemas = schema_from_plain(order.inputs), schema_from_plain(order.outputs)
            asked = Asked(*schemas)
        return rehearse(
            recipe,
            schema_from_plain(order.schema),
            order.settings,
            rows=order.rows,
            steps=order.steps,
            clock=time.perf_counter,
            asked=asked,
            begin=begin,
        )


def _failed(error: BaseException, doing: str) -> TrialFailed:
    text = "".join(traceback.format_exception(error))[-MAX_TRACEBACK:]
    kind = type(error).__name__
    return TrialFailed(type=kind, doing=doing, text=text, file=_file_behind(error))


def _file_behind(error: BaseException | None) -> str:
    """What could not be opened; a library may have raised an error of its own about it."""
    for _ in range(MAX_CAUSES):
        if error is None:
            break
        if isinstance(error, OSError) and isinstance(error.filename, str | bytes):
            return os.fsdecode(error.filename)
        hidden = error.__suppress_context__  # "from None": it is about something else
        error = error.__cause__ or (None if hidden else error.__context__)
    return ""
