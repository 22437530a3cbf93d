"""Take a job up again from its last checkpoint when its state was found changed (H1).

Nothing that was made from the changed state counts: visits under way are scrubbed, the
session ends without a word, and the accelerator comes back like any other one, with a
fresh instance key. More than a few times is no accident of memory: then the job ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sealift.errors import JobError
from sealift.events import Sink, discard, emit
from sealift.travel.accelerator.setup import StartOverError

MOST: Final = 3
CHANGED: Final = "state-changed"


class Restarts:
    """How often this process may still take its job up again.

    Args:
        most: 0 ends the job at once.
        sink: Gets ``state.changed``.
    """

    def __init__(self, most: int = 0, *, sink: Sink = discard) -> None:
        self._left = most
        self._sink = sink

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """While a state is used.

        Raises:
            StartOverError: if it was found changed and the job may be taken up again.
        """
        try:
            yield
        except JobError as error:
            if error.code != CHANGED or not self._left:
                raise
            self._left -= 1
            emit(self._sink, "state.changed", line=str(error), left=self._left)
            again = StartOverError(error.what)
        else:
            return
        raise again  # out here, so that nothing of the state is anybody's context
