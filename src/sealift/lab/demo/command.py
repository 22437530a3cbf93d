"""`sealift demo`: three parties, one travelling accelerator, real data, one command."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealift.attest.level import Level, say_level
from sealift.cli.signals import followed, on_second_signal, stop_postponed
from sealift.errors import IntegrityError, UsageError

if TYPE_CHECKING:
    from sealift.lab.demo.outcome import Outcome


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "demo",
        help="all roles on this machine, real data: the first contact",
        description="Makes three owners' keys and data, starts orchestrator, "
        "accelerator, brokers and holders as processes of their own, lets one holder "
        "attack, trains, verifies everything that the parties keep, and writes a report.",
    )
    parser.set_defaults(run=run)
    _add_run_arguments(parser)
    _add_output_arguments(parser)


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
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
        "--mixed",
        action="store_true",
        help="draw batches across the rows of all owners",
    )
    parser.add_argument(
        "--rehearse",
        choices=("attested-host",),
        help="a guest with measured boot, IMA and a software TPM attests, and "
        "misbehaves at last; needs qemu-system-x86 and swtpm",
    )
    parser.add_argument(
        "--plan",
        choices=("travel", "local"),
        default="travel",
        help="local: one process, no attacks, the reference for travel's weights",
    )


def _add_output_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("sealift-demo"),
        metavar="DIR",
        help="gets report, model and what the parties keep (default: sealift-demo, "
        "replaced if an earlier demo made it)",
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="leave the parties' keys, passphrases and sealed data there as well",
    )
    parser.add_argument(
        "--json", action="store_true", help="end with one line of JSON on stdout"
    )


def run(args: argparse.Namespace) -> int:
    """Run the demo; the exit code.

    Raises:
        IntegrityError: if anything did not verify.
    """
    from sealift.lab.demo.summary import print_summary

    outcome = _play(args)
    print_summary(outcome, _console_for(args))
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


def _play(args: argparse.Namespace) -> Outcome:
    """The whole demo, on a screen or as lines; torch and rich are imported here."""
    from rich.console import Console

    from sealift.lab.demo.lines import Lines
    from sealift.lab.demo.screen import Screen
    from sealift.lab.demo.show import Wishes, run_demo
    from sealift.lab.demo.tasks.catalogue import TASKS
    from sealift.lab.demo.travelrun import Stops
    from sealift.lab.demo.world import Travel

    if args.rehearse and args.plan == "local":
        raise UsageError(
            "the plan local shows no evidence, so nothing can be rehearsed",
            fix="Leave out --plan or --rehearse",
        )
    talk, task = Console(stderr=True), TASKS[args.task]
    level = say_level(
        Level.DEVELOPMENT, Level(args.rehearse) if args.rehearse else None
    )
    view = (
        Screen(talk, level)
        if talk.is_terminal
        else Lines(sys.stderr, task.headline, level)
    )
    wishes = Wishes(
        folder=args.output.resolve(),
        plan=args.plan,
        task=task,
        travel=Travel(args.buffers, args.mixed),
        rehearse=bool(args.rehearse),
        keep=args.keep,
    )
    stops = Stops(
        on_second_signal=on_second_signal,
        postponed=stop_postponed,
        environment=followed(),
    )
    return run_demo(wishes, view, clock=time.monotonic, stops=stops)


def _console_for(args: argparse.Namespace) -> Any:
    """The summary is the result, unless a program reads stdout."""
    from rich.console import Console

    stream = sys.stderr if args.json else sys.stdout
    wide = None if stream.isatty() else 110
    return Console(file=stream, width=wide, highlight=False)
