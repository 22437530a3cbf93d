"""What a sealed group adds to a step of each framework's example, beside its plain twin.

Each script of examples/frameworks runs as torchrun starts it, with a model of 10 million
parameters and more, once with its sealed lines and once as it was, over gloo: two ranks of
this machine. A figure is the median time between two optimizer steps of the first rank.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.report import BenchReport, start_report
from tests.sim import runfolder
from tests.sim.frameworks import EXAMPLES, before, launch, make_rows

# What makes each example's model large, and what it is started with.
_LARGER: Final[dict[str, tuple[dict[str, str], tuple[str, ...]]]] = {
    "accelerate_loop.py": (
        {
            "nn.Embedding(64, 8)": "nn.Embedding(64, 640)",
            "nn.Linear(128, 64)": "nn.Linear(10240, 1024), nn.ReLU(), nn.Linear(1024, 64)",
        },
        (),
    ),
    "fsdp2_loop.py": (
        {
            "nn.TransformerEncoderLayer(32, 2, 64,": "nn.TransformerEncoderLayer(512, 4, 2048,",
            "nn.Embedding(64, 32)": "nn.Embedding(64, 512)",
            "TransformerEncoder(block, 2), nn.Linear(32, 64)": "TransformerEncoder(block, 4), nn.Linear(512, 64)",
        },
        (),
    ),
    "lightning_fit.py": (
        {
            "nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)": "nn.Linear(64, 3200), nn.ReLU(), nn.Linear(3200, 3200), nn.ReLU(), nn.Linear(3200, 10)"
        },
        ("2",),
    ),
    "trainer.py": (
        {"n_embd=32, n_layer=2, n_head=2": "n_embd=352, n_layer=8, n_head=4"},
        (),
    ),
}
_ROWS: Final = 128
_WATCH: Final = """
import atexit as _atexit, os as _os, time as _time
from torch.optim.optimizer import register_optimizer_step_post_hook as _watch
_ends = []
_watch(lambda *_: _ends.append(_time.perf_counter()))
if _os.environ.get("RANK") == "0":
    _atexit.register(lambda: print("seconds", *(b - a for a, b in zip(_ends, _ends[1:])), flush=True))
"""


def run(*, quick: bool = False) -> BenchReport:
    """Every example by turns with its twin; about four minutes, with ``quick`` half of it."""
    report = start_report("frameworks")
    report.real = [
        "two ranks of this machine: sealed through memory, gloo over loopback",
        "each script in processes of its own: what else ran meanwhile is in a ratio",
    ]
    shared = runfolder.begin()  # where the group's parties are made once for all runs
    try:
        _measure(report, 1 if quick else 2)
    finally:
        runfolder.end(shared)
    return report


def _measure(report: BenchReport, repeats: int) -> None:
    for name in _LARGER:
        sealed, plain = list[float](), list[float]()
        for _ in range(repeats):
            sealed += _steps(name, (EXAMPLES / name).read_text())
            plain += _steps(name, before(name))
        ratio = round(median(sealed) / median(plain), 3)
        report.rows.append(
            {
                "example": name,
                "sealed_s": round(median(sealed), 4),
                "plain_s": round(median(plain), 4),
                "steps": len(sealed),
                "sealed_vs_plain": ratio,
            }
        )
        report.ratios[name.removesuffix(".py")] = ratio


def _steps(name: str, text: str) -> list[float]:
    """Seconds of each step but the first two of a run."""
    changes, words = _LARGER[name]
    for small, large in changes.items():
        if text.count(small) != 1:
            raise ValueError(f"{name} does not say {small!r} once")
        text = text.replace(small, large)
    docstring, quotes, code = text[3:].partition('"""')
    with tempfile.TemporaryDirectory() as made:
        with contextlib.redirect_stdout(io.StringIO()):
            make_rows(Path(made), _ROWS)
        said = launch(Path(made), f'"""{docstring}{quotes}\n{_WATCH}\n{code}', *words)
    (line,) = (each for each in said if each.startswith("seconds"))
    return [float(each) for each in line.split()[3:]]
