"""Say for each part of the sandbox whether a recipe's process begins and trains on the GPU.

In the first part of `gpu_run.sh`, run there among the tests' sources. All parts at once, as
each begins for ten seconds; one line a part; exit code 1 if one fails that this kernel gives.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

from sealift.train.loop.trainer import Trainer
from sealift.train.sandbox.confine import NONE
from sealift.train.worker.executor import BEST, RecipeExecutor
from tests.unit.train.joints import cargo
from tests.unit.train.recipes import PLAIN, SETTINGS

PARTS = (BEST, NONE, "namespaces", "landlock", "seccomp")


def train(wanted: str) -> str:
    """Train one slice on a GPU behind these parts of the sandbox; a line about it."""
    begun = time.monotonic()
    try:
        line = place(wanted)
    except Exception as error:
        line = f"FAILED: {type(error).__name__}: {error}"
    return f"{wanted}: {line} ({time.monotonic() - begun:.1f} s)"


def place(wanted: str) -> str:
    """Where a slice was trained behind these parts of the sandbox."""
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
    with ThreadPoolExecutor(len(PARTS)) as pool:
        for done in as_completed([pool.submit(train, each) for each in chosen()]):
            failed |= "FAILED" in done.result()
            print(done.result(), flush=True)
    return failed


def chosen() -> tuple[str, ...]:
    """Parts of the command line, or all."""
    return tuple(sys.argv[1:]) or PARTS


if __name__ == "__main__":
    sys.exit(main())
