"""What was sealed: tables at home, cargo under way, checkpoints, the model; what left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sealift.lab.demo.outcome import Outcome
from sealift.lab.demo.progress import CheckpointSeen
from sealift.lab.demo.report.markup import Child, Markup, element, join, section, table
from sealift.lab.demo.words import say_bytes, say_list, say_s
from sealift.lab.worlds.folder import MODEL_OWNER, OWNERS
from sealift.release.agreement import Agreement
from sealift.release.audit import CheckpointEntry

PARTS: Final = {"train": "training", "heldout": "measuring"}


def sealed(outcome: Outcome) -> Markup:
    """The section about sealed bytes and keys."""
    agreement = outcome.verdict.agreement
    return section(
        "What was sealed, and under which keys",
        "Rows leave their owner's disk only as records that were sealed there, and are "
        "opened only inside the accelerator. Every visit has a key of its own from a "
        "fresh handshake, which authenticates the frames around the records.",
        _at_home(agreement) if agreement else "",
        _keys(outcome),
        *_checkpoints(outcome),
        *_left(outcome),
    )


def _at_home(agreement: Agreement) -> Markup:
    rows = [
        [
            element("b", each.owner, class_=f"ink-{each.owner}"),
            PARTS[each.part],
            str(each.rows),
            say_bytes(each.total_bytes),
            str(each.num_records),
            element("code", each.content.short),
        ]
        for each in agreement.resources
    ]
    headings = ["table of", "for", "rows", "size", "records", "commitment"]
    return join(element("h3", "Tables, at home"), table(headings, rows, numbers_from=2))


def _keys(outcome: Outcome) -> Markup:
    progress, verdict = outcome.progress, outcome.verdict
    visits = len(progress.visits)
    model = say_bytes(verdict.model_bytes)
    kinds = [
        (
            f"{progress.keys} data keys",
            "sealed the tables at home; each owner's broker released its own, after "
            "writing that down",
        ),
        (
            f"{visits} visit keys",
            "one per visit, refused ones too; "
            f"{say_bytes(progress.sealed_bytes)} of frames crossed under them",
        ),
        (
            f"{len(_made(outcome))} checkpoint keys",
            f"one per checkpoint, split among {say_list(OWNERS)}: no owner can open one "
            "without the others",
        ),
        (
            f"{int(verdict.model_bytes > 0)} output key",
            f"sealed the model, {model}, and went by HPKE to the key of {MODEL_OWNER} in "
            "the agreement",
        ),
    ]
    return join(
        element("h3", "Keys"), table(["how many", "what for"], kinds, prose=True)
    )


def _made(outcome: Outcome) -> list[CheckpointSeen]:
    return [each for each in outcome.progress.checkpoints if not each.missed]


def _checkpoints(outcome: Outcome) -> Iterator[Markup]:
    if not outcome.progress.checkpoints:
        return
    digests = _logged(outcome)
    rows: list[list[Child]] = [
        [
            str(each.number),
            say_bytes(each.sealed_bytes),
            say_s(each.seconds),
            element("code", digests.get(each.number, "")),
            each.missed or "counts: recorded by every owner's broker",
        ]
        for each in outcome.progress.checkpoints
    ]
    yield element("h3", "Checkpoints")
    yield table(["number", "sealed", "took", "digest in the logs", ""], rows)


def _logged(outcome: Outcome) -> dict[int, str]:
    """Digest of each checkpoint's file, as the owners' logs name it."""
    return {
        entry.number: entry.sealed.short
        for log in outcome.verdict.logs
        for entry in log.entries
        if isinstance(entry, CheckpointEntry) and entry.sealed is not None
    }


def _left(outcome: Outcome) -> Iterator[Markup]:
    """What left the accelerator, by name: metrics, sums of ``prepare``, the model."""
    agreement, manifest = outcome.verdict.agreement, outcome.verdict.manifest
    if agreement is None:
        return
    rule = agreement.output_rule
    yield element("h3", "What left the accelerator")
    yield element(
        "p",
        f"By the output rule that everybody signed: {say_list(rule.metrics)}, rounded to "
        f"{rule.digits} decimal places, each over at least {rule.metric_rows} rows; and "
        f"the model, sealed for {MODEL_OWNER}, once every owner had been visited. "
        "Owners' own models, prints and errors of the recipe stayed inside.",
    )
    if manifest is not None and manifest.statistics:
        rows = [
            [name, ", ".join(f"{value:g}" for value in each.values[:8])]
            for name, each in sorted(manifest.statistics.items())
        ]
        yield element(
            "p",
            f"Before training, sums over at least {rule.statistics_rows} rows left too:",
        )
        yield table(["statistic", "values over all owners (the first eight)"], rows)
