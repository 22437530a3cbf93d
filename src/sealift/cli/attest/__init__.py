"""`sealift attest`: collect attestation evidence, and verify it against reference values."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sealift.attest.evidence import Evidence
from sealift.attest.level import Level, TrustVector, parse_accept
from sealift.attest.policy import Appraiser
from sealift.attest.referenceset import (
    MAX_SET_BYTES,
    SetName,
    SignedReferenceSet,
    parse_set,
    verify_set,
)
from sealift.attest.verifier import UNBOUND, AppraisalCheck, Claims
from sealift.cli.attest.collateral import add_collateral_parser
from sealift.cli.attest.collect import add_collect_parser
from sealift.cli.attest.reference import add_reference_parser
from sealift.cli.console import say
from sealift.cli.judging import (
    add_collateral_argument,
    add_evidence_arguments,
    add_time_argument,
    load_evidence,
    parse_bound,
    parse_time,
)
from sealift.codec import to_plain
from sealift.crypto.sign import PublicKey
from sealift.errors import RefusedError, visible
from sealift.release.agreement.signed import load_verified
from sealift.release.equip import equip, load_collateral
from sealift.release.files import read_whole

REAL_LEVELS: Final = (Level.TEE, Level.GPU_TEE, Level.ATTESTED_HOST)
WIDTH: Final = 48


def add_parser(subparsers: Any) -> None:
    """Add the noun `attest`."""
    verbs = subparsers.add_parser("attest").add_verbs()
    add_collect_parser(verbs)
    add_collateral_parser(verbs)
    add_reference_parser(verbs)
    _add_verify_parser(verbs)


def _add_verify_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "verify",
        run=_verify,
        help="verify a file of evidence against reference values",
        description="Prints every comparison, with the expected value and the value that was "
        "found. Works offline; certificates and lists of vendors come from --collateral.",
    )
    add_evidence_arguments(parser)
    parser.add_file("--agreement", help="take reference values and levels from it")
    parser.add_file(
        "--references",
        help="a signed reference set, which the agreement names or which replaces it",
    )
    parser.add_argument(
        "--signer", metavar="KEY", help="the key that must have signed it"
    )
    add_collateral_argument(parser)
    parser.add_argument(
        "--accept",
        metavar="LEVELS",
        help="levels for --references; default: all but development",
    )
    fresh = parser.add_mutually_exclusive_group(required=True)
    fresh.add_argument(
        "--bound", metavar="HEX", help="the 2 to 64 bytes that it must contain"
    )
    fresh.add_argument(
        "--unbound",
        action="store_true",
        help="do not compare them, so a copy of old evidence is accepted",
    )
    add_time_argument(parser)
    parser.add_json()


def _verify(args: argparse.Namespace) -> int:
    evidence = load_evidence(args).evidence
    appraiser = _appraiser(args)
    bound = None if args.unbound else parse_bound(args.bound)
    claims = appraiser.examine(evidence, bound)
    if args.unbound:
        checks = (each for each in claims.checks if each.code != UNBOUND)
        claims = replace(claims, checks=tuple(checks))
    refusal = _refusal(appraiser, claims)
    if args.json:
        print(json.dumps(_facts(evidence, claims, refusal)))
    else:
        _print_table(evidence, claims, refusal)
    if args.unbound and not args.json:
        say("freshness was not verified: the evidence may be an old copy")
    if refusal is not None:
        raise refusal
    return 0


def _appraiser(args: argparse.Namespace) -> Appraiser:
    at_s = parse_time(args.at)
    collateral = load_collateral(args.collateral)
    if args.agreement is not None:
        return equip(
            load_verified(args.agreement),
            clock=lambda: at_s,
            collateral=collateral,
            sets=[_read_set(args.references)] if args.references else (),
        ).appraiser()
    accept = parse_accept(args.accept.split(",")) if args.accept else REAL_LEVELS
    appraiser = Appraiser(accept=accept, collateral=collateral, clock=lambda: at_s)
    if args.references is None:
        return appraiser
    signed = _read_set(args.references)
    signer = PublicKey.from_text(args.signer) if args.signer else signed.signer
    name = SetName(name=signed.set.name, signer=signer, number=1)
    found = verify_set(signed, name)
    if not args.signer:
        say(f"{signer} signed the reference set {found.name} {found.number}")
    return replace(appraiser, references=found.values)


def _read_set(path: Path) -> SignedReferenceSet:
    return parse_set(read_whole(path, MAX_SET_BYTES))


def _refusal(appraiser: Appraiser, claims: Claims) -> RefusedError | None:
    try:
        appraiser.judge(claims)
    except RefusedError as error:
        return error
    return None


def _facts(
    evidence: Evidence, claims: Claims, refusal: RefusedError | None
) -> dict[str, Any]:
    return {
        "kind": evidence.kind,
        "evidence": evidence.digest.to_text(),
        "attester": claims.attester,
        "level": claims.level.value if claims.level else None,
        "rehearsing": claims.rehearsing.value if claims.rehearsing else None,
        "tier": claims.trust.tier.value,
        "trust": to_plain(claims.trust),
        "code_bundle": claims.code_bundle.to_text() if claims.code_bundle else None,
        "measurements": {name: raw.hex() for name, raw in claims.measurements.items()},
        "checks": [to_plain(each) for each in claims.checks],
        "notes": list(claims.notes),
        "refused": refusal.code if refusal else None,
    }


def _print_table(
    evidence: Evidence, claims: Claims, refusal: RefusedError | None
) -> None:
    facts = _facts(evidence, claims, refusal)
    for name in ("kind", "evidence", "attester", "level", "rehearsing", "code_bundle"):
        if facts[name] is not None:
            _row(name.replace("_", " "), str(facts[name]))
    _row("trust", f"{claims.trust.tier}: {_say_trust(claims.trust)}")
    width = max((len(each.subject) for each in claims.checks), default=7)
    print(f"\n    {'checked':<{width}}  {'expected':<{WIDTH}}  found")
    for each in claims.checks:
        print(visible(_say_check(each, width)))
    print()
    for note in claims.notes:
        _row("note", note)
    _row("verdict", f"refused [{refusal.code}]" if refusal else "accepted")


def _row(name: str, value: str) -> None:
    print(visible(f"{name:<11}  {value}"))


def _say_check(each: AppraisalCheck, width: int) -> str:
    mark = "ok" if each.passed else "NO"
    expected = _short(each.expected)
    found = _short(each.found) if each.passed else each.found
    return f"{mark}  {each.subject:<{width}}  {expected:<{WIDTH}}  {found}"


def _say_trust(trust: TrustVector) -> str:
    values = to_plain(trust).items()
    return ", ".join(f"{name.replace('_', '-')} {v}" for name, v in values if v)


def _short(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 9]}…{text[-8:]}"
