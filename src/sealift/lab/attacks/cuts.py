"""Attacks of an orchestrator on single rows (N5): other cuts, once more, after a restart."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sealift.errors import SealiftError
from sealift.ids import Digest
from sealift.lab.attacks.stage import CELL_ROWS, OWNERS, ROW_BYTES, Stage
from sealift.train.jobshapes import JobShapes
from sealift.travel.holder import check_lease
from sealift.travel.lease import Lease
from sealift.travel.served import SERVED_NAME, ServedVisits
from sealift.travel.sizing import BufferChoice

_CHOICE = BufferChoice(1 << 20, "as the job began")


def offered_cut(stage: Stage) -> str:
    """A cell and one row more, asked of the accelerator."""
    return _refusal(lambda: stage.visit(rows=CELL_ROWS + 1))


def whole_cell(stage: Stage) -> bool:
    """The cell alone."""
    return not stage.visit(rows=CELL_ROWS).refusal


def leased_cut(stage: Stage) -> str:
    """The same, asked of the holder."""
    return _refusal(lambda: _serve(stage, CELL_ROWS + 1))


def leased_cell(stage: Stage) -> bool:
    """The cell alone."""
    return not _refusal(lambda: _serve(stage, CELL_ROWS))


def other_shape(_stage: Stage) -> str:
    """The job once more, with another buffer."""
    shapes = _begun()
    return _refusal(lambda: shapes.hold("stage", Digest.of(b"another"), _CHOICE))


def same_shape(_stage: Stage) -> bool:
    """As it began, whatever memory is free by now."""
    later = BufferChoice(1 << 30, "half of the memory")
    return _begun().hold("stage", Digest.of(b"shape"), later) == _CHOICE


def visited_again(stage: Stage) -> str:
    """The last visit once more, after every process was started anew."""
    lease = stage.visit().lease
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / SERVED_NAME
        ServedVisits(path).take(lease, 1)
        return _refusal(lambda: ServedVisits(path).take(lease, 1))


def visited_once(stage: Stage) -> bool:
    """By a holder that served nothing yet."""
    lease = stage.visit().lease
    with tempfile.TemporaryDirectory() as folder:
        return not _refusal(
            lambda: ServedVisits(Path(folder) / SERVED_NAME).take(lease, 1)
        )


def _begun() -> JobShapes:
    shapes = JobShapes()
    shapes.hold("stage", Digest.of(b"shape"), _CHOICE)
    return shapes


def _serve(stage: Stage, rows: int) -> None:
    owner = OWNERS[0]
    lease: Lease = replace(stage.visit().lease, shape=(rows, ROW_BYTES))
    held = {each.resource.name: each for each in (stage.held[owner],)}
    check_lease(stage.sign(lease), held, holder=owner, terms=stage.terms)


def _refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except SealiftError as error:
        return error.code
    return ""
