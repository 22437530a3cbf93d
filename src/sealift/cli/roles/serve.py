"""``sealift serve``: an attested accelerator answers with a sealed model."""

from __future__ import annotations

import argparse
import gc
import json
from contextlib import closing
from pathlib import Path
from typing import Any

from sealift.attest.evidence import measuring
from sealift.attest.level import Level
from sealift.channel.transport.tcp import TcpListener
from sealift.cli.console import print_result, say
from sealift.cli.roles import add_role_arguments, reported, set_up_role
from sealift.cli.roles.attester import add_attester_arguments, evidence_places
from sealift.events import emit
from sealift.release.agreement.code import load_assets, load_bundle
from sealift.serve.admission import Admission, demand_descriptors
from sealift.serve.modelworker import overwrite_live_rooms
from sealift.serve.server import Server, find_subject
from sealift.session.relay.server import Relay
from sealift.train.job.hostattester import open_attester
from sealift.train.job.rolesetup import RoleSetup, boot_clock
from sealift.train.job.settings import parse_address
from sealift.train.job.signals import on_second_signal
from sealift.train.sandbox import kernel as limits
from sealift.train.worker.executor import RecipeExecutor
from sealift.travel.peers import accelerator_names, registry_of
from sealift.travel.visit.memory import restart_overwriting


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "serve",
        run=run,
        description="Listens at the address in the job's [serving]. Attests itself to the "
        "model owner's broker (`sealift broker` with the same job), loads the model into a "
        "sandbox, and answers `sealift predict` and sealift.connect(). On SIGTERM it answers "
        "current requests, refuses others, overwrites its memory and prints its counters.",
    )
    add_role_arguments(parser)
    parser.add_status()
    add_attester_arguments(parser)
    parser.add_argument("--listen", metavar="HOST:PORT", help="default: as in the job")
    parser.add_flag("--keep-freed-memory", "do not overwrite freed memory")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; the exit code is the signal's, or that of an error."""
    if not args.keep_freed_memory:
        restart_overwriting("sealift")
    on_second_signal(overwrite_live_rooms)
    setup = reported(set_up_role(args, "server"), args.status, "server")
    demand_descriptors(setup.job.serving)
    subject = find_subject(setup.agreement, setup.job.serving)
    attester = open_attester(setup, evidence_places(args))
    code = setup.agreement.agreement.code
    files = load_bundle(Path(setup.job.bundle), code)
    limits.hide_memory()
    address = parse_address(args.listen) if args.listen else setup.address
    (name,) = accelerator_names()
    endpoint = setup.attested(name, attester)
    with (
        Relay(None, registry=registry_of(setup.agreement), sink=setup.sink) as relay,
        RecipeExecutor(
            files,
            code.entry,
            overwrite_freed=True,  # so that no client's rows are left for the next
            tell=say,
            measure=measuring(attester),
            assets=load_assets(Path(setup.job.bundle), code.files),
        ) as executor,
        relay.local_client(name) as client,
        closing(TcpListener(*address)) as listener,
    ):
        executor.compute_on(setup.job.run.device)
        server = Server(
            client,
            endpoint,
            setup.agreement,
            subject,
            settings=setup.job.serving,
            executor=executor,
            clock=boot_clock,
            sink=setup.sink,
        )
        _say_level(setup)
        _serve(setup, server, listener, relay)
    return 0


def _serve(
    setup: RoleSetup, server: Server, listener: TcpListener, relay: Relay
) -> None:
    admission = Admission(
        listener,
        relay,
        server.meet,
        settings=setup.job.serving,
        metrics=server.metrics,
        sink=setup.sink,
    )
    host, port = listener.address
    emit(setup.sink, "serve.listening", address=f"{host}:{port}")
    # What is there by now stays: to look through it again would keep every client waiting.
    gc.collect()
    gc.freeze()
    try:
        server.serve(admission.open)
    finally:
        admission.close()
        emit(setup.sink, "serve.ended", **server.health())
        print_result(json.dumps(server.health()))


def _say_level(setup: RoleSetup) -> None:
    if Level.DEVELOPMENT in setup.agreement.accept:
        say("level development: whoever runs this machine can read all requests")
