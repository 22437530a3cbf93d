"""What a job will do, by agreement and job alone: whose processes, and how much work.

How long it takes cannot be known from that. Visits are counted with the largest buffer that
makes sense, so there may be more of them; rows and steps of an epoch stay as many.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from sealift.data.schedule.visits import Group, plan_job
from sealift.release.agreement import Agreement
from sealift.release.agreement.explain import count
from sealift.train.job.settings import JobTable
from sealift.train.plans import Coverage
from sealift.travel.accelerator.rules import VisitRules
from sealift.travel.settings import JobSettings

UNMEASURED: Final = (
    "the time is not known: nothing was measured here; `sealift try` measures a step"
)


ORCHESTRATOR: Final = "orchestrator, which all dial"
BROKER: Final = "broker, which releases this owner's keys by the agreement"
RANK: Final = "rank, with a sandboxed worker that runs the recipe on its own rows"


def say_machines(job: JobTable, agreement: Agreement) -> dict[str, tuple[str, ...]]:
    """Processes by whose machine they run on."""
    found: dict[str, list[str]] = defaultdict(list)
    for whose, what in _processes(job, agreement):
        found[whose].append(what)
    return {whose: tuple(what) for whose, what in found.items()}


def _processes(job: JobTable, agreement: Agreement) -> Iterator[tuple[str, str]]:
    operator = agreement.operator
    if job.plan == "local":
        yield "here", "one process, which reads every owner's sealed files"
        yield "here", "a sandboxed worker, which runs the recipe"
        return
    yield operator, f"{ORCHESTRATOR}, at {job.orchestrator}"
    if not agreement.rows_at_home:
        many = (
            f"{agreement.ranks} accelerators" if agreement.ranks > 1 else "accelerator"
        )
        yield operator, f"{many}, with a sandboxed worker that runs the recipe"
    if agreement.servers is not None:
        for share, party in agreement.servers.parties.items():
            address = job.servers.addresses[share]
            yield party, f"server of share {share}: {address or 'no address yet'}"
    for owner in agreement.holders:
        yield owner, BROKER
        if agreement.rows_at_home:
            yield owner, RANK
        elif job.plan != "ddp":
            yield owner, "holder, which sends its rows, sealed"


def planned(agreement: Agreement, settings: JobSettings) -> list[Group]:
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
    return "the planned visits meet the output rule, if every owner comes"


def say_work(agreement: Agreement, settings: JobSettings) -> Iterator[str]:
    """How much there is to do, and that nobody knows yet how long it takes.

    Raises:
        UsageError: ``buffer-too-small``.
    """
    groups, training = planned(agreement, settings), settings.training
    visits, rows = Counter[str](), Counter[str]()
    steps = 0
    for group in groups:
        seen = sum(stop.rows for stop in group.stops)
        visits[group.purpose] += len(group.stops)
        rows[group.purpose] += seen
        if group.purpose == "train":
            steps -= -training.trained_rows(seen) // training.batch_rows
    fewest = "" if settings.visits.buffer_bytes else " or more"
    for purpose, number in visits.items():
        yield f"{purpose}: {count(number, 'visit')}{fewest}, {rows[purpose]} rows in all"
    slices = settings.slices.count
    beside = f", in {slices} slices side by side" if slices > 1 else ""
    yield (
        f"{count(training.epochs, 'epoch')}, {count(steps, 'step')}{fewest} of "
        f"{training.batch_rows} rows at most{beside}"
    )
    yield UNMEASURED
