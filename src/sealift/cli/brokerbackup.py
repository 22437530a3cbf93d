"""``sealift broker backup``: a copy of vault and log, also while the broker runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from sealift.release.broker.backup import Copy, back_up


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "broker backup",
        help="copy a broker's vault and log, also while it runs",
        description="The copies are checked. The identity file and its passphrase are no "
        "part of them: back these up with `sealift key backup`, and elsewhere.",
    )
    parser.set_defaults(run=run)
    parser.add_argument("--vault", type=Path, required=True, metavar="FILE")
    parser.add_argument("--log", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="a new folder"
    )


def run(args: argparse.Namespace) -> int:
    """Copy, check, say."""
    print_copy(back_up(args.vault, args.log, args.output))
    print(
        f"sealift: {args.output} is as secret as the vault: whoever has it and the "
        "identity has the keys",
        file=sys.stderr,
    )
    return 0


def print_copy(copy: Copy) -> None:
    """What a copy holds, for people."""
    print(f"vault form   {copy.form}")
    print(f"log owner    {copy.log.owner}")
    print(f"entries      {copy.log.size}")
    print(f"releases     {copy.log.releases}")
    print(f"verified     {copy.log.statement}")
