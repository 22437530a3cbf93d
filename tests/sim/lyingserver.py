"""`sealift share-server` with a fault: one number of every answer is wrong. STEP WORDS...

The first word says from which step of its job on; the others are the command line.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sealift.numeric.loops import U32
from sealift.outsource.server import ServedJob
from tests.sim.portable import main


def lie_from(step: int) -> None:
    """Once so many steps were answered rightly."""
    send = ServedJob._send

    def lie(self: ServedJob, products: Sequence[U32]) -> None:
        if self._begun >= step:
            first = products[0].reshape(-1)[:1]
            first[:] = (first == 0) + (first != 0) * (first - 1)  # below every modulus
        send(self, products)

    ServedJob._send = lie  # type: ignore[method-assign]


if __name__ == "__main__":
    lie_from(int(sys.argv.pop(1)))
    sys.exit(main())
