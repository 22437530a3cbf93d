"""``sealift train``: run a job on this machine, by the plan that ``job.toml`` names.

``sealift resume`` is the same for a job that was cut off, and refuses to begin it again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

from sealift.cli.attestfiles import add_judging_arguments
from sealift.cli.hostattester import add_attester_arguments
from sealift.cli.roles import check_job
from sealift.errors import UsageError
from sealift.release.agreement.signed import load_verified
from sealift.train.job.settings import read_job
from sealift.train.plans.plan import PLANS

MAX_SHOWN: Final = 100  # characters of one total


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "train",
        help="run a job: orchestrator and accelerator here, or all of it locally",
        description="plan travel: starts orchestrator and accelerator here, waits for "
        "the holders that `sealift join` starts elsewhere, and ends when the job does. "
        "plan local: one process reads every owner's sealed files; give --vault, --key "
        "and --passphrase-file once per owner. docs/reference/job.md lists the fields of "
        "JOB.",
    )
    parser.set_defaults(run=run, must_resume=False)
    _add_train_arguments(parser)


def _add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `sealift resume` takes as well."""
    parser.add_argument("job", type=Path, metavar="JOB", help="the job, a TOML file")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="not the job's place"
    )
    parser.add_argument("--watch", action="store_true", help="a line for every visit")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    for option, text in (
        ("--key", "travel: the operator's identity. local: every owner's"),
        ("--passphrase-file", "of each key, in the same order"),
        ("--vault", "local: every owner's, in the order of the keys"),
        ("--sealed", "local: folders with sealed files and cards"),
    ):
        parser.add_argument(
            option, type=Path, action="append", default=[], metavar="PATH", help=text
        )
    parser.add_argument("--attester-key", type=Path, metavar="FILE", help="travel")
    parser.add_argument("--attester-passphrase-file", type=Path, metavar="FILE")
    parser.add_argument(
        "--orchestrator", metavar="HOST:PORT", help="travel: not the job's address"
    )
    parser.add_argument(
        "--state",
        type=Path,
        metavar="DIR",
        help="travel: checkpoints, not in state/NAME beside the job",
    )
    add_judging_arguments(parser)
    add_attester_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the job; the exit code."""
    job = read_job(args.job)
    agreement = load_verified(Path(job.agreement))
    check_job(job, agreement)
    plan = PLANS[job.plan]
    if plan.command != "train":
        raise UsageError(
            f"the job's plan is {plan.name}",
            fix=f"Run `sealift {plan.command}` with the job instead",
            code="other-plan",
        )
    if not plan.roles:
        from sealift.cli.trainlocal import train_locally

        summary = train_locally(args, job, agreement)
    else:
        from sealift.cli.traintravel import train_travelling

        summary = train_travelling(args, job, agreement)
    if args.json:
        print(json.dumps(summary))
    else:
        _show(summary)
    return 0


def _show(summary: dict[str, Any]) -> None:
    metrics, statistics = summary.pop("metrics"), summary.pop("statistics", {})
    for name, value in {**summary, **metrics}.items():
        print(f"{name:<22}{value}")
    for name, value in statistics.items():
        print(f"{name:<22}{_shortened(value)}")


def _shortened(value: Any) -> str:
    """A total on one line; ``statistics.json`` has the whole of it."""
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def add_resume(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "resume",
        help="go on with a job from its last checkpoint",
        description="As `sealift train`, which goes on from a checkpoint by itself if "
        "there is one; this command ends with an error if there is none. Only the last "
        "checkpoint that counts in the owners' logs opens.",
    )
    parser.set_defaults(run=_run_resume, must_resume=True)
    _add_train_arguments(parser)


def _run_resume(args: argparse.Namespace) -> int:
    """Go on; the exit code."""
    plan = PLANS[read_job(args.job).plan]
    if not plan.checkpoints:
        raise UsageError(
            f"a job of plan {plan.name} keeps no checkpoints", code="nothing-to-resume"
        )
    return run(args)
