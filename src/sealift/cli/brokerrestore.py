"""``sealift broker restore``: a copy in the place of vault and log."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from sealift.cli.brokerbackup import print_copy
from sealift.release.broker.backup import LOG, restore
from sealift.release.log.heads import find_head
from sealift.release.log.verify import read_head


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "broker restore",
        help="put a copy back, if it is not behind what others saw",
        description="An older copy brings older memory back: uses that were counted "
        "since, and instances that were revoked. With --head a copy is refused that is "
        "behind what somebody else saw of this log.",
    )
    parser.set_defaults(run=run)
    parser.add_argument("copy", type=Path, metavar="DIR", help="from broker backup")
    parser.add_argument("--vault", type=Path, required=True, metavar="FILE")
    parser.add_argument("--log", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--head",
        type=Path,
        metavar="FILE",
        help="a signed head, or the file of heads that a holder or another party keeps",
    )


def run(args: argparse.Namespace) -> int:
    """Check, copy, say."""
    outside = None
    if args.head is not None:
        outside = find_head(args.head, read_head(args.copy / LOG).log)
    print_copy(restore(args.copy, args.vault, args.log, outside))
    if outside is None:
        print(
            "sealift: nothing was compared with what others saw: uses and revocations "
            "since this copy are forgotten; give --head FILE",
            file=sys.stderr,
        )
    return 0
