"""`sealift audit`: verify and show a broker's log of key releases and refusals.

A whole run is proved by its receipt (``sealift receipt``). Needs no torch and no network.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from sealift.cli.console import say, show
from sealift.cli.judging import (
    add_judging_arguments,
    add_time_argument,
    load_equipped,
)
from sealift.cli.receipt import (
    ReceiptTotals,
    receipt_statement,
    verified_receipts,
)
from sealift.codec import to_plain
from sealift.errors import IntegrityError, visible
from sealift.ids import Digest
from sealift.release.agreement.phrases import count, say_time
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.files import read_whole
from sealift.release.log.entries import Entry, SignedTreeHead, TreeHead
from sealift.release.log.heads import (
    LogReport,
    find_head,
    log_owner,
    read_entries,
    read_head,
    verify_log,
)
from sealift.train.output.accounts import receipt_digest
from sealift.train.output.runreceipt import open_run, verify_run
from sealift.travel.visit.messages import MAX_RUN_RECEIPT_BYTES


def add_parser(subparsers: Any) -> None:
    """Add the noun `audit`."""
    verbs = subparsers.add_parser("audit").add_verbs()
    verify = verbs.add_parser(
        "verify",
        run=_verify,
        help="verify a log, and compare it with a head that you kept",
        description="Without --head this shows only that the log is consistent in itself; its "
        "owner could have replaced it by another one.",
    )
    verify.add_path("log")
    verify.add_file("--head", help="a signed head, or a holder's file of heads")
    verify.add_json()
    kept = verbs.add_parser(
        "kept",
        run=_verify_kept,
        help="verify an owner's log and receipts, and that they agree",
        description="Verifies every receipt under the agreement, and that the log continues "
        "each head of it that is in a receipt.",
    )
    kept.add_path("log", help="the owner's log")
    kept.add_path("--receipts", required=True, metavar="DIR", help="folder")
    kept.add_file("--agreement", required=True, help="the signed agreement")
    add_judging_arguments(kept)
    add_time_argument(kept)
    kept.add_json()
    show = verbs.add_parser(
        "show", run=_show, help="print every entry, without verification"
    )
    show.add_path("log")
    show.add_flag("--json", "print one line of JSON for each entry")


def _verify(args: argparse.Namespace) -> None:
    outside = None
    if args.head is not None:
        outside = find_head(args.head, read_head(args.log).body.log)
    report = verify_log(args.log, *([outside] if outside else []))
    if args.json:
        print(json.dumps({**to_plain(report), "statement": report.statement}))
        return
    _print_report(report)
    if outside is None:
        say("to compare it with a head that another party kept, add --head FILE")


def _verify_kept(args: argparse.Namespace) -> None:
    verified = load_equipped(args)
    log = read_head(args.log).body.log
    totals, own = ReceiptTotals(), set[Digest]()
    heads: dict[TreeHead, SignedTreeHead] = {}
    for signed in verified_receipts([args.receipts], verified):
        totals.add(signed.body)
        own.add(receipt_digest(signed))
        # By content, not by size: two heads of one size show that the log was forked.
        heads |= {h.body: h for h in signed.body.heads if h.body.log == log}
    statement = receipt_statement(totals.require_last(), complete=True)
    if not heads:
        raise IntegrityError(
            f"no receipt in {args.receipts} belongs to a run for which {args.log} shows a key release",
            code="log-elsewhere",
        )
    shown = sorted(heads.values(), key=lambda head: head.body.size)
    report = verify_log(args.log, *shown)
    facts = {
        "agreement": verified.digest.to_text(),
        "owner": log_owner(shown[-1], verified).name,
        "log": f"{report.size:,} entries, {count(report.releases, 'release')}, "
        f"{count(report.refusals, 'refusal')}; continues "
        f"{count(len(shown), 'head')} in receipts",
        **totals.facts(statement),
        **_in_the_runs(args.receipts, own, verified),
    }
    show(facts, as_json=args.json, width=9)


def _in_the_runs(
    folder: Path, own: set[Digest], verified: VerifiedAgreement
) -> dict[str, str]:
    """How many of an owner's receipts stand in the receipts of runs beside its folder."""
    verified_runs, named = 0, set[Digest]()
    for path in sorted(folder.resolve().parent.glob("receipt*.json")):
        if not re.fullmatch(r"receipt(-\d+)?\.json", path.name):
            continue
        run = open_run(read_whole(path, MAX_RUN_RECEIPT_BYTES))
        if run.manifest.agreement != verified.digest:
            continue
        for _line in verify_run(run, verified):
            pass
        verified_runs, named = verified_runs + 1, named | set(run.uses.receipts)
    if not verified_runs:
        return {}
    part = f"{len(own & named)} of {len(own)} receipts are part of"
    return {"runs": f"{part} {count(verified_runs, 'verified receipt')} of whole runs"}


def _print_report(report: LogReport) -> None:
    print(f"owner        {report.owner}")
    print(f"entries      {report.size}")
    print(f"releases     {report.releases}")
    print(f"refusals     {report.refusals}")
    if report.checkpoints:
        print(f"checkpoints  {report.checkpoints}")
    print(f"root         {report.root}")
    print(f"verified     {report.statement}")


def _show(args: argparse.Namespace) -> None:
    for index, entry in enumerate(read_entries(args.log)):
        if args.json:
            print(json.dumps({"index": index, **to_plain(entry)}))
        else:
            print(visible(_line(index, entry)))


def _line(index: int, entry: Entry) -> str:
    peer = " ".join(word for word in (entry.role, entry.peer, entry.level) if word)
    words = [f"{index:>6}", say_time(entry.at_s), f"{entry.kind:<9}"]
    said = (entry.subject, peer and f"to {peer}", entry.rule and f"rule {entry.rule}")
    words += [
        " ".join(each.split()) for each in said
    ]  # peers sent parts of it, which may have line breaks
    words.append(f"under {entry.agreement.short}")
    return "  ".join(word for word in words if word)
