"""`sealift join INVITATION --check`: what an invited owner can know before it meets anybody."""

from __future__ import annotations

import argparse
from contextlib import suppress
from functools import partial
from pathlib import Path

from sealift.channel.record.outputfile import open_output
from sealift.cli.ahead import looks
from sealift.cli.ahead.dryrun import Checks
from sealift.cli.ahead.looks import Network
from sealift.cli.data import source_options
from sealift.cli.meeting.guest import brought_by, percent_of
from sealift.cli.meeting.place import open_folder, read_invitation
from sealift.data.schema.document import schema_from_plain
from sealift.data.schema.owntable import FILE, load_own_table
from sealift.data.schema.schema import Schema
from sealift.data.sources.csvfiles.draft import draft_own_table
from sealift.data.sources.csvfiles.structure import look_at
from sealift.data.sources.problems import Problems
from sealift.data.sources.table import infer_schema, is_text, open_table, tell_numbers
from sealift.errors import SealiftError, UnavailableError
from sealift.events import say_local_time, wall_clock
from sealift.meet.invitation import Invitation
from sealift.meet.owner import fewest_rows, read_kept
from sealift.meet.table import BroughtTable
from sealift.meet.terms import Declaration
from sealift.release.agreement.phrases import count
from sealift.train.job.settings import parse_address


def check(args: argparse.Namespace) -> int:
    """Look at everything, and say it line by line; the invitation is not used up."""
    invitation = read_invitation(args.invitation)
    checks = Checks()
    checks.look("invitation", lambda: _look_at(invitation))
    checks.look("keys", lambda: _look_at_key(invitation.name))
    split = args.heldout is not None and percent_of(args.heldout) is not None
    for table in filter(None, (args.data, None if split else args.heldout)):
        checks.look("data", lambda table=table: _look_at_table(table, args))  # type: ignore[misc]
    if declared := _declared(invitation):
        _compare(checks, args, invitation.name, declared)
    for line in _said_numbers(args, declared):
        checks.look("labels", lambda line=line: line)  # type: ignore[misc]
    if is_text(str(args.data)) and args.data.exists():
        checks.look("table.toml", lambda: _draft(args, declared))
    checks.look("torch", looks.look_at_torch)
    for address in invitation.addresses:
        network = Network(parse_address(address))
        checks.look("reach", network.reach)
        checks.look("clock", lambda: network.compare_clocks(wall_clock()))  # noqa: B023 - called at once
    return checks.show()


def _look_at(invitation: Invitation) -> str:
    invitation.require_in_time(wall_clock())
    until = say_local_time(invitation.expires_s)
    return f"for {invitation.name}, until {until}; the host's key is {invitation.host}"


def _look_at_key(name: str) -> str:
    place = open_folder(Path.cwd(), name)
    if not place.key.exists():
        return "an identity key will be created in this folder"
    place.identity()
    return f"{place.key.name} opens"


def _look_at_table(path: Path, args: argparse.Namespace) -> str:
    if not path.exists():
        raise UnavailableError(f"{path} does not exist", code="cannot-read")
    options = source_options(args, path)
    if not is_text(str(path)):
        schema = infer_schema(path, options)
        table = open_table(path, schema, options)
        return f"{path.name}: {count(len(schema.fields), 'field')}, {count(table.rows, 'row')}"
    problems = Problems(path.name)
    structure = look_at(path, problems, options.own)
    problems.demand_none()
    columns = len(structure.header)
    return f"{path.name}: {columns:,} columns, {structure.words}"


def _declared(invitation: Invitation) -> Declaration | None:
    """What the host declared, once it has shown it."""
    place = open_folder(Path.cwd(), invitation.name)
    if not place["meeting.json"].exists():
        return None
    return read_kept(place, invitation).declaration


def _schema_of(declared: Declaration) -> Schema:
    return schema_from_plain(declared.schema, source="the host's schema")


def _compare(
    checks: Checks, args: argparse.Namespace, name: str, declared: Declaration
) -> None:
    """Every cell, as after the question; nobody hears of it."""
    try:
        tables = brought_by(args, open_folder(Path.cwd(), name).identity())
    except SealiftError:  # a check of its own says what is wrong
        return
    schema = _schema_of(declared)

    def compare(number: int, table: BroughtTable) -> str:
        rows = table.count_rows(schema, fewest_rows(declared)[number])
        return f"{table.name}: {count(rows, 'row')}, which fit what the host declares"

    for number, each in enumerate(tables):
        checks.look("compared", partial(compare, number, each))


def _said_numbers(args: argparse.Namespace, declared: Declaration | None) -> list[str]:
    with suppress(SealiftError):  # a check of its own says what is wrong
        if declared:
            options = source_options(args, args.data)
            return tell_numbers(args.data, _schema_of(declared), options)
    return []


def _draft(args: argparse.Namespace, declared: Declaration | None) -> str:
    """Write a table.toml beside the table, where the owner has none but an unchanged draft."""
    path = args.table or args.data.parent / FILE
    schema = _schema_of(declared) if declared else None
    structure = look_at(args.data, Problems(args.data.name))
    draft = draft_own_table(structure, schema).encode()
    if path.exists():
        load_own_table(path)
        there = path.read_bytes()
        if there == draft:
            return f"{path.name} is an unchanged draft: it has no effect until you change it"
        if there != draft_own_table(structure, None).encode():
            return f"{path.name} says how your file is written"
        path.unlink()  # drafted before the host's schema was known
    with open_output(path) as output:
        output.write(draft)
    known = "" if schema else "; the host's schema is not known yet"
    return f"a draft was written to {path.name}; it has no effect until you change it{known}"
