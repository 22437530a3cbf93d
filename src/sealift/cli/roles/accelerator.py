"""``sealift accelerator``: owns the device; model and rows are in this process only."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sealift.attest.evidence import Attester, measuring
from sealift.cli.console import say
from sealift.cli.roles import (
    add_host_arguments,
    add_role_arguments,
    direct_host_of,
    set_up_role,
)
from sealift.cli.roles.attester import add_attester_arguments, evidence_places
from sealift.cli.roles.rank import add_rank_arguments, run_rank
from sealift.release.agreement.code import load_assets, load_bundle
from sealift.session.directhost import DirectHost
from sealift.session.relay.client import RelayClient
from sealift.train.job.accelerator import Accelerator
from sealift.train.job.checkpoints import CheckpointFolder
from sealift.train.job.hostattester import open_attester
from sealift.train.job.rejoin import Joined, Rejoining
from sealift.train.job.releasedkeys import enrol_where_missing
from sealift.train.job.rolesetup import RoleSetup, boot_clock
from sealift.train.job.runningjob import MOST, JobShapes, Restarts
from sealift.train.job.signals import on_second_signal
from sealift.train.sandbox import kernel as limits
from sealift.train.worker.executor import RecipeExecutor
from sealift.travel.peers import accelerator_names
from sealift.travel.visit.memory import (
    overwrite_live_pools,
    restart_overwriting,
)


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
    parser.add_flag("--must-resume", "fail if there is no checkpoint to continue from")
    add_host_arguments(parser)
    add_rank_arguments(parser)
    add_attester_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serve one job."""
    if not args.keep_freed_memory:
        restart_overwriting("sealift")
    on_second_signal(overwrite_live_pools)
    setup = set_up_role(args, "accelerator")
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
