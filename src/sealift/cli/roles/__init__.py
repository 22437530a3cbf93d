"""What the long-running commands share: the job, the identity, events, direct paths."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from sealift.cli.arguments import Parser
from sealift.cli.console import unlock
from sealift.cli.judging import add_judging_arguments, equip_from
from sealift.errors import PolicyError, SealiftError
from sealift.events import Sink, emit, wall_clock
from sealift.health.reporting import report_until_exit
from sealift.session.direct import PathDialler
from sealift.session.directhost import DirectHost
from sealift.train.job.directpaths import open_direct_host
from sealift.train.job.journal import Journal, journal_of
from sealift.train.job.rolesetup import RoleSetup, own_enroller, read_role
from sealift.train.job.settings import parse_address
from sealift.train.job.talk import open_events
from sealift.train.output.runreceipt import demand_of
from sealift.train.plans import PlanRole
from sealift.travel.holder.jobs import keep_run
from sealift.travel.peers import rank_names


def add_role_arguments(parser: Parser) -> None:
    """Add what every role takes that dials the orchestrator."""
    add_job_arguments(parser)
    parser.add_argument(
        "--orchestrator",
        metavar="HOST:PORT",
        help="the orchestrator's address; default: as in the job",
    )


def add_job_arguments(parser: Parser) -> None:
    """Add what every role takes."""
    parser.add_path("job", metavar="JOB", help="the job, a TOML file")
    parser.add_file("--key", required=True, help="your identity key")
    add_judging_arguments(parser)
    parser.add_passphrase()
    _add_events_argument(parser)


def set_up_role(args: argparse.Namespace, role: PlanRole) -> RoleSetup:
    """Read and verify everything that a role starts from.

    Args:
        args: With ``add_role_arguments``.
        role: Which process this is.

    Raises:
        SealiftError: the first thing that is wrong, before anything is started.
    """
    job, agreement = read_role(args.job, role, clock=wall_clock)
    address = parse_address(args.orchestrator) if args.orchestrator else job.address
    identity = unlock(args, args.key)
    sink = open_events(args.events, rank_names(agreement.agreement))
    agreement = equip_from(args, agreement, own_enroller(agreement, identity))
    folder = args.job.resolve().parent
    journal = Journal(journal_of(folder, job.name), role, sink, wall_clock)
    journal.begin(
        name=identity.name,
        job=job.name,
        plan=job.plan,
        agreement=agreement.digest.to_text(),
    )
    args.ended = journal.end
    return RoleSetup(job, folder, agreement, identity, journal, address)


def statements_folder(setup: RoleSetup) -> Path:
    """Beside the agreement: where statements about it count."""
    return Path(setup.job.agreement).parent


def reported(setup: RoleSetup, status: Path | None, role: str) -> RoleSetup:
    """A role without a broker, which says in ``status`` how it is (``report_until_exit``)."""
    return replace(setup, sink=report_until_exit(status, role, setup.sink))


def require_data_owner(setup: RoleSetup, role: str) -> None:
    """The identity must be a data owner of the agreement.

    Raises:
        PolicyError: code ``other-key``, ``not-a-party`` or ``not-a-data-owner``.
    """
    name = setup.identity.name
    require_party(setup, name, role)
    if name not in setup.agreement.agreement.holders:
        raise PolicyError(
            f"{name} brings no data to this agreement", code="not-a-data-owner"
        )


def require_party(setup: RoleSetup, name: str, role: str) -> None:
    """The identity must be the party that the agreement gives this role to.

    Raises:
        PolicyError: code ``other-key`` or ``not-a-party``.
    """
    party = setup.agreement.party(name)
    if party.sign != setup.identity.public_key:
        raise PolicyError(
            f"this key is not the one of {name} in the agreement",
            why=f"it is a key of {setup.identity.name}",
            fix=f"Run the {role} with the key of {name}",
            code="other-key",
        )


def add_host_arguments(parser: Parser) -> None:
    """Add what an accelerator takes."""
    _add_relay_only_argument(parser)
    parser.add_argument(
        "--direct",
        metavar="HOST:PORT",
        help="let holders send their rows directly to this address, without the relay",
    )
    parser.add_argument(
        "--direct-listen",
        metavar="HOST:PORT",
        help="where to listen for --direct, if a NAT or proxy is in between",
    )


def add_dialler_arguments(parser: Parser) -> None:
    """Add what a holder takes."""
    _add_relay_only_argument(parser)
    parser.add_argument(
        "--direct",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help="connect directly to the accelerator at this address only, if it offers it",
    )


def _add_relay_only_argument(parser: Parser) -> None:
    """Add what both ends take."""
    parser.add_flag(
        "--relay-only",
        "send rows through the orchestrator's port only",
    )


def direct_host_of(
    args: argparse.Namespace, sink: Sink
) -> AbstractContextManager[DirectHost | None]:
    """The listening end of this command line (``open_direct_host``)."""
    return open_direct_host(
        relay_only=args.relay_only,
        direct=args.direct,
        listen=args.direct_listen,
        sink=sink,
    )


def dialler(args: argparse.Namespace) -> PathDialler:
    """Which offered paths the holder of this command line takes."""
    if args.relay_only:
        return PathDialler(local=False)
    for place in args.direct:
        parse_address(place)  # a mistyped address is refused before the job starts
    return PathDialler(places=args.direct)


def _add_events_argument(parser: Parser) -> None:
    """Add ``--events``."""
    parser.add_argument(
        "--events",
        metavar="FILE",
        default="",
        help="write events as JSON lines to FILE; - is standard output",
    )


def keep_run_in(folder: Path, setup: RoleSetup) -> Callable[[bytes], None]:
    """Checks the run's receipt before it is kept, and says where."""

    def keep(receipt: bytes) -> None:
        try:
            held = demand_of(receipt, setup.agreement, costs=False, job=setup.job.name)
            path, new = keep_run(folder, held)
        # The run has ended; this only decides whether its receipt is kept.
        except SealiftError as error:
            emit(setup.sink, "receipt.refused", reason=error.code, line=str(error))
            return
        if new:
            emit(setup.sink, "receipt.kept", name=path.name)

    return keep
