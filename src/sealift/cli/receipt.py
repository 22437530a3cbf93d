"""`sealift receipt`: verify the receipt of a visit. Needs no torch and no network."""

from __future__ import annotations

import argparse
import json
from typing import Any

from sealift.attest.level import protects_nobody
from sealift.cli.console import say
from sealift.cli.judging import (
    add_judging_arguments,
    add_time_argument,
    equip_from,
    parse_time,
)
from sealift.codec import to_plain
from sealift.errors import visible
from sealift.release.agreement.explain import cargo_promise, count
from sealift.release.agreement.signed import load_verified
from sealift.release.receipt import (
    Receipt,
    load_receipt,
    verify_receipt,
)


def add_parser(subparsers: Any) -> None:
    """Add the noun `receipt`."""
    verbs = subparsers.add_parser(
        "receipt", help="verify the receipt of a visit"
    ).add_verbs()
    parser = verbs.add_parser(
        "verify",
        run=run,
        help="check signature, evidence, content and log heads",
        description="With --agreement everything is checked. Without it only that "
        "whoever holds the receipt's instance key signed it.",
    )
    parser.add_path("file")
    parser.add_file("--agreement", help="the signed agreement")
    add_judging_arguments(parser)
    add_time_argument(parser)
    parser.add_json()


def run(args: argparse.Namespace) -> int:
    """Run the verb; the exit code."""
    signed = load_receipt(args.file)
    verified = None
    if args.agreement:
        at_s = parse_time(args.at)
        verified = equip_from(args, load_verified(args.agreement), clock=lambda: at_s)
    receipt = verify_receipt(signed, verified)
    statement = _statement(receipt, complete=verified is not None)
    if args.json:
        print(json.dumps({**to_plain(receipt), "statement": statement}))
    else:
        _print(receipt, statement)
    if verified is None:
        say("check evidence, content and log heads as well: --agreement FILE")
    return 0


def _statement(receipt: Receipt, *, complete: bool) -> str:
    if not complete:
        return "signature only: not whose key it is"
    if protects_nobody(receipt.level):
        return "signature, evidence, content, heads; development keeps nobody out"
    return "signature, evidence, content, heads"


def _print(receipt: Receipt, statement: str) -> None:
    scrub = receipt.scrub
    phases = ", ".join(f"{name} {s:.3f}" for name, s in receipt.phases_s.items())
    last = receipt.first_row + receipt.rows - 1
    rows = {
        "visit": receipt.visit,
        "job": receipt.job,
        "agreement": receipt.agreement,
        "holder": receipt.holder,
        "resource": f"{receipt.resource} ({receipt.purpose}), "
        f"rows {receipt.first_row} to {last}",
        "content": receipt.content,
        "bytes": f"{receipt.cargo_bytes} opened, {receipt.sealed_bytes} sealed",
        "seconds": phases,
        "cargo": cargo_promise(receipt.buffers, receipt.mixed),
        "level": receipt.level,
        "scrub": f"{scrub.scrubbed_bytes} bytes in {count(len(scrub.regions), 'region')}, "
        f"{scrub.nonzero_bytes} not zero when read back",
        "log heads": ", ".join(str(head.body.size) for head in receipt.heads) or "none",
        "verified": statement,
    }
    for name, value in rows.items():
        print(visible(f"{name:<9}  {value}"))
