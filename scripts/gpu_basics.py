"""Say for each part of the sandbox whether a recipe's process begins and trains on the GPU.

In the first part of `gpu_run.sh`, run there among the tests' sources. One line a part, at
most 90 seconds together; exit code 1 if one fails that this machine's kernel gives.
"""

from __future__ import annotations

import sys
import time

from sealift.train.loop.trainer import Trainer
from sealift.train.sandbox.confine import NONE
from sealift.train.worker.executor import BEST, RecipeExecutor
from tests.unit.train.joints import cargo
from tests.unit.train.recipes import PLAIN, SETTINGS

PARTS = (BEST, NONE, "namespaces", "landlock", "seccomp")


def train(wanted: str) -> str:
    """Train one slice on a GPU behind these parts of the sandbox; where that was."""
    files = {"recipe.py": PLAIN.encode()}
    with RecipeExecutor(files, "recipe.py", wanted=wanted) as executor:
        if executor.sandbox != wanted:
            return f"left out: in force would be {executor.sandbox}"
        executor.compute_on("cuda")
        trainer = Trainer(executor, SETTINGS)
        trainer.work([cargo("north", 40)])
        return f"{trainer.rows_trained} rows trained on {executor.device()}"


def main() -> int:
    """Try each part, or those that are named; the exit code."""
    failed = 0
    for wanted in sys.argv[1:] or PARTS:
        begun = time.monotonic()
        try:
            line = train(wanted)
        except Exception as error:
            failed, line = 1, f"FAILED: {type(error).__name__}: {error}"
        print(f"{wanted}: {line} ({time.monotonic() - begun:.1f} s)", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
