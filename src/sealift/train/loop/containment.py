"""Run a recipe's code so that nothing it says leaves by the way (rule H8).

``contain`` turns whatever a recipe raises into file, line and type: no message, no
values, and no exception object that would keep its frames, and so rows, alive. What the
recipe prints goes nowhere. ``let_through`` is for synthetic rows: it changes nothing.
For recipes that mean no harm; what keeps the others in is ``sandbox``.
"""

from __future__ import annotations

import builtins
import os
import traceback
from collections.abc import Callable, Collection
from contextlib import redirect_stderr, redirect_stdout, suppress
from types import FrameType, TracebackType
from typing import Any, Final, TypeVar

from sealift.errors import Stopping
from sealift.train.loop.faults import (
    RecipeError,
    foreign_import,
    no_memory,
    recipe_failed,
)
from sealift.train.loop.imports import BUNDLE_SCHEME, ForeignImportError

T = TypeVar("T")
MAX_LINE: Final = 1_000_000


def let_through(call: Callable[..., T], /, *parts: Any) -> T:
    """Call it; errors and prints are the caller's to see."""
    return call(*parts)


class Containment:
    """A guard for real rows.

    Args:
        paths: Files of the bundle: the only places that an error may name.
        text: Whether the output rule lets the recipe's prints out.
    """

    def __init__(self, paths: Collection[str], *, text: bool = False) -> None:
        self._paths = frozenset(paths)
        self._text = text

    def __call__(self, call: Callable[..., T], /, *parts: Any) -> T:
        """Call it.

        Raises:
            JobError: code ``recipe-error``, with file, line and type.
            UnavailableError: code ``no-memory``, if memory ran out.
        """
        try:
            return call(*parts) if self._text else _silently(call, *parts)
        except Stopping:
            raise
        except BaseException as error:  # a recipe's SystemExit is no more ours to show
            if self._text:
                traceback.print_exception(error)
            out_of_memory = _is_out_of_memory(error)
            failed = self._describe(error)
            _let_go(error)
        # Raised out here, so that the recipe's exception is nobody's context.
        raise no_memory() if out_of_memory else failed

    def _describe(self, error: BaseException) -> RecipeError:
        path, line = self._place(error)
        if isinstance(error, ForeignImportError):
            return foreign_import(path, line)
        return recipe_failed(path, line, _known_type(error))

    def _place(self, error: BaseException) -> tuple[str, int]:
        """The innermost line of the bundle; a forged file name is none."""
        if isinstance(error, SyntaxError):
            place = self._line(error.filename or "", error.lineno or 0)
            if place[0]:
                return place
        frames = reversed(traceback.extract_tb(error.__traceback__))
        places = (self._line(frame.filename, frame.lineno or 0) for frame in frames)
        return next((place for place in places if place[0]), ("", 0))

    def _line(self, filename: str, line: int) -> tuple[str, int]:
        path = filename.removeprefix(BUNDLE_SCHEME)
        known = filename.startswith(BUNDLE_SCHEME) and path in self._paths
        return (path, line) if known and 0 < line < MAX_LINE else ("", 0)


def _silently(call: Callable[..., T], /, *parts: Any) -> T:
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
    ):
        return call(*parts)


def _known_type(error: BaseException) -> str:
    """The nearest built-in type: a recipe may name its own types after a value."""
    for kind in type(error).__mro__:
        if getattr(builtins, kind.__name__, None) is kind:
            return kind.__name__
    return "Exception"


def _is_out_of_memory(error: BaseException) -> bool:
    """Python's own, a device's, and the CPU allocator's, which has no type."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    told = type(error) is RuntimeError and "can't allocate memory" in str(error)
    return told or not kinds.isdisjoint({"MemoryError", "OutOfMemoryError"})


def _let_go(error: BaseException) -> None:
    """Empty the frames behind an exception, and what led to it, of their variables."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        waiting += [each.__context__, each.__cause__]
        _clear(each.__traceback__)
        each.__traceback__ = each.__context__ = each.__cause__ = None
        each.args = ()


def _clear(trace: TracebackType | None) -> None:
    while trace is not None:
        frame: FrameType = trace.tb_frame
        with suppress(RuntimeError):  # still running: our own, which hold no rows
            frame.clear()
        trace = trace.tb_next
