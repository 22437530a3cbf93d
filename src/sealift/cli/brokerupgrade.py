"""``sealift broker upgrade``: a vault's schema brought forward, after a copy."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sealift.release.broker.backup import upgrade


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "broker upgrade",
        help="bring a vault's schema forward, after a copy",
        description="Stop the broker first. A broker upgrades a vault by itself when it "
        "opens it; this keeps a copy for the version before.",
    )
    parser.set_defaults(run=run)
    parser.add_argument("--vault", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="the copy"
    )


def run(args: argparse.Namespace) -> int:
    """Copy, upgrade, say."""
    before, now = upgrade(args.vault, args.output)
    print(f"vault form   {before} -> {now}")
    print(f"copy         {args.output}")
    return 0
