"""The page that each run leaves beside its history: what its orchestrator observed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sealift.release.agreement import Agreement
from sealift.train.job.settings import JobTable
from sealift.train.output.history import shown_row
from sealift.view.officer import Reader, SeenRun
from sealift.view.runpage import run_page

REPORT_NAME: Final = "report.html"
_TOLD_BY: Final = (
    "the run's operator observed it. The owners' receipts, which the accelerator signed, "
    "can be compared with it: `sealift receipt verify`"
)
_SCRUBBED: Final = (
    "My receipts have the accelerator's report of how the memory was scrubbed."
)


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
    )


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
