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
        description="Makes three owners' keys and data, starts orchestrator, "
        "accelerator, brokers and holders as processes of their own, lets one holder "
        "attack, trains, verifies everything that the parties keep, and writes a report.",
    )
    parser.set_defaults(run=show_demo)
    add_options(parser)
    parser.add_argument(
        "--plan",
        choices=PLANS,
        default="travel",
        help="outsource: three more processes multiply what they cannot read, and one of "
        "them begins to cheat half way; ddp: rows stay at home, each owner's own accelerator trains on them, and "
        "sealed rounds average the models; local: one process, no attacks, the "
        "reference for both",
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what the demo takes with every plan, and on a rehearsed host."""
    parser.add_argument(
        "--task",
        choices=("digits", "text"),
        default="digits",
        help="what is learnt: to read handwritten digits, or to write Python "
        "byte by byte with a small GPT",
    )
    parser.add_argument(
        "--buffers",
        type=int,
        choices=(1, 2),
        default=1,
        help="2: the next owner's rows load while one owner's are trained on "
        "(default: 1, the rows are gone before the next owner is met)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("sealift-demo"),
        metavar="DIR",
        help="gets report, model and what the parties keep (default: sealift-demo, "
        "replaced if an earlier demo made it)",
    )
    for option, text in (
        ("--view", "show the run on a page in a browser, as `sealift view`"),
        ("--mixed", "draw batches across the rows of all owners"),
        (
            "--keep",
            "leave the parties' keys, passphrases and sealed data there as well",
        ),
        ("--json", "end with one line of JSON on stdout"),
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
    from sealift.demo.summary import print_summary
    from sealift.demo.tasks import TASKS
    from sealift.demo.views import open_view

    if args.task == "text" and args.plan == "outsource":
        raise UsageError(
            "the text model has layers that cannot be outsourced",
            fix="Take --task digits",
        )
    if args.mixed and args.plan == "outsource":
        raise UsageError(
            "the plan outsource takes no mixed cargo", code="no-mixed-cargo"
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
            "the demo did not verify",
            why=outcome.verdict.failures[0],
            fix=f"What the parties kept is in {args.output}",
            code="demo-unverified",
        )
    return 0
