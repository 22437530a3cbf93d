"""``sealift broker shared``: one broker for several owners, which proves itself first."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from sealift.attest.level import Level
from sealift.cli.broker import statements_folder
from sealift.cli.hostattester import add_attester_arguments, open_attester
from sealift.cli.judging import equip_from, wall_clock
from sealift.cli.owncode import own_code
from sealift.cli.rejoin import Joined, Rejoining
from sealift.cli.roles import RoleSetup, add_role_arguments, set_up_role
from sealift.errors import IntegrityError, PolicyError
from sealift.ids import Digest, Role
from sealift.release.agreement import SharedBroker
from sealift.release.custody import Custody
from sealift.release.files import make_folder
from sealift.release.statementdesk import StatementDesk
from sealift.session.link import Link
from sealift.travel.sharedbrokerage import Serve, SharedBrokerage


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "broker shared",
        help="keep the keys of several owners who entrust them, proven first",
        description="Dials the orchestrator and waits for owners, who judge its evidence "
        "before they entrust anything. Keys, and what wraps them, are in memory alone: "
        "after a restart the owners entrust again.",
    )
    parser.set_defaults(run=run)
    add_role_arguments(parser)
    parser.add_argument(
        "--logs", type=Path, required=True, metavar="DIR",
        help="gets an audit log for each appointment",
    )  # fmt: skip
    add_attester_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until the job has ended."""
    setup = set_up_role(args)
    setup = replace(setup, agreement=equip_from(args, setup.agreement))
    shared = require_shared(setup)
    code = require_agreed_code(shared)
    attester = open_attester(args, setup, role=Role.BROKER, code=code)
    make_folder(args.logs)
    _warn(setup, shared)
    custody = Custody(
        setup.agreement,
        args.logs,
        clock=wall_clock,
        monotonic=time.monotonic,
        statements=StatementDesk(setup.agreement, statements_folder(setup)),
        sink=setup.sink,
    )
    SharedBrokerage(
        setup.agreement,
        custody,
        attester,
        keep=lambda name, serve: _keep(setup, name, serve),
        sink=setup.sink,
    ).serve()
    return 0


def require_shared(setup: RoleSetup) -> SharedBroker:
    """What the agreement says of a shared broker.

    Raises:
        PolicyError: ``no-shared-broker``.
    """
    shared = setup.agreement.agreement.shared_broker
    if shared is None:
        raise PolicyError(
            "the agreement names no shared broker",
            why="every owner runs its own",
            fix="Sign a successor with shared_broker",
            code="no-shared-broker",
        )
    return shared


def require_agreed_code(shared: SharedBroker) -> Digest:
    """The code that runs here, if it is the agreed one.

    Raises:
        IntegrityError: ``code-bundle-differs``.
    """
    code = own_code()
    if code != shared.code:
        raise IntegrityError(
            "the code of this installation is not the broker's that was agreed on",
            why=f"it is {code}, agreed is {shared.code}",
            fix="Install the agreed version, or agree on this one",
            code="code-bundle-differs",
        )
    return code


def _keep(setup: RoleSetup, name: str, serve: Serve) -> None:
    rejoining = Rejoining(setup.job.travel.rejoin_s, sink=setup.sink)

    def once(joined: Joined) -> None:
        with Link.dial(setup.address, name, rejoining.dial_s) as link:
            joined()
            serve(link)

    rejoining.run(once)


def _warn(setup: RoleSetup, shared: SharedBroker) -> None:
    names = ", ".join(shared.owners)
    if Level.DEVELOPMENT in setup.agreement.accept:
        say(
            "level development: whoever operates this machine can read every key that "
            f"is entrusted here; {shared.operator} does"
        )
    say(f"no keys are here yet: {names} may run `sealift broker entrust`")


def say(line: str) -> None:
    """A line for people."""
    print(f"sealift: {line}", file=sys.stderr, flush=True)
