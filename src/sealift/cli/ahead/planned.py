"""What a job will do, by agreement and job alone: whose processes, and how much work.

How long it takes cannot be known from that. Visits are counted with the largest buffer that
makes sense, so there may be more of them; rows and steps of an epoch stay as many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from sealift.data.schedule.visits import VisitBatch, plan_job
from sealift.errors import UsageError
from sealift.release.agreement import Agreement
from sealift.release.agreement.explain import count
from sealift.train.job.settings import JobTable
from sealift.train.plans import Coverage
from sealift.travel.accelerator.rules import VisitRules
from sealift.travel.settings import JobSettings

UNMEASURED: Final = "the time is unknown; `sealift try` measures a step"


ORCHESTRATOR: Final = "orchestrator, to which all others connect"
BROKER: Final = "broker, which releases this owner's keys as the agreement allows"
RANK: Final = "rank, with a sandboxed worker that runs the recipe on its own rows"


def say_processes(job: JobTable, agreement: Agreement) -> Iterator[str]:
    """Each, behind the name of whose machine it runs on."""
    operator = agreement.operator
    if job.plan == "local":
        yield "this machine: one process, which reads the sealed files of all owners"
        yield "this machine: a sandboxed worker, which runs the recipe"
        return
    yield f"{operator}: {ORCHESTRATOR}, at {job.orchestrator}"
    if not agreement.rows_at_home:
        many = count(agreement.ranks, "accelerator")
        yield f"{operator}: {many}, with a sandboxed worker that runs the recipe"
    servers = agreement.servers.parties if agreement.servers else {}
    for share, party in servers.items():
        address = job.servers.addresses[share] or "an address that is not set yet"
        yield f"{party}: server of share {share}, at {address}"
    for owner in agreement.holders:
        yield f"{owner}: {BROKER}"
        if agreement.rows_at_home:
            yield f"{owner}: {RANK}"
        elif job.plan != "ddp":
            yield f"{owner}: holder, which sends its encrypted rows"


def planned(agreement: Agreement, settings: JobSettings) -> list[VisitBatch]:
    """All groups of visits, of all slices.

    Raises:
        UsageError: ``buffer-too-small``.
    """
    terms, slices = settings.visits, settings.slices
    shares = slices.count if slices.rows == "share" else 1
    nbytes = terms.buffer_bytes or max(each.total_bytes for each in agreement.resources)
    plans = (
        plan_job(agreement.resources, replace(terms, share=(number, shares)), nbytes)
        for number in range(shares)
    )
    return [group for plan in plans for group in plan]


def require_leaves(agreement: Agreement, settings: JobSettings) -> str:
    """Demand that the planned visits can meet the output rule.

    Raises:
        PolicyError: ``output-withheld``, ``too-many-visits``.
    """
    if not settings.training.epochs:
        return "no model is trained"
    rule = agreement.output_rule
    stops = [stop for group in planned(agreement, settings) for stop in group.stops]
    rules = VisitRules(max_visits=rule.max_visits)
    for stop in stops:
        rules.begin(stop)
    covered = Coverage.of(stops, agreement.data_owners)
    if not settings.visits.buffer_bytes:  # a smaller one means more visits
        most = {o: max(n, rule.min_visits) for o, n in covered.passes.items() if n}
        covered = replace(covered, passes={**covered.passes, **most})
    covered.require(rule)
    return "the planned visits satisfy the output rule, if all owners take part"


def say_work(agreement: Agreement, settings: JobSettings) -> Iterator[str]:
    """How much there is to do, and that nobody knows yet how long it takes."""
    visits, rows, steps = Counter[str](), Counter[str](), 0
    training, fewest = settings.training, "" if settings.visits.buffer_bytes else "+"
    try:
        groups = planned(agreement, settings)
    except UsageError:
        groups = []  # it is refused, and why is said there
    for group in groups:
        seen = sum(stop.rows for stop in group.stops)
        visits[group.purpose] += len(group.stops)
        rows[group.purpose] += seen
        if group.purpose == "train":
            steps -= -training.trained_rows(seen) // training.batch_rows
    for purpose, number in visits.items():
        yield f"{purpose}: {number:,}{fewest} visits, {rows[purpose]:,} rows in all"
    slices = settings.slices.count
    beside = f", in {slices} parallel slices" if slices > 1 else ""
    each = f"of at most {training.batch_rows:,} rows"
    yield f"{count(training.epochs, 'epoch')}, {steps:,}{fewest} steps {each}{beside}"
    yield UNMEASURED
