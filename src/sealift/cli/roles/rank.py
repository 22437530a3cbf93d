"""``sealift accelerator`` with the plan ``ddp``: a rank, which trains beside others."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sealift.attest.evidence import Attester
from sealift.cli.arguments import Parser
from sealift.cli.console import say, show
from sealift.cli.roles import direct_host_of
from sealift.session.direct import PathDialler
from sealift.train.job.rejoin import Rejoining
from sealift.train.job.rolesetup import RoleSetup, boot_clock
from sealift.train.job.settings import parse_address
from sealift.train.output.results import PartResult


def add_rank_arguments(parser: Parser) -> None:
    """Add what a rank takes besides."""
    group = parser.add_argument_group("for plan ddp")
    group.add_argument(
        "--rank",
        type=int,
        metavar="N",
        help="this rank's number; not needed if rows stay with their owners",
    )
    group.add_argument(
        "--sealed",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="folders with sealed files and cards; default: beside the job",
    )
    group.add_path(
        "--receipts",
        metavar="DIR",
        help="receipts of each use of rows; default: receipts/NAME beside the job",
    )
    group.add_argument(
        "--dial",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help="connect directly to an earlier rank at this --direct address only",
    )


def run_rank(args: argparse.Namespace, setup: RoleSetup, attester: Attester) -> int:
    """Train beside the others until the job has ended."""
    from sealift.train.ranks.process import open_rank, rank_of  # most have no rank

    for place in args.dial:
        parse_address(place)  # whoever mistypes one hears of it now
    home, name = setup.folder, setup.job.name
    rejoining = Rejoining(setup.job.run.rejoin_s, sink=setup.sink)
    with (
        direct_host_of(args, setup.sink) as direct_host,
        open_rank(
            setup,
            rank_of(setup, args.rank),
            attester,
            sealed=args.sealed or [home],
            receipts=args.receipts or home / "receipts" / name,
            state=args.state or home / "state" / name,
            direct_host=direct_host,
            dialler=PathDialler(local=not args.relay_only, places=args.dial),
            clock=boot_clock,
            must_resume=args.must_resume,
            tell=say,
        ) as process,
    ):
        rejoining.run(lambda joined: process.serve(rejoining.dial_s, joined))
        receipts = process.places.receipts
    facts: PartResult = {"rank": process.rank, "receipts": receipts.kept}
    show(facts, as_json=not sys.stdout.isatty(), width=9)
    return 0
