"""``sealift resume``: go on with a job that was cut off; refuse to begin it again."""

from __future__ import annotations

import argparse
from typing import Any

from sealift.cli import train
from sealift.errors import UsageError
from sealift.train.plans.plan import PLANS
from sealift.train.settings import read_job


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "resume",
        help="go on with a job from its last checkpoint",
        description="As `sealift train`, which goes on from a checkpoint by itself if "
        "there is one; this command ends with an error if there is none. Only the last "
        "checkpoint that counts in the owners' logs opens.",
    )
    parser.set_defaults(run=run, must_resume=True)
    train.add_train_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Go on; the exit code."""
    plan = PLANS[read_job(args.job).plan]
    if not plan.checkpoints:
        raise UsageError(
            f"a job of plan {plan.name} keeps no checkpoints", code="nothing-to-resume"
        )
    return train.run(args)
