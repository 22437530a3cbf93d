"""One commit for all who came while the disk was busy with the one before.

A sync takes the same time for one change as for many. Whoever comes first commits for
everybody who waits by then; the others find theirs done. Nobody is told anything before
the commit that holds its change has returned, and there is no thread of its own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

C = TypeVar("C")
R = TypeVar("R")


class _Waiting(Generic[C, R]):
    """A change, and what became of it."""

    __slots__ = ("change", "done", "error", "outcome")

    def __init__(self, change: C) -> None:
        self.change = change
        self.done = False
        self.error: BaseException | None = None
        self.outcome: R | None = None


class GroupCommit(Generic[C, R]):
    """Brings changes to ``commit`` in the order in which they came.

    Args:
        commit: Makes all of them last, or raises and none of them does; gives an
            outcome for each, in order. An outcome that is an exception is raised to the
            one whose change it was.
    """

    def __init__(
        self, commit: Callable[[Sequence[C]], Sequence[R | Exception]]
    ) -> None:
        self._commit = commit
        self._queue: deque[_Waiting[C, R]] = deque()
        self._committing = threading.Lock()

    def run(self, change: C) -> R:
        """Make a change last.

        Raises:
            Exception: what ``commit`` raised, or gave for this change.
        """
        mine: _Waiting[C, R] = _Waiting(change)
        self._queue.append(mine)
        with self._committing:
            if not mine.done:
                self._commit_all()
        if mine.error is not None:
            raise mine.error
        assert mine.outcome is not None, "a commit gives an outcome for each change"
        return mine.outcome

    def _commit_all(self) -> None:
        batch = [self._queue.popleft() for _ in range(len(self._queue))]
        try:
            outcomes = self._commit([each.change for each in batch])
        except BaseException as error:
            for each in batch:
                each.error, each.done = error, True
            return
        for each, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Exception):
                each.error = outcome
            else:
                each.outcome = outcome
            each.done = True
