"""`sealift attest reference`: a machine that one trusts becomes a signed reference set."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from typing import Any

from sealift import codec
from sealift.attest.evidence import Evidence
from sealift.attest.referenceset import (
    ReferenceSet,
    sign_set,
)
from sealift.attest.tools.asreference import Trusted, to_references
from sealift.cli.arguments import Parser
from sealift.cli.console import require_absent, say, unlock
from sealift.cli.judging import (
    add_collateral_argument,
    add_evidence_arguments,
    add_time_argument,
    load_evidence,
    parse_bound,
    parse_time,
)
from sealift.errors import UsageError
from sealift.release.equip import load_collateral
from sealift.release.files import write_whole


def add_reference_parser(verbs: Any) -> None:
    """Add the verb `reference`."""
    parser = verbs.add_parser(
        "reference",
        run=_run_reference,
        help="turn evidence of a machine that you trust into a signed reference set",
        description="The evidence must pass every check against what is made of it, so "
        "vendors' collateral is needed where its kind needs it. What the file says is "
        "then what the parties expect of every machine: look at it before you sign "
        "an agreement that names it.",
    )
    add_evidence_arguments(parser)
    parser.add_argument("--name", required=True, help="what agreements call the set")
    add_set_arguments(parser)
    add_collateral_argument(parser)
    add_time_argument(parser)
    parser.add_argument(
        "--bound", metavar="HEX", help="the 2 to 64 bytes that it must carry"
    )
    parser.add_file("-o", "--out", required=True)


def add_set_arguments(parser: Parser) -> None:
    """Add who signs, and what evidence cannot say."""
    group = parser.add_argument_group("the reference set")
    group.add_file("--signer-key", help="the identity that signs it")
    group.add_argument(
        "--number", type=int, default=1, metavar="N", help="one more at every change"
    )
    group.add_argument(
        "--operator",
        choices=("hardware", "virtual", "software"),
        help="who runs the TPM: a chip, a cloud, or a program (rehearsal only)",
    )
    group.add_argument(
        "--must",
        action="append",
        default=[],
        metavar="PATH",
        help="of a TPM's host: a file that every list must name, beside interpreters, "
        "IMA policies and agents that this one's names",
    )
    group.add_flag("--pin", "accept this one machine, no equal ones")
    group.add_flag(
        "--without-revocation",
        "take evidence although nobody looks whether its keys were revoked (TPM: "
        "although its certificate does not say where to look)",
    )
    parser.add_passphrase()


def _run_reference(args: argparse.Namespace) -> int:
    """Write the set; the exit code."""
    require_absent(args.out)
    sealed = args.bound is not None
    write_set(
        ReferenceSource(
            name=args.name,
            evidence=load_evidence(args).evidence,
            bound=parse_bound(args.bound) if sealed else None,
            at_s=parse_time(args.at),
        ),
        args,
    )
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceSource:
    """What a set is made from.

    Attributes:
        name: Of the set.
        evidence: Of the machine.
        bound: What it must carry, if somebody knows.
        at_s: Time to judge it at.
    """

    name: str
    evidence: Evidence
    bound: bytes | None
    at_s: float = field(default_factory=time.time)  # noqa: TID251 - the command line


def write_set(source: ReferenceSource, args: argparse.Namespace) -> None:
    """Derive, prove, sign and write; says what the set is called."""
    if args.signer_key is None:
        raise UsageError(
            "nobody signs the reference set",
            fix="Give --signer-key with the identity of a party",
            code="usage",
        )
    trusted = Trusted(
        at_s=int(source.at_s),
        bound=source.bound,
        collateral=load_collateral(args.collateral),
        operator=args.operator,
        must=tuple(args.must),
        pin=args.pin,
        revocation=not args.without_revocation,
    )
    values = to_references(source.evidence, trusted)
    made = ReferenceSet(
        name=source.name, number=args.number, made_at_s=int(source.at_s), values=values
    )
    signer = unlock(args, args.signer_key)
    write_whole(args.out, codec.encode(sign_set(made, signer)))
    print(f"set     {made.name} {made.number}\nsigner  {signer.public_key}")
    if source.bound is None:
        say("freshness was not checked: anybody may show a copy of that file")
    say(f"an agreement names it: references.sets, with this signer; see {args.out}")
