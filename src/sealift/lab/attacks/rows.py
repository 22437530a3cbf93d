"""An orchestrator that is after single rows (N5): other cuts, once more, after a restart."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from sealift.data.schedule.visits import BufferChoice
from sealift.ids import Digest
from sealift.lab.attacks.stage import (
    ADA,
    CELL_ROWS,
    Stage,
    refusal,
    train,
)
from sealift.lab.worlds.visits import ROW_BYTES
from sealift.train.job.runningjob import JobShapes
from sealift.travel.holder.visit import SERVED_NAME, ServedVisits, check_lease

_CHOICE: Final = BufferChoice(1 << 20, "as the job began")


def offered_cut(stage: Stage) -> str:
    """A cell and one row more, asked of the accelerator."""
    return refusal(lambda: stage.visit(rows=CELL_ROWS + 1))


def whole_cell(stage: Stage) -> bool:
    """The cell alone."""
    return not stage.visit(rows=CELL_ROWS).refusal


def leased_cut(stage: Stage) -> str:
    """The same, asked of the holder."""
    return refusal(lambda: _serve(stage, CELL_ROWS + 1))


def leased_cell(stage: Stage) -> bool:
    """The cell alone."""
    return not refusal(lambda: _serve(stage, CELL_ROWS))


def other_shape(_stage: Stage) -> str:
    """The job once more, with another buffer."""
    shapes = _begun()
    return refusal(lambda: shapes.hold("stage", Digest.of(b"another"), _CHOICE))


def same_shape(_stage: Stage) -> bool:
    """As it began, whatever memory is free by now."""
    later = BufferChoice(1 << 30, "half of the memory")
    return _begun().hold("stage", Digest.of(b"shape"), later) == _CHOICE


def visited_again(stage: Stage) -> str:
    """The last visit once more, after every process was started anew."""
    return _served(stage, times=2)


def visited_once(stage: Stage) -> bool:
    """By a holder that served nothing yet."""
    return not _served(stage, times=1)


def _serve(stage: Stage, rows: int) -> None:
    lease = replace(stage.visit().lease, shape=(rows, ROW_BYTES))
    held = {train(ADA): stage.held[train(ADA)]}
    check_lease(stage.signed(lease), held, holder=ADA, terms=stage.terms)


def _begun() -> JobShapes:
    shapes = JobShapes()
    shapes.hold("stage", Digest.of(b"shape"), _CHOICE)
    return shapes


def _served(stage: Stage, *, times: int) -> str:
    """What a holder says that serves a visit so often, each time in a new process."""
    lease = stage.visit().lease
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / SERVED_NAME
        for _ in range(times - 1):
            ServedVisits(path).take(lease, 1)
        return refusal(lambda: ServedVisits(path).take(lease, 1))
