"""A server of shares that begins to cheat: a real one, with other answers in three steps.

``python -m sealift.demo.cheating STEP ...`` is ``sealift share-server ...`` with a real
party's identity, which answers wrongly once in training step STEP and in each of the two
after it, in three ways, and behaves then. No command of ``sealift`` reaches this module.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Final

import numpy as np

from sealift.events import emit
from sealift.train.job.roleprocesses import EventLines

if TYPE_CHECKING:
    from sealift.numeric.residues import U32
    from sealift.outsource.messages import Begin
    from sealift.outsource.server import ServedJob

MODULE: Final = "sealift.demo.cheating"
ONE_NUMBER: Final = "one-number"
OLD_ANSWER: Final = "old-answer"
ZEROS: Final = "zeros"
TRIES: Final = (ONE_NUMBER, OLD_ANSWER, ZEROS)


def _cheating_from(first: int) -> type[ServedJob]:
    """What serves a job, and cheats from this training step on."""
    from sealift.outsource.server import ServedJob  # torch

    due, sink = dict(zip(count(first), TRIES, strict=False)), EventLines(sys.stdout)

    class CheatingJob(ServedJob):
        """Spoils the first product that it answers in a step."""

        def _step(self, begin: Begin) -> None:
            trains = self._traces.known[begin.trace].phase == "train"
            self._attack, self._begins = "", True
            if trains and begin.step in due:
                self._attack = due.pop(begin.step)
                emit(sink, "shares.tries", attack=self._attack, step=begin.step)
            super()._step(begin)

        def _send(self, products: Sequence[U32]) -> None:
            first, *rest = products
            if self._begins:
                products = [self._spoiled(first), *rest]
                self._begins, self._before = False, first
            super()._send(products)

        def _spoiled(self, answer: U32) -> U32:
            found = answer.copy()
            if self._attack == ONE_NUMBER:
                found.flat[0] = found.flat[0] - 1 if found.flat[0] else 1
            elif self._attack == OLD_ANSWER:
                found.flat[:] = np.resize(self._before, found.size)
            elif self._attack == ZEROS:
                found[:] = 0
            return found

    return CheatingJob


def main(first: str, words: list[str]) -> int:
    """Serve, and cheat; the exit code of ``sealift share-server``."""
    from sealift.cli.main import main as sealift
    from sealift.outsource import server

    server.ServedJob = _cheating_from(int(first))  # type: ignore[misc]
    return sealift(["share-server", *words])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
