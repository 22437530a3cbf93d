"""Training wall time, sealed ahead beside plain: batches from a holder's process.

One training process for both arms, a core for it and one for the holder; steps take
turns. The plain arm crosses the same private memory file in the same slots.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

from sealift.lab.bench.linkmodels import NAMES
from sealift.lab.bench.report import Row

ROWS: Final = {"mlp": (8, 32), "resnet18": (8,), "gpt": (4, 16), "bert": (8,)}
QUICK_S: Final = 6.0
FULL_S: Final = 30.0
JUDGED: Final = "gpt"
RATIO: Final = "train_secure_vs_plain"


def rows(*, quick: bool = False, names: tuple[str, ...] = NAMES) -> list[Row]:
    """A row for each model and batch size; milliseconds a step, medians."""
    return [
        _measure(name, batch, QUICK_S if quick else FULL_S)
        for name in names
        for batch in (ROWS[name][:1] if quick else ROWS[name])
    ]


def ratios(found: list[Row]) -> dict[str, float]:
    """The worst of the small GPT."""
    judged = [float(r["sealed_vs_plain"]) for r in found if r.get("model") == JUDGED]
    return {RATIO: max(judged)} if judged else {}


def _measure(name: str, batch: int, budget_s: float) -> Row:
    words = [name, str(batch), str(budget_s)]
    run = subprocess.run(  # noqa: S603 - ourselves
        [sys.executable, "-m", "sealift.lab.bench.linktrainer", *words],
        stdout=subprocess.PIPE,
        check=True,
    )
    told = json.loads(run.stdout)
    plain_s, sealed_s = told["plain"], told["seal-ahead"]
    return {
        "what": "training",
        "model": name,
        "batch": batch,
        "payload_bytes": told["bytes"],
        "pairs": told["steps"],
        "plain_ms": round(plain_s * 1e3, 3),
        "sealed_ms": round(sealed_s * 1e3, 3),
        "sealed_vs_plain": round(sealed_s / plain_s, 3),
    }


if __name__ == "__main__":
    measured = rows(quick="--quick" in sys.argv)
    for each in measured:
        print(json.dumps(each))
    print(json.dumps(ratios(measured)))
