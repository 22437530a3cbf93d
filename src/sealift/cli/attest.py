"""`sealift attest`: what evidence proves, and what was compared with what."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sealift.attest.check import UNBOUND, Check
from sealift.attest.collateral import MAX_BUNDLE_BYTES, Collateral, parse_bundle
from sealift.attest.evidence import BOUND_BYTES, MAX_BODY_BYTES, Evidence
from sealift.attest.level import Level, parse_accept
from sealift.attest.policy import Appraiser
from sealift.attest.referenceset import MAX_SET_BYTES, SetName, parse_set, verify_set
from sealift.attest.trust import TrustVector
from sealift.attest.verifier import Claims
from sealift.codec import decode, to_plain
from sealift.crypto.sign import PublicKey
from sealift.errors import MalformedError, RefusedError, UsageError
from sealift.release.files import read_whole
from sealift.release.signed import Equipment, load_verified
from sealift.release.visible import visible

REAL_LEVELS: Final = (Level.TEE, Level.GPU_TEE, Level.ATTESTED_HOST)
MAX_FILE_BYTES: Final = 2 * MAX_BODY_BYTES  # the body in base64, and a little
WIDTH: Final = 48


def add_parser(subparsers: Any) -> None:
    """Add the noun `attest`."""
    noun = subparsers.add_parser(
        "attest", help="verify a file of evidence, and say what was compared"
    )
    noun.set_defaults(run=run)
    verbs = noun.add_subparsers(dest="verb", required=True, metavar="VERB")
    parser = verbs.add_parser(
        "verify",
        help="check a file of evidence against reference values",
        description="Prints every comparison: what was expected, what was found. Works "
        "offline; what a vendor must confirm comes from a collateral bundle.",
    )
    parser.add_argument("file", type=Path)
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--agreement", type=Path, metavar="FILE", help="references and levels from it"
    )
    source.add_argument(
        "--references", type=Path, metavar="FILE", help="a signed reference set"
    )
    parser.add_argument("--signer", metavar="KEY", help="who must have signed the set")
    parser.add_argument("--collateral", type=Path, metavar="FILE", help="a bundle")
    parser.add_argument(
        "--accept",
        metavar="LEVELS",
        help="with --references; default: all but development",
    )
    fresh = parser.add_mutually_exclusive_group(required=True)
    fresh.add_argument("--bound", metavar="HEX", help="the 32 bytes that it must carry")
    fresh.add_argument(
        "--unbound",
        action="store_true",
        help="do not compare them: says nothing about freshness",
    )
    parser.add_argument("--at", metavar="TIME", help="judge at this time (RFC 3339)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")


def run(args: argparse.Namespace) -> int:
    """Run the verb; the exit code."""
    return {"verify": _verify}[args.verb](args)


def _verify(args: argparse.Namespace) -> int:
    evidence = _load_evidence(args.file)
    appraiser = _appraiser(args)
    claims = appraiser.examine(evidence, _bound(args))
    if args.unbound:
        claims = _without_freshness(claims)
    refusal = _refusal(appraiser, claims)
    if args.json:
        print(json.dumps(_facts(evidence, claims, refusal)))
    else:
        _print_table(evidence, claims, refusal)
    if args.unbound and not args.json:
        _say("freshness was not checked: anybody may show a copy of this file")
    if refusal is not None:
        raise refusal
    return 0


def _load_evidence(path: Path) -> Evidence:
    raw = read_whole(path, MAX_FILE_BYTES)
    try:
        return decode(Evidence, raw, max_bytes=MAX_FILE_BYTES)
    except MalformedError as error:
        raise MalformedError(
            f"{path} is not a file of evidence",
            why=str(error),
            fix="Give a file that `sealift attest collect` wrote",
            code="bad-evidence-file",
        ) from None


def _appraiser(args: argparse.Namespace) -> Appraiser:
    at_s = _time(args.at)
    collateral = Collateral()
    if args.collateral is not None:
        collateral = parse_bundle(read_whole(args.collateral, 2 * MAX_BUNDLE_BYTES))
    if args.agreement is not None:
        equipment = Equipment(collateral=collateral, clock=lambda: at_s)
        return load_verified(args.agreement).equipped(equipment).appraiser()
    appraiser = Appraiser(
        accept=_levels(args.accept), collateral=collateral, clock=lambda: at_s
    )
    if args.references is None:
        return appraiser
    signed = parse_set(read_whole(args.references, MAX_SET_BYTES))
    signer = PublicKey.from_text(args.signer) if args.signer else signed.signer
    name = SetName(name=signed.set.name, signer=signer, number=1)
    found = verify_set(signed, name)
    if not args.signer:
        _say(f"the reference set {found.name} {found.number} is signed by {signer}")
    return replace(appraiser, references=found.values)


def _levels(text: str | None) -> tuple[Level, ...]:
    return parse_accept(text.split(",")) if text else REAL_LEVELS


def _bound(args: argparse.Namespace) -> bytes | None:
    if args.unbound:
        return None
    try:
        raw = bytes.fromhex(args.bound)
    except ValueError:
        raw = b""
    if len(raw) != BOUND_BYTES:
        raise UsageError(f"--bound takes {BOUND_BYTES} bytes in hex", code="usage")
    return raw


def _time(text: str | None) -> float:
    if text is None:
        return time.time()  # noqa: TID251 - the end of the command line
    try:
        at = dt.datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--at {text[:40]!r} is no time", fix="Write 2026-01-31 or RFC 3339"
        ) from None
    return (at if at.tzinfo else at.replace(tzinfo=dt.UTC)).timestamp()


def _without_freshness(claims: Claims) -> Claims:
    kept = (each for each in claims.checks if each.code != UNBOUND)
    return replace(claims, checks=tuple(kept))


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


def _say_check(each: Check, width: int) -> str:
    mark = "ok" if each.passed else "NO"
    expected, found = (_short(text) for text in (each.expected, each.found))
    return f"{mark}  {each.subject:<{width}}  {expected:<{WIDTH}}  {found}"


def _say_trust(trust: TrustVector) -> str:
    told = {name: value for name, value in to_plain(trust).items() if value}
    return ", ".join(
        f"{name.replace('_', '-')} {value}" for name, value in told.items()
    )


def _short(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 9]}…{text[-8:]}"


def _say(line: str) -> None:
    print(f"sealift: {line}", file=sys.stderr)
