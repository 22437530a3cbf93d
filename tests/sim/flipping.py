"""`sealift` with a fault: the joint model loses a bit between two slices. FLIPS WORDS...

The first word says how often; the others are the command line.
"""

from __future__ import annotations

import sys
from typing import Any

from sealift.cli.main import main
from sealift.train.loop.held import Held
from sealift.train.loop.trainer import JOINT, Trainer

AFTER_SLICES = 5


def flip_bits(times: int) -> None:
    """From the fifth slice of this process on, after each slice, so many times."""
    work, slices = Trainer.work, [0]

    def faulty(self: Trainer, *parts: Any, **more: Any) -> Any:
        found = work(self, *parts, **more)
        slices[0] += 1
        if AFTER_SLICES <= slices[0] < AFTER_SLICES + times:
            held = self._states[JOINT].tensors
            assert isinstance(held, Held), "states lie in memory files"
            last = len(held) - 1
            held.write(last, bytes([held.read(last, 1)[0] ^ 1]))
        return found

    Trainer.work = faulty  # type: ignore[method-assign]


if __name__ == "__main__":
    flip_bits(int(sys.argv.pop(1)))
    sys.exit(main())
