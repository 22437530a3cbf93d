"""``python -m benchmarks``: measure, and say beside each figure what was real.

From a clone alone: the measurements are not in the wheel.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Final

from sealift.cli.arguments import Parser
from sealift.cli.main import run_guarded
from sealift.errors import UsageError

BENCHES: Final = {
    "allreduce": "sealed sums beside plain ones, torch's own and the published way",
    "channel": "sealing beside memcpy, sealed beside plain streams and two-way pipes",
    "ddp": "training iterations beside torch's own and the published way; a round's mean",
    "frameworks": "a step of each framework's example, sealed and as it was",
    "gpu": "opening on a GPU beside the copy to it, a step, a visit and an answer beside "
    "plain torch; says so where there is none",
    "graph": "training steps of a list of operations beside those of the program",
    "growth": "how cost grows with the work: models beside plain torch, text tables beside pandas, "
    "rounds, owners that meet, and clients of a served model beside plain HTTP",
    "handshake": "a session's handshake, in memory and through the relay",
    "link": "sealed transfers to a device, every mode beside the plain copy",
    "loader": "sealed batches beside a plain DataLoader over the same arrays",
    "outsource": "products on three untrusted servers beside fp32 and the published way; "
    "SEALIFT_CIFAR10 may name the folder of its images",
    "privacy": "accuracy of private steps at several budgets, beside none",
    "release": "keys by proof: a quote and a session each, many at once, renewal, loss",
    "travel": "visits beside shipping the data or the model, at several link rates",
}
# With --device cuda.
ON_GPU: Final = {"allreduce": "deviceranks", "outsource": "outsource.machine"}
# Where a bench is a folder: the file that is read first.
FIRST: Final = {
    "ddp": "iterations",
    "growth": "parts",
    "link": "transfers",
    "outsource": "products",
    "release": "keys",
    "travel": "visits",
}


def make_parser() -> Parser:
    """Make the parser of the command line."""
    parser = Parser(
        prog="python -m benchmarks",
        description="Prints medians of interleaved repeats in one run. "
        + " ".join(f"{name}: {what}." for name, what in BENCHES.items()),
    )
    parser.add_argument("name", nargs="*", help="default: all of them")
    parser.add_flag("--quick", "the same definitions, fewer repeats")
    parser.add_flag("--full", "travel: nothing scaled; about an hour")
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="allreduce: where the ranks' tensors lie; outsource: where its servers "
        "multiply (default: cpu)",
    )
    parser.add_file("--json", help="write the report of one bench there")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run one command line; the exit code."""
    return run_guarded(lambda: run(make_parser().parse_args(arguments)))


def run(args: argparse.Namespace) -> int:
    """Run the named benches, or all."""
    names = args.name or list(BENCHES)
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        known = ", ".join(BENCHES)
        raise UsageError(f"there is no bench {unknown[0]!r}", fix=f"There are: {known}")
    if args.json is not None and len(names) != 1:
        raise UsageError("--json takes the report of one bench", fix="Name one bench")
    for name in names:
        place = ".".join(filter(None, (name, FIRST.get(name))))
        if args.device == "cuda":
            if name not in ON_GPU:
                on = ", ".join(ON_GPU)
                raise UsageError(f"--device cuda is for {on}, not for {name}")
            place = ON_GPU[name]
        module = importlib.import_module(f"benchmarks.{place}")
        report = module.run(**_extent(args, module, name))
        print(report.to_text())
        if args.json is not None:
            report.write(args.json)
    return 0


def _extent(args: argparse.Namespace, module: ModuleType, name: str) -> dict[str, bool]:
    """How much is measured, as the bench takes it."""
    if not args.full:
        return {"quick": args.quick}
    if not getattr(module, "HAS_FULL", False) or args.quick:
        raise UsageError(f"there is no --full of bench {name} here")
    return {"full": True}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
