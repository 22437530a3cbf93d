"""`sealift share-server` that goes or lies from a step of its job on. FAULT STEP WORDS...

``die``: it is killed where its answer would be. ``lie``: a number of each answer is wrong.
The other words are the command line.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence

from sealift.numeric.residues import U32
from sealift.outsource.server import ServedJob
from tests.sim.portable import main


def die(_products: Sequence[U32]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def lie(products: Sequence[U32]) -> None:
    first = products[0].reshape(-1)[:1]
    first[:] = (first == 0) + (first != 0) * (first - 1)  # below every modulus


FAULTS: dict[str, Callable[[Sequence[U32]], None]] = {"die": die, "lie": lie}


def break_from(step: int, fault: Callable[[Sequence[U32]], None]) -> None:
    """Once so many steps were answered rightly."""
    send = ServedJob._send

    def faulty(self: ServedJob, products: Sequence[U32]) -> None:
        if self._begun >= step:
            fault(products)
        send(self, products)

    ServedJob._send = faulty  # type: ignore[method-assign]


if __name__ == "__main__":
    chosen = FAULTS[sys.argv.pop(1)]
    break_from(int(sys.argv.pop(1)), chosen)
    sys.exit(main())
