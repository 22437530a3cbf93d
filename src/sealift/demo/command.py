"""`sealift demo`: three parties, one travelling accelerator, real data, one command."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealift.attest.level import Level
from sealift.demo.job import PLANS
from sealift.errors import IntegrityError, UsageError

if TYPE_CHECKING:
    from sealift.demo.run import HostMaker


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "demo",
        description="Creates keys and data of three owners, starts orchestrator, accelerator, "
        "brokers and holders as separate processes, lets one holder attack, trains, verifies "
        "all records of the parties, and writes a report.",
    )
    parser.set_defaults(run=show_demo)
    add_options(parser)
    parser.add_argument(
        "--plan",
        choices=PLANS,
        default="travel",
        help="travel (default): one accelerator visits the owners in turn; outsource: three "
        "more processes multiply secret shares, and one starts to cheat half way; ddp: each "
        "owner's accelerator trains on its rows, and encrypted rounds average the models; "
        "local: one process, without attacks, as the reference",
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what the demo takes with every plan, and on a rehearsed host."""
    parser.add_argument(
        "--task",
        choices=("digits", "text"),
        default="digits",
        help="read handwritten digits (default), or write Python with a small GPT",
    )
    parser.add_argument(
        "--buffers",
        type=int,
        choices=(1, 2),
        default=1,
        help="1 (default): an owner's rows are overwritten before the next owner's are loaded; "
        "2: the next owner's rows are loaded meanwhile",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("sealift-demo"),
        metavar="DIR",
        help="folder for the report, the model and the parties' records, replaced if an "
        "earlier demo wrote it; default: sealift-demo",
    )
    for option, text in (
        ("--view", "show the run on a page in the browser, like `sealift view`"),
        ("--mixed", "draw batches across the rows of all owners"),
        ("--keep", "also keep the parties' keys, passphrases and sealed data there"),
        ("--json", "print one line of JSON at the end"),
    ):
        parser.add_argument(option, action="store_true", help=text)


def show_demo(args: argparse.Namespace, host: HostMaker | None = None) -> int:
    """Run the demo, on a screen or as lines; the exit code.

    Args:
        args: Of the command line.
        host: Starts the attested host that is rehearsed; none without a rehearsal.

    Raises:
        IntegrityError: if anything did not verify.
    """
    from rich.console import Console

    from sealift.demo.run import run_demo
    from sealift.demo.tasks import TASKS
    from sealift.demo.views import open_view, print_summary

    if args.task == "text" and args.plan == "outsource":
        raise UsageError(
            "the text model has layers that cannot be outsourced",
            fix="Use --task digits",
        )
    if args.mixed and args.plan == "outsource":
        raise UsageError(
            "plan outsource does not support mixed rows (--mixed)",
            code="no-mixed-cargo",
        )
    view = open_view(TASKS[args.task], Level.ATTESTED_HOST if host else None)
    outcome = run_demo(args, view, host, clock=time.monotonic)
    # The summary is the result, unless a program reads stdout.
    stream = sys.stderr if args.json else sys.stdout
    wide = None if stream.isatty() else 110
    print_summary(outcome, Console(file=stream, width=wide, highlight=False))
    if args.json:
        print(json.dumps(outcome.to_plain()))
    if outcome.verdict.failures:
        raise IntegrityError(
            "a check of the demo failed",
            why=outcome.verdict.failures[0],
            fix=f"The parties' records are in {args.output}",
            code="demo-unverified",
        )
    return 0
