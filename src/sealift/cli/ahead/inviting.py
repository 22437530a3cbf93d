"""`sealift join INVITATION --check`: what an invited owner can know before it meets anybody."""

from __future__ import annotations

import argparse
from pathlib import Path

from sealift.cli.ahead import looks
from sealift.cli.ahead.dryrun import Checks
from sealift.cli.ahead.network import Network
from sealift.cli.meeting.place import PartyFolder, read_invitation
from sealift.data.sources.csvfiles.structure import look_at
from sealift.data.sources.problems import Problems
from sealift.errors import UnavailableError
from sealift.events import wall_clock
from sealift.meet.invitation import Invitation
from sealift.release.agreement.explain import say_time
from sealift.train.job.settings import parse_address


def check(args: argparse.Namespace) -> int:
    """Look at everything, and say it line by line; the invitation is not used up."""
    invitation = read_invitation(args.invitation)
    checks = Checks()
    checks.look("invitation", lambda: _look_at(invitation))
    checks.look("keys", lambda: _look_at_key(invitation.name))
    for table in filter(None, (args.data, args.heldout)):
        checks.look("data", lambda table=table: _look_at_table(table))  # type: ignore[misc]
    checks.look("torch", looks.look_at_torch)
    for address in invitation.addresses:
        network = Network(parse_address(address))
        checks.look("reach", network.reach)
        checks.look("clock", lambda: network.compare_clocks(wall_clock()))  # noqa: B023 - called at once
    return checks.show()


def _look_at(invitation: Invitation) -> str:
    invitation.require_in_time(wall_clock())
    until = say_time(invitation.expires_s)
    return f"for {invitation.name}, until {until}; the host's key is {invitation.host}"


def _look_at_key(name: str) -> str:
    place = PartyFolder(Path.cwd(), name)
    if not place.key.exists():
        return "an identity key will be created in this folder"
    place.identity()
    return f"{place.key.name} opens"


def _look_at_table(path: Path) -> str:
    if not path.is_file():
        raise UnavailableError(f"the file {path} does not exist", code="cannot-read")
    problems = Problems(path.name)
    structure = look_at(path, problems)
    problems.demand_none()
    columns = len(structure.header)
    return f"{path.name}: {columns:,} columns, {structure.words}; the host's schema is not known"
