"""``sealift broker withdraw``: take back what was entrusted to a shared broker."""

from __future__ import annotations

import argparse
from typing import Any

from sealift.cli.broker import statements_folder
from sealift.cli.brokerentrust import meet_shared_broker
from sealift.cli.brokershared import require_shared, say
from sealift.cli.judging import wall_clock
from sealift.cli.roles import add_role_arguments, require_data_owner, set_up_role
from sealift.errors import PeerError
from sealift.release.entrust import withdraw
from sealift.release.statement import save_statement, sign_statement


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "broker withdraw",
        help="take back what was entrusted to a shared broker",
        description="Writes a signed statement beside the agreement, which ends every "
        "appointment that you made before, and brings it to the broker, which destroys "
        "your keys. Keys that it released before are not recalled.",
    )
    parser.set_defaults(run=run)
    add_role_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Say it, keep it, bring it."""
    setup = set_up_role(args)
    require_data_owner(setup, "owner")
    require_shared(setup)
    agreement = setup.agreement.agreement
    said = sign_statement("withdraw", agreement, setup.identity, wall_clock())
    print(f"statement  {save_statement(said, statements_folder(setup))}")
    try:
        with meet_shared_broker(setup) as session:
            gone = withdraw(session, said)
    except PeerError:
        say(
            "the broker was not reached: give the statement to the other parties; the "
            "appointment ends by itself at its time"
        )
        raise
    print(f"destroyed  {'your keys in the broker' if gone else 'nothing: it had none'}")
    return 0
