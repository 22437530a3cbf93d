"""The report of a run: answers for data officers first, then results, then all details."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sealift.attest.level import protects_nobody
from sealift.release.agreement.explain import KEPT_OUT, count, say_list
from sealift.train.output.history import numbers_over, shown_row
from sealift.view.charts import Curve, plot
from sealift.view.markup import Markup, element, facts, fold, join, section, table
from sealift.view.officer import SeenRun, for_owners, glossary, who_gave_what
from sealift.view.page import opening, page, tiles
from sealift.view.words import say_loudly

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
