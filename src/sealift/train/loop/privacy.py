"""What a job with private steps may be (spec/privacy.md); no rows here, and no numpy."""

from __future__ import annotations

from collections.abc import Sequence

from sealift.data.schedule.visits import VisitBatch
from sealift.errors import PolicyError
from sealift.release.agreement import Agreement
from sealift.release.agreement.terms import GRAPH_ENTRY
from sealift.release.agreement.training import PrivateSteps
from sealift.travel.settings import TrainingSettings


def require_private(agreement: Agreement, settings: TrainingSettings) -> None:
    """Refuse a job that says [privacy] and would tell more than private steps do.

    Raises:
        PolicyError: ``privacy-not-enforced``.
    """
    rule = agreement.training_rule
    if rule.privacy is None:
        return
    demand_private(rule.privacy, settings, outsourced=False)
    if agreement.code.entry != GRAPH_ENTRY and not rule.privacy_trusts_code:
        raise not_private(
            "its recipe is a program, which may keep rows and let them out",
            "the agreement does not say privacy_trusts_code = true",
            "Propose a recipe without a program, or have all parties agree on "
            "privacy_trusts_code = true",
        )


def require_whole_tables(agreement: Agreement, plan: Sequence[VisitBatch]) -> None:
    """Refuse private steps on a part of a table: its rows would be drawn more often than is counted.

    Raises:
        PolicyError: ``privacy-not-enforced``.
    """
    if agreement.training_rule.privacy is None:
        return
    for batch in plan:
        stops = batch.stops if batch.purpose == "train" else ()
        for stop in stops:
            rows = agreement.resource(stop.resource).rows
            if len(stops) > 1 or stop.rows != rows:
                raise not_private(
                    f"a visit to {stop.holder} would have {stop.rows:,} of the {rows:,} rows of {stop.resource}, "
                    "or another table beside it",
                    "rows are drawn by chance from one whole table, which has to fit into the buffer",
                    "Set a larger travel.buffer_bytes, and travel.mixed = false",
                )


def demand_private(
    private: PrivateSteps, settings: TrainingSettings, *, outsourced: bool
) -> None:
    """Refuse a job of which more would leave than its private steps.

    Raises:
        PolicyError: ``privacy-not-enforced``.
    """
    if settings.batch_rows != private.batch:
        raise not_private(
            f"batch_rows is {settings.batch_rows}, and [privacy] has batch = {private.batch}",
            "both say how many rows a step has",
        )
    if settings.prepare:
        raise not_private("it makes sums of prepare", "they have no noise")
    if settings.measure:
        raise not_private(
            f"the measure {settings.measure} decides which model is released",
            "measures are of rows, and have no noise",
        )
    if outsourced:
        raise not_private("its products are outsourced", "their servers see each step")


def not_private(what: str, why: str, fix: str = "") -> PolicyError:
    """The error for a job of private steps that would not keep to them."""
    return PolicyError(
        f"the job's steps are private, but {what}",
        why=why,
        fix=fix,
        code="privacy-not-enforced",
    )
