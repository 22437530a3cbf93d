"""``sealift broker entrust``: judge a shared broker, then give it this owner's keys."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sealift.attest.level import protects_nobody
from sealift.cli.agreementnew import parse_until
from sealift.cli.ask import confirm
from sealift.cli.brokershared import require_shared, say
from sealift.cli.judging import equip_from, wall_clock
from sealift.cli.owncode import own_code
from sealift.cli.roles import (
    RoleSetup,
    add_role_arguments,
    require_data_owner,
    set_up_role,
)
from sealift.codec import encode
from sealift.ids import Role
from sealift.release.appointment import SignedAppointment
from sealift.release.entrust import Terms, broker_appraiser, entrust, require_proven
from sealift.release.explain import say_time
from sealift.release.files import write_whole
from sealift.release.vault import Vault
from sealift.release.visible import visible
from sealift.session.endpoint import Endpoint
from sealift.session.establish import connect
from sealift.session.link import Link
from sealift.session.session import Session
from sealift.travel.peers import expect_shared_broker
from sealift.travel.sharedbrokerage import DESK, ENTRUST

LASTS_S: Final = 86_400
WAIT_S: Final = 20.0


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "broker entrust",
        help="judge a shared broker, and give it this owner's keys",
        description="Shows what the broker's evidence proved before anything is sent. "
        "The uses that it gets are counted as used up in this owner's vault.",
    )
    parser.set_defaults(run=run)
    add_role_arguments(parser)
    parser.add_argument("--vault", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--uses", type=int, metavar="N",
        help="how often the broker may release each key; 0: as often as the rule allows; "
        "default: 8, if the rule limits it",
    )  # fmt: skip
    parser.add_argument(
        "--until", metavar="TIME", help="RFC 3339; default: in 24 hours"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="keep the appointment here"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace) -> int:
    """Judge, show, ask, entrust."""
    setup = set_up_role(args)
    require_data_owner(setup, "owner")
    with closing(Vault.open(args.vault, setup.identity)) as vault:
        setup = _equipped(args, setup, vault)
        with meet_shared_broker(setup) as session:
            _show(session, setup)
            confirm("entrust your keys to it", yes=args.yes, fix="Read it, give --yes")
            signed = entrust(
                session,
                setup.agreement,
                setup.identity,
                vault,
                terms=_terms(args),
                clock=wall_clock,
            )
    if args.output is not None:
        write_whole(args.output, encode(signed))
    _print(signed)
    return 0


@contextmanager
def meet_shared_broker(setup: RoleSetup) -> Iterator[Session]:
    """A session with it, its evidence judged for this owner.

    Raises:
        PeerError: if it is not there.
        RefusedError: if it does not prove what was agreed on.
    """
    owner = setup.identity.name
    appraiser = broker_appraiser(setup.agreement, owner)
    endpoint = Endpoint(
        role=Role.HOLDER,
        name=owner,
        agreement=setup.agreement.digest,
        identity=setup.identity,
    )
    with Link.dial(setup.address, f"{ENTRUST}{owner}", WAIT_S) as link:
        policy = expect_shared_broker(setup.agreement, owner, appraiser)
        circuit = link.open(DESK, wait_s=WAIT_S)
        with connect(circuit, endpoint, policy, WAIT_S) as session:
            yield session


def _equipped(args: argparse.Namespace, setup: RoleSetup, vault: Vault) -> RoleSetup:
    key = setup.identity.public_key
    agreement = equip_from(args, setup.agreement, enroller=key, ledger=vault.ledger)
    return replace(setup, agreement=agreement)


def _show(session: Session, setup: RoleSetup) -> None:
    result = require_proven(session.peer, setup.agreement)
    shared = require_shared(setup)
    same = "the code installed here" if own_code() == shared.code else "NOT this code"
    say(f"the broker proved level {result.standing}")
    say(f"evidence  {result.evidence} by {visible(result.claims.attester)[:100]}")
    say(f"code      {shared.code}, {same}")
    say(f"run by    {shared.operator}, for {', '.join(shared.owners)}")
    if protects_nobody(result.standing):
        say(
            f"development keeps nobody out: {shared.operator}, who operates the broker, "
            "can read your keys"
        )


def _terms(args: argparse.Namespace) -> Terms:
    until = parse_until(args.until) if args.until else int(wall_clock()) + LASTS_S
    return Terms(args.uses, until)


def _print(signed: SignedAppointment) -> None:
    said = signed.appointment
    print(f"appointed  {said.key}")
    print(f"until      {say_time(said.not_after)}")
    for each in said.resources:
        uses = f"{each.uses} times" if each.uses else "any number of times"
        print(f"entrusted  {each.resource}, {uses}")
