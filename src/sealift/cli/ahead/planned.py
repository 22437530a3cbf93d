"""What a job will do, by agreement and job alone: whose processes, and how much work.

How long it takes cannot be known from that. Visits are counted with the largest buffer that
makes sense, so there may be more of them; rows and steps of an epoch stay as many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from sealift.errors import UsageError
from sealift.release.agreement import Agreement
from sealift.release.agreement.explain import count
from sealift.train.job.settings import JobTable
from sealift.train.plans import PlannedWork
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


def say_work(agreement: Agreement, settings: JobSettings) -> Iterator[str]:
    """How much there is to do, and that nobody knows yet how long it takes."""
    visits, rows, steps = Counter[str](), Counter[str](), 0
    training, fewest = settings.training, "" if settings.visits.buffer_bytes else "+"
    try:
        work = PlannedWork.of(settings, agreement.resources)
    except UsageError:
        work = PlannedWork((), {})  # it is refused, and why is said there
    for batch in work.batches:
        times = work.passes[batch.purpose]
        seen = sum(stop.rows for stop in batch.stops)
        visits[batch.purpose] += times * len(batch.stops)
        rows[batch.purpose] += times * seen
        if batch.purpose == "train":
            steps -= times * (-training.trained_rows(seen) // training.batch_rows)
    for purpose, number in visits.items():
        yield f"{purpose}: {number:,}{fewest} visits, {rows[purpose]:,} rows in all"
    slices = settings.slices.count
    beside = f", in {slices} parallel slices" if slices > 1 else ""
    each = f"of at most {training.batch_rows:,} rows"
    yield f"{count(training.epochs, 'epoch')}, {steps:,}{fewest} steps {each}{beside}"
    yield UNMEASURED
