"""The page's tables: phases, visits, attacks, logs, receipts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from statistics import median
from typing import Final

from sealift.demo.outcome import CheckedLog, Outcome
from sealift.demo.parties import OWNERS
from sealift.demo.progress import VisitSeen
from sealift.demo.report.markup import Markup, details, element, join, table
from sealift.demo.words import ATTACK_IN_WORDS, WHY_REFUSED, say_bytes, say_s
from sealift.release.audit import Entry
from sealift.release.receipt import Receipt

PHASES: Final = ("handshake", "load", "train", "scrub", "receipt")


def phase_table(outcome: Outcome) -> Markup:
    """Medians per holder, totals, and every visit folded away."""
    verified = outcome.progress.verified
    rows = [
        [element("b", owner, class_=f"ink-{owner}"), *_cells(own, median)]
        for owner in OWNERS
        for own in [[visit for visit in verified if visit.holder == owner]]
    ]
    rows.append([element("b", "all, added up"), *_cells(verified, sum)])
    headings = ["holder", "visits", *PHASES, "whole", "sealed"]
    every = outcome.progress.visits
    return join(
        table(headings, rows, numbers_from=1),
        details(f"All {len(every)} visits", _visit_table(every)),
    )


def attack_table(outcome: Outcome) -> Markup:
    """What was tried, what the accelerator said, what holds it."""
    refused = {id(attack) for attack in outcome.refused}
    rows = [
        [
            f"{attack.holder} {ATTACK_IN_WORDS[attack.name]}",
            verdict_chip(id(attack) in refused, "refused", "not refused"),
            element("code", attack.reason),
            WHY_REFUSED[attack.name],
            say_bytes(attack.scrubbed_bytes),
        ]
        for attack in outcome.attacks
    ]
    headings = ["attack", "outcome", "name", "what holds it", "scrubbed"]
    return table(headings, rows, numbers_from=4)


def log_tables(logs: Sequence[CheckedLog]) -> Markup:
    """Every entry of every log, and whose heads it continues."""
    return join(_log(log) for log in logs)


def receipt_table(receipts: Sequence[Receipt]) -> Markup:
    """Receipts and scrub reports per holder, and each of them folded away."""
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
    headings = ["holder", "receipts", "opened", "scrubbed", "bytes not zero"]
    each = [_receipt_row(receipt) for receipt in receipts]
    columns = ["visit", "holder", "rows", "content", "scrubbed", "not zero"]
    return join(
        table(headings, rows, numbers_from=1),
        details(f"All {len(receipts)} receipts", table(columns, each, numbers_from=4)),
    )


def verdict_chip(good: bool, yes: str, no: str) -> Markup:
    """A word in a frame, with a sign for those who see no colours."""
    sign, style = ("✓", "good") if good else ("✗", "bad")
    return element("span", f"{sign} {yes if good else no}", class_=f"chip {style}")


def _cells(
    visits: list[VisitSeen], merge: Callable[[list[float]], float]
) -> Iterator[str]:
    yield str(len(visits))
    for name in PHASES:
        yield say_s(merge([visit.phases_s.get(name, 0.0) for visit in visits]))
    yield say_s(merge([sum(visit.phases_s.values()) for visit in visits]))
    yield say_bytes(round(merge([float(visit.sealed_bytes) for visit in visits])))


def _visit_table(visits: Sequence[VisitSeen]) -> Markup:
    headings = ["key epoch", "holder", "rows for", "outcome", *PHASES, "sealed", "loss"]
    return table(headings, map(_visit_row, visits), numbers_from=4)


def _visit_row(visit: VisitSeen) -> list[str]:
    loss = visit.metrics.get("loss")
    return [
        str(visit.number),
        visit.holder,
        visit.purpose,
        visit.outcome + (f" [{visit.reason}]" if visit.reason else ""),
        *(say_s(visit.phases_s.get(name, 0.0)) for name in PHASES),
        say_bytes(visit.sealed_bytes),
        "" if loss is None else f"{loss:.3f}",
    ]


def _log(log: CheckedLog) -> Markup:
    title = element(
        "h3",
        element("span", log.owner, class_=f"ink-{log.owner}"),
        f": {log.size} entries, continues the heads kept by {' and '.join(log.kept_by)}",
    )
    headings = ["", "what", "resource", "to", "level", "under agreement"]
    rows = [_entry_row(index, entry) for index, entry in enumerate(log.entries)]
    root = element("p", "root ", element("code", log.root), class_="small")
    return join(title, table(headings, rows), root)


def _entry_row(index: int, entry: Entry) -> list[str]:
    peer = " ".join(word for word in (entry.role, entry.peer) if word)
    kind = f"{entry.kind} [{entry.rule}]" if entry.rule else entry.kind
    return [
        str(index), kind, entry.subject, peer, entry.level, entry.agreement.short,
    ]  # fmt: skip


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


def facts_table(*facts: dict[str, str]) -> Markup:
    """Names and values."""
    items = chain.from_iterable(part.items() for part in facts)
    return element(
        "dl",
        [join(element("dt", name), element("dd", value)) for name, value in items],
    )
