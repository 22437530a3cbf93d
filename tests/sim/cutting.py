"""Roles of an operator that wants single rows: ``python -m tests.sim.cutting CUT ROLE ...``.

``CUT`` of an orchestrator is where it cuts north's table, whatever the plan says. ``0`` of
any other role is the mutant without grid, plan and shape.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sealift.cli.main import main
from sealift.cli.roles import orchestrator as role
from sealift.data.schedule.visits import Stop, VisitBatch, VisitTerms
from sealift.release.agreement import Resource
from sealift.train.job.runningjob import JobShapes
from sealift.travel.accelerator.visits import HostedVisits
from sealift.travel.orchestrator import job as orchestrator


def cut_at(rows: int) -> None:
    """The orchestrator asks for these rows of north first."""

    def plan(
        resources: Sequence[Resource], _: VisitTerms, size: int
    ) -> tuple[VisitBatch, ...]:
        train = next(e for e in resources if (e.owner, e.part) == ("north", "train"))
        first = Stop(0, "north", train.name, "train", 0, rows)
        rest = Stop(0, "north", train.name, "train", rows, train.rows - rows)
        return VisitBatch(0, "train", 0, (first,)), VisitBatch(1, "train", 0, (rest,))

    orchestrator.plan_job = plan
    role._may_hand_out = lambda *_: True  # rows are what it wants, not a model


def believe_everything() -> None:
    """Holder or accelerator without what this is about."""
    Resource.require_cells = lambda *_: None  # type: ignore[method-assign]
    HostedVisits._require_planned = lambda *_: None  # type: ignore[method-assign]
    JobShapes.hold = lambda *words: words[-1]  # type: ignore[method-assign]


if __name__ == "__main__":
    cut = int(sys.argv.pop(1))
    if cut:
        cut_at(cut)
    else:
        believe_everything()
    sys.exit(main(sys.argv[1:]))
