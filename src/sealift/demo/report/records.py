"""What was sealed and under which keys, what left, and what the parties keep of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sealift.demo.folder import MODEL_OWNER, OWNERS
from sealift.demo.outcome import CheckedLog, Outcome
from sealift.demo.progress import VisitSeen, timed_phases
from sealift.release.agreement import Agreement
from sealift.release.agreement.phrases import say_list
from sealift.release.log.entries import CheckpointEntry, Entry
from sealift.release.receipt import Receipt
from sealift.view.markup import (
    Child,
    Markup,
    code,
    details,
    element,
    join,
    of_owner,
    section,
    table,
)
from sealift.view.words import say_bytes, say_s

PARTS: Final = {"train": "training", "heldout": "measuring"}


def sealed(outcome: Outcome) -> Markup:
    """Tables at home, keys, checkpoints, and what left."""
    agreement = outcome.verdict.agreement
    return section(
        "What was encrypted, and with which keys",
        "Rows leave their owner's disk only encrypted, and are decrypted only in the "
        "accelerator. Each visit has its own key from a fresh handshake, which authenticates "
        "the frames around the records.",
        _at_home(agreement) if agreement else "",
        _keys(outcome),
        _checkpoints(outcome) if outcome.progress.checkpoints else "",
        _left(outcome, agreement) if agreement else "",
    )


def _at_home(agreement: Agreement) -> Markup:
    rows = [
        [
            of_owner(each.owner),
            PARTS[each.part],
            str(each.rows),
            say_bytes(each.total_bytes),
            str(each.num_records),
            code(each.content.short),
        ]
        for each in agreement.resources
    ]
    headings = ["table of", "for", "rows", "size", "records", "commitment"]
    return join(
        element("h3", "Tables of the owners"), table(headings, rows, numbers_from=2)
    )


def _keys(outcome: Outcome) -> Markup:
    progress, verdict = outcome.progress, outcome.verdict
    made = sum(not each.missed for each in progress.checkpoints)
    kinds = [
        (
            f"{progress.keys} data keys",
            "for the tables; each owner's broker released its own, after an entry in its log",
        ),
        (
            f"{len(progress.visits)} visit keys",
            "one for each visit, also refused ones; "
            f"{say_bytes(progress.sealed_bytes)} of frames were sent with them",
        ),
        (
            f"{made} checkpoint keys",
            f"one per checkpoint, split among {say_list(OWNERS)}: no owner can open one "
            "without the others",
        ),
        (
            f"{int(verdict.model_bytes > 0)} output key",
            f"for the model, {say_bytes(verdict.model_bytes)}; encrypted (HPKE) for the key of "
            f"{MODEL_OWNER} in the agreement",
        ),
    ]
    found = table(["how many", "what for"], kinds, prose=True)
    return join(element("h3", "Keys"), found)


def _checkpoints(outcome: Outcome) -> Markup:
    """Each with the digest of its file, as the owners' logs name it."""
    digests = {
        entry.number: entry.sealed.short
        for log in outcome.verdict.logs
        for entry in log.entries
        if isinstance(entry, CheckpointEntry) and entry.sealed is not None
    }
    rows = [
        [
            str(each.number),
            say_bytes(each.sealed_bytes),
            say_s(each.seconds),
            code(digests.get(each.number, "")),
            each.missed or "counts: recorded by every owner's broker",
        ]
        for each in outcome.progress.checkpoints
    ]
    headings = ["number", "sealed", "took", "digest in the logs", ""]
    return join(element("h3", "Checkpoints"), table(headings, rows))


def _left(outcome: Outcome, agreement: Agreement) -> Iterator[Markup]:
    """What left the accelerator, by name: metrics, sums of ``prepare``, the model."""
    rule, manifest = agreement.output_rule, outcome.verdict.manifest
    yield element("h3", "What left the accelerator")
    yield element(
        "p",
        f"Under the output rule of the agreement: {say_list(rule.metrics)}, rounded to "
        f"{rule.digits} decimal places, each over at least {rule.metric_rows} rows; and "
        f"the model, encrypted for {MODEL_OWNER}, after each owner had been visited. "
        "Owners' own models, prints and errors of the recipe stayed inside.",
    )
    if manifest is not None and manifest.statistics:
        rows = [
            [name, ", ".join(f"{value:g}" for value in each.values[:8])]
            for name, each in sorted(manifest.statistics.items())
        ]
        sums = f"sums over at least {rule.statistics_rows} rows left too"
        yield element("p", f"Before training, {sums}:")
        yield table(["statistic", "values over all owners (the first eight)"], rows)


def records(outcome: Outcome) -> Markup:
    """What the parties keep, folded away: every log entry, every receipt, every visit."""
    visits = outcome.progress.visits
    return section(
        "The records",
        "Each owner's broker logged each key before its release, and the other owners keep "
        "signed heads of that log. Each holder keeps a receipt of each visit, signed by the "
        "accelerator's instance key, which is part of its evidence. The scrub report in it "
        "is a statement of that accelerator, not a proof.",
        _logs(outcome.verdict.logs),
        _receipts(outcome.verdict.receipts),
        details(f"All {len(visits)} visits", _visits(visits)),
    )


def kept_records(outcome: Outcome) -> Markup:
    """Logs and receipts, of a run without visits."""
    return join(_logs(outcome.verdict.logs), _receipts(outcome.verdict.receipts))


def _logs(logs: Sequence[CheckedLog]) -> Markup:
    rows = [
        [
            of_owner(log.owner),
            str(log.size),
            str(log.releases),
            str(log.refusals),
            " and ".join(log.kept_by),
        ]
        for log in logs
    ]
    headings = ["audit log of", "entries", "releases", "refusals", "heads kept by"]
    columns = ["", "what", "of what", "to", "level", "under agreement"]
    whole: list[Child] = [
        [
            element("h3", element("span", log.owner, class_=f"ink-{log.owner}")),
            table(columns, map(_entry, range(log.size), log.entries)),
            element("p", "root ", code(log.root), class_="small"),
        ]
        for log in logs
    ]
    return join(table(headings, rows), details("Every entry of every log", *whole))


def _entry(index: int, entry: Entry) -> list[str]:
    peer = " ".join(dict.fromkeys(filter(None, (entry.role, entry.peer))))
    kind = f"{entry.kind} [{entry.rule}]" if entry.rule else entry.kind
    under = entry.agreement.short
    return [str(index), kind, entry.subject, peer, entry.level, under]


def _receipts(receipts: Sequence[Receipt]) -> Markup:
    rows = []
    for owner in OWNERS:
        own = [receipt for receipt in receipts if receipt.holder == owner]
        scrubs = [receipt.scrub for receipt in own]
        rows.append(
            [
                of_owner(owner),
                str(len(own)),
                say_bytes(sum(receipt.cargo_bytes for receipt in own)),
                say_bytes(sum(scrub.scrubbed_bytes for scrub in scrubs)),
                str(sum(scrub.nonzero_bytes for scrub in scrubs)),
            ]
        )
    each = [
        [
            receipt.visit.to_text()[:12],
            receipt.holder,
            f"{receipt.resource} {receipt.first_row} to "
            f"{receipt.first_row + receipt.rows - 1}",
            receipt.content.short,
            say_bytes(receipt.scrub.scrubbed_bytes),
            str(receipt.scrub.nonzero_bytes),
        ]
        for receipt in receipts
    ]
    headings = ["receipts of", "number", "opened", "scrubbed", "bytes not zero"]
    columns = ["visit", "holder", "rows", "content", "scrubbed", "not zero"]
    return join(
        table(headings, rows, numbers_from=1),
        details(f"All {len(receipts)} receipts", table(columns, each, numbers_from=4)),
    )


def _visits(visits: Sequence[VisitSeen]) -> Markup:
    names = timed_phases(visits)
    rows = []
    for visit in visits:
        loss = visit.metrics.get("loss")
        reason = f" [{visit.reason}]" if visit.reason else ""
        rows.append(
            [
                str(visit.number),
                visit.holder,
                visit.purpose,
                visit.outcome + reason,
                *(say_s(visit.phases_s.get(name, 0.0)) for name in names),
                say_bytes(visit.sealed_bytes),
                "" if loss is None else f"{loss:.3f}",
            ]
        )
    headings = ["key epoch", "holder", "rows for", "outcome", *names, "sealed", "loss"]
    return table(headings, rows, numbers_from=4)
