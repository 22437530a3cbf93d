"""`sealift attest reference`: make a signed reference set from a trusted machine's evidence."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from typing import Any

from sealift import codec
from sealift.attest.evidence import Evidence
from sealift.attest.referenceset import ReferenceSet, sign_set
from sealift.attest.tools.asreference import Trusted, to_references
from sealift.cli.arguments import Parser
from sealift.cli.console import say, unlock
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
from sealift.release.files import require_absent, write_whole


def add_reference_parser(verbs: Any) -> None:
    """Add the verb `reference`."""
    parser = verbs.add_parser(
        "reference",
        run=_run_reference,
        help="make a signed reference set from the evidence of a machine that you trust",
        description="The evidence must pass every check against the values that are made from "
        "it, so some kinds need --collateral. The parties then expect these values of "
        "every machine: read the file before you sign an agreement that names it.",
    )
    add_evidence_arguments(parser)
    parser.add_argument("--name", required=True, help="the set's name in agreements")
    add_set_arguments(parser)
    add_collateral_argument(parser)
    add_time_argument(parser)
    parser.add_argument(
        "--bound", metavar="HEX", help="the 2 to 64 bytes that it must contain"
    )
    parser.add_file("-o", "--out", required=True)


def add_set_arguments(parser: Parser) -> None:
    """Add who signs the set, and what its values cannot be derived from."""
    group = parser.add_argument_group("the reference set")
    group.add_file("--signer-key", help="the identity key that signs it")
    group.add_argument(
        "--number",
        type=int,
        default=1,
        metavar="N",
        help="the set's number; one more at each change",
    )
    group.add_argument(
        "--operator",
        choices=("hardware", "virtual", "software"),
        help="what the TPM is: a chip, virtual (in a cloud), or software (for rehearsals)",
    )
    group.add_argument(
        "--must",
        action="append",
        default=[],
        metavar="PATH",
        help="TPM: a file that every host's IMA list must contain, beside the interpreters, "
        "IMA policies and agents in this host's list",
    )
    group.add_flag("--pin", "accept this machine only, not others that are equal to it")
    group.add_flag(
        "--without-revocation",
        "accept evidence without looking up whether its keys were revoked (TPM: although "
        "its certificate does not say where to look)",
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
            "the reference set needs a signer",
            fix="Add --signer-key with the identity key of a party",
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
        say("freshness was not verified: the evidence may be an old copy")
    say(f"read {args.out}, then name set and signer in the agreement's references.sets")
