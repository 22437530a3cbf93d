"""The page that each run leaves beside its history: what its orchestrator observed.

The report of a run: answers for data officers first, then results, then all details.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sealift.attest.level import protects_nobody
from sealift.release.agreement import Agreement
from sealift.release.agreement.explain import KEPT_OUT
from sealift.release.agreement.phrases import count, say_list
from sealift.train.job.settings import JobTable
from sealift.train.output.history import numbers_over, shown_row
from sealift.view.charts import Curve, plot
from sealift.view.markup import Markup, element, facts, fold, join, section, table
from sealift.view.officer import (
    Reader,
    SeenRun,
    for_owners,
    glossary,
    privacy_section,
    who_gave_what,
)
from sealift.view.page import opening, page, tiles
from sealift.view.words import say_loudly

REPORT_NAME: Final = "report.html"
_TOLD_BY: Final = (
    "the run's operator observed it. The owners' receipts, which the accelerator signed, "
    "can be compared with it: `sealift receipt verify`"
)
_SCRUBBED: Final = (
    "My receipts have the accelerator's report of how the memory was scrubbed."
)


Row = Mapping[str, Any]


def run_page(
    job: str,
    run: SeenRun,
    rows: Sequence[Row],
    metrics: Mapping[str, float],
    found: Mapping[str, str],
) -> bytes:
    """The whole page.

    Args:
        job: Its name.
        run: What its owners ask about.
        rows: Its history.
        metrics: Names of numbers, and their values over all held-out rows.
        found: What else is known of it, for a list.
    """
    level = run.level
    banner = ""
    if protects_nobody(level):
        banner = join(element("b", say_loudly(level)), KEPT_OUT[run.bare_level])
    agreement = run.agreement
    owners = count(len(agreement.data_owners), "owner") + "' rows"
    agreed = (
        f"{say_list(agreement.data_owners)} encrypted their rows and signed one agreement, "
        f"{agreement.name} number {agreement.number}, on who may use them for what."
    )
    numbers = [
        (f"{value:.4g}", f"{name}, held-out rows", "")
        for name, value in metrics.items()
    ]
    text = page(
        f"Sealift run: {job}",
        banner,
        opening(f"Sealift run · {job}", f"One model of {owners}", [agreed]),
        tiles(numbers) if numbers else "",
        for_owners(run),
        who_gave_what(run),
        privacy_section(run, {}),
        _learnt(rows, sorted(metrics)),
        fold(
            "Details: every visit, and the run's facts",
            section(
                "History", "The same as history.csv.", _history([*map(shown_row, rows)])
            ),
            section("Run", "", facts(found)),
        ),
        glossary(),
    )
    return text.encode()


def _learnt(rows: Sequence[Row], metrics: Sequence[str]) -> Markup:
    """A figure for each held-out number, over the epochs that measured it."""
    heldout = [row for row in rows if row["purpose"] == "heldout" and row["epoch"]]
    epochs = sorted({row["epoch"] for row in heldout})
    by_epoch = [
        (float(epoch), numbers_over([row for row in heldout if row["epoch"] == epoch]))
        for epoch in epochs
    ]
    drawn = []
    for name in metrics:
        points = [(epoch, each[name]) for epoch, each in by_epoch if name in each]
        titles = [f"epoch {epoch:g}: {value:.4g}" for epoch, value in points]
        if len(points) > 1:
            curve = Curve("all owners", points, "line-joint", titles)
            drawn += [element("h3", name), plot([curve], "epoch")]
    if not drawn:
        return join()
    return section("Results by epoch", "Over all held-out rows.", *drawn)


def _history(rows: Sequence[Row]) -> Markup:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    kept = [each for each in columns if each not in ("visit", "first_row")]
    return table(kept, [[_cell(row.get(name)) for name in kept] for row in rows])


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def make_report(
    job: JobTable,
    agreement: Agreement,
    rows: Sequence[Mapping[str, Any]],
    result: Mapping[str, Any],
    model_bytes: int,
) -> bytes:
    """The page.

    Args:
        job: What was asked for.
        agreement: What was signed.
        rows: The run's history.
        result: Its summary: ``level``, ``metrics``, and what it was made of.
        model_bytes: Of the model as it left; 0 without one.
    """
    metrics: Mapping[str, float] = result["metrics"]
    level, shown = str(result["level"]), [shown_row(row) for row in rows]
    run = see_run(
        job, agreement, shown, level, metrics=tuple(metrics), model_bytes=model_bytes
    )
    plain = {key: str(value) for key, value in result.items() if key != "metrics"}
    return run_page(job.name, run, rows, metrics, {"plan": job.plan, **plain})


def see_run(
    job: JobTable,
    agreement: Agreement,
    rows: Sequence[Mapping[str, Any]],
    level: str,
    *,
    metrics: Collection[str],
    model_bytes: int = 0,
) -> SeenRun:
    """What its owners ask about, from its history so far."""
    reader: Reader = "local" if job.plan == "local" else "one"
    if job.plan == "ddp":
        reader = "own" if job.slices.rows == "owner" else "several"
    numbers: Counter[str] = Counter()
    for row in rows:
        numbers[str(row["owner"])] += len(row.keys() & set(metrics))
    return SeenRun(
        agreement=agreement,
        level=level,
        visits=_visits(agreement, rows, together=job.plan == "ddp"),
        numbers=dict(numbers),
        opened_bytes=_opened(agreement, rows),
        scrubbed="" if job.plan == "local" else _SCRUBBED,
        reader=reader,
        model_bytes=model_bytes,
        told_by=_TOLD_BY,
        trained=_trained(agreement, rows, together=job.plan == "ddp"),
    )


def _trained(
    agreement: Agreement, rows: Sequence[Mapping[str, Any]], *, together: bool
) -> dict[str, int]:
    """Uses of tables to train on, by owner, as a run's manifest counts them."""
    trained = [row for row in rows if row["purpose"] == "train"]
    if not together:
        return dict(Counter(str(row["owner"]) for row in trained))
    # A run that goes on from another used the rows since epoch 1, as its receipt says.
    rounds = max((row["epoch"] for row in trained), default=0)
    tables = Counter(e.owner for e in agreement.resources if e.part == "train")
    return {owner: rounds * held for owner, held in tables.items()}


def _visits(
    agreement: Agreement, rows: Sequence[Mapping[str, Any]], *, together: bool
) -> dict[str, int]:
    """By owner; rounds of all ranks are everybody's, whoever's rows were told of."""
    visits = Counter(str(row["owner"]) for row in rows)
    rounds = len({(row["purpose"], row["epoch"]) for row in rows})
    return {
        owner: rounds if together else visits[owner] for owner in agreement.data_owners
    }


def _opened(agreement: Agreement, rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    row_bytes = {each.name: each.row_bytes for each in agreement.resources}
    opened: Counter[str] = Counter()
    for row in rows:
        opened[str(row["owner"])] += row["rows"] * row_bytes.get(row["table"], 0)
    return dict(opened)
