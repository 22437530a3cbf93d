"""What the parties keep, folded away: every visit, every log entry, every receipt."""

from __future__ import annotations

from collections.abc import Sequence

from sealift.lab.demo.outcome import CheckedLog, Outcome
from sealift.lab.demo.progress import VisitSeen, timed_phases
from sealift.lab.demo.report.markup import (
    Markup,
    details,
    element,
    join,
    section,
    table,
)
from sealift.lab.demo.words import say_bytes, say_s
from sealift.lab.worlds.folder import OWNERS
from sealift.release.audit import Entry
from sealift.release.receipt import Receipt


def records(outcome: Outcome) -> Markup:
    """Audit logs, receipts, visits."""
    visits = outcome.progress.visits
    return section(
        "The records",
        "Each owner's broker wrote down every key before it left, and the other owners "
        "kept signed heads of that log. Each holder keeps a receipt of every visit, "
        "signed by the accelerator's instance key, which its evidence binds; the scrub "
        "report in it is a statement of that accelerator, not a proof.",
        _log_heads(outcome.verdict.logs),
        _receipts(outcome.verdict.receipts),
        details(f"All {len(visits)} visits", _visit_table(visits)),
    )


def _log_heads(logs: Sequence[CheckedLog]) -> Markup:
    rows = [
        [
            element("b", log.owner, class_=f"ink-{log.owner}"),
            str(log.size),
            str(log.releases),
            str(log.refusals),
            " and ".join(log.kept_by),
        ]
        for log in logs
    ]
    headings = ["audit log of", "entries", "releases", "refusals", "heads kept by"]
    return join(
        table(headings, rows),
        details("Every entry of every log", [_log(log) for log in logs]),
    )


def _log(log: CheckedLog) -> Markup:
    title = element("h3", element("span", log.owner, class_=f"ink-{log.owner}"))
    headings = ["", "what", "of what", "to", "level", "under agreement"]
    rows = [_entry_row(index, entry) for index, entry in enumerate(log.entries)]
    root = element("p", "root ", element("code", log.root), class_="small")
    return join(title, table(headings, rows), root)


def _entry_row(index: int, entry: Entry) -> list[str]:
    peer = " ".join(dict.fromkeys(filter(None, (entry.role, entry.peer))))
    kind = f"{entry.kind} [{entry.rule}]" if entry.rule else entry.kind
    return [
        str(index), kind, entry.subject, peer, entry.level, entry.agreement.short,
    ]  # fmt: skip


def _receipts(receipts: Sequence[Receipt]) -> Markup:
    rows = [
        [
            element("b", owner, class_=f"ink-{owner}"),
            str(len(own)),
            say_bytes(sum(receipt.cargo_bytes for receipt in own)),
            say_bytes(sum(receipt.scrub.scrubbed_bytes for receipt in own)),
            str(sum(receipt.scrub.nonzero_bytes for receipt in own)),
        ]
        for owner in OWNERS
        for own in [[receipt for receipt in receipts if receipt.holder == owner]]
    ]
    headings = ["receipts of", "number", "opened", "scrubbed", "bytes not zero"]
    each = [_receipt_row(receipt) for receipt in receipts]
    columns = ["visit", "holder", "rows", "content", "scrubbed", "not zero"]
    return join(
        table(headings, rows, numbers_from=1),
        details(f"All {len(receipts)} receipts", table(columns, each, numbers_from=4)),
    )


def _receipt_row(receipt: Receipt) -> list[str]:
    last = receipt.first_row + receipt.rows - 1
    return [
        receipt.visit.to_text()[:12],
        receipt.holder,
        f"{receipt.resource} {receipt.first_row} to {last}",
        receipt.content.short,
        say_bytes(receipt.scrub.scrubbed_bytes),
        str(receipt.scrub.nonzero_bytes),
    ]


def _visit_table(visits: Sequence[VisitSeen]) -> Markup:
    names = timed_phases(visits)
    headings = ["key epoch", "holder", "rows for", "outcome", *names, "sealed", "loss"]
    rows = [_visit_row(visit, names) for visit in visits]
    return table(headings, rows, numbers_from=4)


def _visit_row(visit: VisitSeen, names: Sequence[str]) -> list[str]:
    loss = visit.metrics.get("loss")
    return [
        str(visit.number),
        visit.holder,
        visit.purpose,
        visit.outcome + (f" [{visit.reason}]" if visit.reason else ""),
        *(say_s(visit.phases_s.get(name, 0.0)) for name in names),
        say_bytes(visit.sealed_bytes),
        "" if loss is None else f"{loss:.3f}",
    ]
