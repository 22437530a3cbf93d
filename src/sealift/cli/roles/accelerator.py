"""``sealift accelerator``: owns the device; model and rows are in this process only.

``sealift accelerator`` with the plan ``ddp``: a rank, which trains beside others.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sealift.attest.evidence import Attester, measuring
from sealift.cli.arguments import Parser
from sealift.cli.console import say, show
from sealift.cli.roles import (
    add_host_arguments,
    add_role_arguments,
    direct_host_of,
    reported,
    set_up_role,
)
from sealift.cli.roles.attester import add_attester_arguments, evidence_places
from sealift.release.agreement.code import load_assets, load_bundle
from sealift.session.direct import PathDialler
from sealift.session.directhost import DirectHost
from sealift.session.relay.client import RelayClient
from sealift.train.job.accelerator import Accelerator
from sealift.train.job.checkpoints import CheckpointFolder
from sealift.train.job.hostattester import open_attester
from sealift.train.job.rejoin import Joined, Rejoining
from sealift.train.job.releasedkeys import enrol_where_missing
from sealift.train.job.rolesetup import RoleSetup, boot_clock
from sealift.train.job.runningjob import MOST, JobShapes, Restarts
from sealift.train.job.settings import parse_address
from sealift.train.job.signals import on_second_signal
from sealift.train.output.results import PartResult
from sealift.train.sandbox import kernel as limits
from sealift.train.worker.executor import RecipeExecutor
from sealift.travel.peers import accelerator_names
from sealift.travel.visit.memory import (
    overwrite_live_pools,
    restart_overwriting,
)


def _add_rank_arguments(parser: Parser) -> None:
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
    from sealift.train.ranks.rank import open_rank, rank_of  # most have no rank

    for place in args.dial:
        parse_address(place)  # whoever mistypes one hears of it now
    home, name = setup.folder, setup.job.name
    first = setup.job.training.checkpoints_of(name)
    rejoining = Rejoining(setup.job.run.rejoin_s, sink=setup.sink)
    with (
        direct_host_of(args, setup.sink) as direct_host,
        open_rank(
            setup,
            rank_of(setup, args.rank),
            attester,
            sealed=args.sealed or [home],
            receipts=args.receipts or home / "receipts" / name,
            state=args.state or home / "state" / first,
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


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "accelerator",
        run=run,
        description="Connects to the orchestrator, attests itself, gets the data keys from the "
        "owners' brokers, and trains on rows that holders send; with plan ddp on its own "
        "slice of the rows, beside other ranks.",
    )
    add_role_arguments(parser)
    parser.add_flag(
        "--keep-freed-memory",
        "do not overwrite freed memory; receipts show this",
    )
    text = "checkpoints; default: state/NAME beside the job"
    parser.add_path("--state", metavar="DIR", help=text)
    parser.add_status()
    parser.add_flag("--must-resume", "fail if there is no checkpoint to continue from")
    add_host_arguments(parser)
    _add_rank_arguments(parser)
    add_attester_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serve one job."""
    if not args.keep_freed_memory:
        restart_overwriting("sealift")
    on_second_signal(overwrite_live_pools)
    setup = set_up_role(args, "accelerator")
    setup = reported(setup, args.status, "accelerator")
    attester = open_attester(setup, evidence_places(args))
    if setup.job.plan == "ddp":
        return run_rank(args, setup, attester)
    agreement = setup.agreement.agreement
    files = load_bundle(Path(setup.job.bundle), agreement.code)
    limits.hide_memory()
    text = sys.stderr if agreement.output_rule.recipe_text else None
    entry = agreement.code.entry
    rejoining = Rejoining(setup.job.run.rejoin_s, sink=setup.sink)
    with (
        CheckpointFolder(
            args.state or setup.folder / "state" / setup.job.name
        ) as folder,
        RecipeExecutor(
            files,
            entry,
            text=text,
            tell=say,
            measure=measuring(attester),
            assets=load_assets(Path(setup.job.bundle), agreement.code.files),
        ) as executor,
        direct_host_of(args, setup.sink) as direct_host,
    ):
        most = MOST if setup.job.run.rejoin_s else 0
        restarts = Restarts(most, sink=setup.sink)
        server = _JobServer(
            setup,
            attester,
            executor,
            direct_host,
            folder,
            args.must_resume,
            restarts,
            JobShapes(),
        )
        rejoining.run(lambda joined: server.serve(rejoining.dial_s, joined))
    return 0


@dataclass(frozen=True)
class _JobServer:
    """What is kept when a connection is lost; keys and model are not."""

    setup: RoleSetup
    attester: Attester
    executor: RecipeExecutor
    direct_host: DirectHost | None
    folder: CheckpointFolder
    must_resume: bool
    restarts: Restarts
    shapes: JobShapes

    def serve(self, dial_s: float, joined: Joined) -> None:
        """Serve over one connection, with an instance key of its own."""
        setup = self.setup
        (name,) = accelerator_names()
        endpoint = setup.attested(name, self.attester)
        with RelayClient.dial(setup.address, name, dial_s) as relay:
            enrol_where_missing(
                relay,
                endpoint,
                setup.agreement,
                wait_s=setup.job.run.gather_s,
                sink=setup.sink,
            )
            Accelerator(
                relay,
                endpoint,
                setup.agreement,
                plan=setup.job.plan,
                executor=self.executor,
                clock=boot_clock,
                direct_host=self.direct_host,
                sink=setup.sink,
                state=self.folder,
                must_resume=self.must_resume,
                restarts=self.restarts,
                shapes=self.shapes,
            ).serve(joined)
