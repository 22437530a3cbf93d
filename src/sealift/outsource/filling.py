"""An array that one thread fills from its beginning while others use what is there."""

from __future__ import annotations

import threading
from typing import Final


class Filling:
    """How many numbers of an array are there.

    Args:
        there: So many from the beginning on.
    """

    def __init__(self, there: int = 0) -> None:
        self._there = there
        self._failed: BaseException | None = None
        self._changed = threading.Condition()

    def reach(self, numbers: int) -> None:
        """So many are there."""
        with self._changed:
            self._there = numbers
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """No more will be there: whoever waits raises the error."""
        with self._changed:
            self._failed = error
            self._changed.notify_all()

    def wait(self, numbers: int) -> None:
        """Until so many are there."""
        if self._there >= numbers:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._there >= numbers or self._failed)
            if self._there < numbers and self._failed is not None:
                raise self._failed


FULL: Final = Filling(1 << 62)
"""Of arrays that are there already."""
