"""`sealift receipt verify`: of a whole run, or of visits. Needs no torch and no network."""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sealift.attest.level import protects_nobody
from sealift.cli.console import say, show
from sealift.cli.judging import (
    add_judging_arguments,
    add_time_argument,
    equip_from,
    load_equipped,
    parse_time,
)
from sealift.codec import to_plain
from sealift.errors import (
    IntegrityError,
    PolicyError,
    SealiftError,
    UnavailableError,
    UsageError,
    fold,
    quote_foreign,
    visible,
)
from sealift.events import wall_clock
from sealift.release.agreement.phrases import cargo_promise, count
from sealift.release.agreement.signed import (
    VerifiedAgreement,
    load_verified,
    verify,
)
from sealift.release.files import read_whole
from sealift.release.log.entries import SignedTreeHead
from sealift.release.log.heads import (
    find_head,
    log_owner,
    read_entries,
    read_head,
    verify_log,
)
from sealift.release.receipt import (
    Receipt,
    ReceiptVerifier,
    SignedReceipt,
    read_receipts,
    receipts_in,
)
from sealift.train.output.accounts import own_parties
from sealift.train.output.manifest import head_of, prove_releases
from sealift.train.output.modelfacts import demand_made
from sealift.train.output.runreceipt import Line, RunReceipt, open_run, verify_run
from sealift.travel.visit.messages import MAX_RUN_RECEIPT_BYTES

MAX_MODEL_BYTES: Final = 1 << 40
_ENVELOPE: Final = b'{"payload":'


def add_parser(subparsers: Any) -> None:
    """Add the noun `receipt`."""
    verbs = subparsers.add_parser("receipt").add_verbs()
    parser = verbs.add_parser(
        "verify",
        run=_verify,
        help="verify a receipt, and print the result of each check",
        description="Receipt of a run: everything in it is verified, offline, as of the time "
        "of the run. Without an owner's log or a kept head (--with-log, --head) this shows "
        "only that the receipt is consistent in itself: its author could have invented all "
        "parties. Receipts of visits: with --agreement everything is verified, else only the "
        "signature by the key in the receipt; for several, the totals are printed.",
    )
    parser.add_argument(
        "receipts",
        nargs="+",
        type=Path,
        metavar="RECEIPT",
        help="receipt of a run (copies of several parties must be equal), or receipts of visits: "
        "files, or folders with them",
    )
    parser.add_file("--agreement", help="your copy of the signed agreement")
    run = parser.add_argument_group("for the receipt of a run")
    run.add_file("--model", help="the model's file")
    run.add_file("--head", help="a signed head of a log, or your file of heads")
    run.add_path("--with-log", many=True, metavar="LOG", help="an owner's log")
    add_judging_arguments(parser)
    add_time_argument(parser)
    parser.add_json()


def _verify(args: argparse.Namespace) -> None:
    first = args.receipts[0]
    if not first.exists():
        raise UnavailableError(f"{first} does not exist", code="cannot-read")
    raw = read_whole(first, MAX_RUN_RECEIPT_BYTES) if first.is_file() else b""
    if raw.startswith(_ENVELOPE):
        for other in args.receipts[1:]:
            _demand_same_file(other, first, raw)
        _verify_run(args, open_run(raw))
        return
    for other in filter(Path.is_file, args.receipts[1:]):
        if read_whole(other, MAX_RUN_RECEIPT_BYTES).startswith(_ENVELOPE):
            raise UsageError(
                f"{other} is the receipt of a run, and {first} is not",
                fix="Verify receipts of a run and receipts of visits in two commands",
            )
    if args.at is not None and args.agreement is None:
        raise UsageError(
            "--at needs the agreement, by which evidence is judged",
            fix="Add --agreement FILE",
        )
    if args.model or args.head or args.with_log:
        raise UsageError(
            "--model, --head and --with-log are for the receipt of a run",
            fix="Name one receipt of a run, or leave these options out",
        )
    _verify_visits(args)


def _demand_same_file(other: Path, first: Path, raw: bytes) -> None:
    """Every party has the same receipt of a run.

    Raises:
        IntegrityError: ``receipts-differ``.
    """
    if not other.is_file() or read_whole(other, MAX_RUN_RECEIPT_BYTES) != raw:
        raise IntegrityError(
            f"{other} is not the same receipt as {first}",
            why="every party gets the same receipt of a run",
            code="receipts-differ",
        )


def _verify_run(args: argparse.Namespace, receipt: RunReceipt) -> None:
    named = (args.agreement, args.model, args.head, *args.with_log)
    for path in filter(None, named):  # before any line is printed
        if not path.exists():
            raise UnavailableError(f"{path} does not exist", code="cannot-read")
    made_s = min(
        float(receipt.made_at_s), wall_clock()
    )  # evidence is never judged as of a future time
    at_s = made_s if args.at is None else parse_time(args.at)
    verified = equip_from(args, verify(receipt.agreement), clock=lambda: at_s)
    results = {}
    try:
        if args.model is not None:  # another model ends it before anything else is done
            _same_model(args.model, receipt)
        for line in _run_lines(args, receipt, verified):
            results[line.name] = line.said
            if not args.json:
                _print_line(line.name, line.said.split("; "))
    except SealiftError as error:
        if not args.json:
            _print_line("verdict", [f"refused [{error.code}]"])
        raise
    if args.json:
        print(json.dumps(results))


def _print_line(name: str, parts: Sequence[str]) -> None:
    for part in parts:
        for shown in fold(f"{name:<16}  {visible(part)}", indent=18):
            print(shown, flush=True)
        name = ""


def _run_lines(
    args: argparse.Namespace, receipt: RunReceipt, verified: VerifiedAgreement
) -> Iterator[Line]:
    yield from verify_run(receipt, verified)
    outside = []
    if own_parties(receipt.manifest.plan, verified):
        names = ", ".join(verified.agreement.data_owners)
        outside.append(f"the accounts signed by {names} agree with it")
    if args.agreement is not None:
        if load_verified(args.agreement).digest != verified.digest:
            raise PolicyError(
                f"{args.agreement} is not this receipt's agreement",
                code="other-agreement",
            )
        outside.append("its agreement is the one that you gave")
    if args.model is not None:
        yield Line("the model's file", _same_model(args.model, receipt))
    heads = receipt.manifest.heads
    compared = [
        *(_kept(args.head, heads, verified, args.with_log) if args.head else ()),
        *(said for path in args.with_log for said in _logged(path, receipt, verified)),
    ]
    if not compared:
        outside.append("internally consistent")
    yield Line("verified", "; ".join([*compared, *outside]))
    alone = (
        "The receipt is internally consistent. To prove that it is not forged, "
        "add `--with-log audit.db`."
    )
    yield Line(
        "verdict", "verified, and compared with what you gave" if compared else alone
    )


def _same_model(path: Path, receipt: RunReceipt) -> str:
    demand_made(read_whole(path, MAX_MODEL_BYTES), str(path), receipt)
    return f"{path} is the file that the run made"


def _kept(
    path: Path,
    heads: Sequence[SignedTreeHead],
    verified: VerifiedAgreement,
    logs: Sequence[Path],
) -> Iterator[str]:
    """Compare with heads that somebody kept."""
    missing: SealiftError | None = None
    compared = 0
    for shown in heads:
        try:
            kept = find_head(path, shown.body.log)
        except PolicyError as error:
            missing = error
            continue
        owner = log_owner(shown, verified).name
        if kept.body.size == shown.body.size:
            if kept.body.root != shown.body.root:
                raise IntegrityError(
                    f"the receipt's head of {owner}'s log contradicts the one that you kept",
                    code="log-forked",
                )
        elif not (
            own := [each for each in logs if read_head(each).body.log == kept.body.log]
        ):
            raise UsageError(
                f"the head that you kept has {kept.body.size:,} entries, and the receipt's "
                f"has {shown.body.size:,}",
                fix=f"Add {owner}'s log, which has both: --with-log LOG",
                code="head-unproven",
            )
        else:
            verify_log(own[0], kept)
        compared += 1
        yield f"agrees with your head of {owner}'s log, {kept.body.size:,} entries"
    if not compared and missing is not None:
        raise missing


def _logged(
    path: Path, receipt: RunReceipt, verified: VerifiedAgreement
) -> Iterator[str]:
    """The log itself holds what the receipt shows of it: its head, and every release."""
    log, manifest = read_head(path).body.log, receipt.manifest
    try:
        shown = head_of(manifest, log)
    except IntegrityError as error:
        error.what = f"{path}: {error.what}"
        raise
    own = (r.head for r in receipt.released if r.head.body.log == log)
    verify_log(path, shown, *own)
    proven = prove_releases(manifest, read_entries(path))
    owner = log_owner(shown, verified).name
    yield (
        f"{owner}'s log has the receipt's head and the key releases of "
        f"{', '.join(sorted(set(proven.resources)))}, for evidence "
        f"{', '.join(each.to_text() for each in proven.evidence)}"
    )


def _verify_visits(args: argparse.Namespace) -> None:
    verified = load_equipped(args) if args.agreement else None
    totals = ReceiptTotals()
    for signed in verified_receipts(args.receipts, verified):
        totals.add(signed.body)
    receipt = totals.require_last()
    statement = receipt_statement(receipt, complete=verified is not None)
    if totals.count > 1:
        show(totals.facts(statement), as_json=args.json, width=9)
    elif args.json:
        print(json.dumps({**to_plain(receipt), "statement": statement}))
    else:
        show(_receipt_facts(receipt, statement), as_json=False, width=9)
    if verified is None:
        say("to verify evidence, content and log heads as well, add --agreement FILE")


def _receipt_files(paths: Sequence[Path]) -> list[Path]:
    """Receipts of visits, by name and in folders.

    Raises:
        UsageError: ``no-receipts``.
    """
    found: list[Path] = []
    for path in paths:
        inside = receipts_in(path) if path.is_dir() else [path]
        if not inside:
            raise UsageError(f"{path} has no receipts of visits", code="no-receipts")
        found += inside
    return found


def verified_receipts(
    paths: Sequence[Path], agreement: VerifiedAgreement | None
) -> Iterator[SignedReceipt]:
    """Receipts of visits that hold, one after the other; one that does not ends it.

    Raises:
        UsageError: ``no-receipts``.
        SealiftError: as ``read_receipts`` and ``ReceiptVerifier``, with the file's name.
    """
    verifier = ReceiptVerifier(agreement)
    for path in _receipt_files(paths):
        for signed, _end in read_receipts(path):
            try:
                verifier.verify(signed)
            except SealiftError as error:
                visit = signed.body.visit.to_text()
                error.what = f"{path.name}, visit {visit}: {error.what}"
                raise
            yield signed


@dataclass
class ReceiptTotals:
    """What receipts come to, together, however many there are.

    Attributes:
        count: Receipts so far.
        last: The latest one.
    """

    count: int = 0
    last: Receipt | None = None
    _named: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _uses: Counter[tuple[str, str]] = field(default_factory=Counter)
    _sums: Counter[str] = field(default_factory=Counter)

    def add(self, receipt: Receipt) -> None:
        """Count one."""
        scrub, named = receipt.scrub, self._named
        self.count, self.last = self.count + 1, receipt
        named["jobs"].add(receipt.job)
        named["holder"].add(receipt.holder)
        named["level"].add(receipt.level)
        self._uses[receipt.resource, receipt.purpose] += 1
        self._sums.update(
            opened=receipt.cargo_bytes,
            sealed=receipt.sealed_bytes,
            scrubbed=scrub.scrubbed_bytes,
            nonzero=scrub.nonzero_bytes,
            told=scrub.told_bytes,
            unverified=not scrub.verified,
        )

    def require_last(self) -> Receipt:
        """The latest one.

        Raises:
            UsageError: ``no-receipts``: the files are there, and have none yet.
        """
        if self.last is None:
            raise UsageError("there are no receipts of visits yet", code="no-receipts")
        return self.last

    def facts(self, statement: str) -> dict[str, Any]:
        """For people, with what they prove."""
        sums = self._sums
        names = {
            name: ", ".join(sorted(map(quote_foreign, each)))
            for name, each in self._named.items()
        }
        uses = sorted((_resource(*used), n) for used, n in self._uses.items())
        scrubbed = (
            f"{sums['scrubbed']:,} bytes, {sums['nonzero']:,} not zero when read back"
        )
        return {
            "receipts": self.count,
            "jobs": names["jobs"],
            "holder": names["holder"],
            "visits": ", ".join(f"{n} to {what}" for what, n in uses),
            "bytes": f"{sums['opened']:,} opened, {sums['sealed']:,} sealed",
            "level": ", ".join(sorted(self._named["level"])),
            "scrub": scrubbed + _told(sums["told"], sums["unverified"]),
            "verified": statement,
        }


def _resource(resource: str, purpose: str) -> str:
    return f"{quote_foreign(resource)} ({purpose})"


def _told(reported: int, unverified: int) -> str:
    said = f"; {reported:,} bytes of GPUs, as the recipe's process reports"
    rest = f"; {count(unverified, 'scrub')} not verified" if unverified else ""
    return (said if reported else "") + rest


def receipt_statement(receipt: Receipt, *, complete: bool) -> str:
    """What a receipt that holds proves."""
    if not complete:
        return "signature only: whose key signed it is unknown"
    if protects_nobody(receipt.level):
        return "signature, evidence, content, heads; level development protects nobody"
    return "signature, evidence, content, heads"


def _receipt_facts(receipt: Receipt, statement: str) -> dict[str, Any]:
    scrub = receipt.scrub
    own = [each for each in scrub.regions if not each.told]
    phases = ", ".join(
        f"{quote_foreign(name)} {s:.3f}" for name, s in receipt.phases_s.items()
    )
    last = receipt.first_row + receipt.rows - 1
    return {
        "visit": receipt.visit,
        "job": quote_foreign(receipt.job),
        "agreement": receipt.agreement,
        "holder": quote_foreign(receipt.holder),
        "resource": f"{_resource(receipt.resource, receipt.purpose)}, rows {receipt.first_row} to {last}",
        "content": receipt.content,
        "bytes": f"{receipt.cargo_bytes:,} opened, {receipt.sealed_bytes:,} sealed",
        "seconds": phases,
        "cargo": cargo_promise(receipt.buffers, receipt.mixed),
        "level": receipt.level,
        "scrub": f"{scrub.scrubbed_bytes:,} bytes in {count(len(own), 'region')}, "
        f"{scrub.nonzero_bytes:,} not zero when read back"
        + _told(scrub.told_bytes, not scrub.verified),
        "log heads": ", ".join(str(head.body.size) for head in receipt.heads) or "none",
        "verified": statement,
    }
