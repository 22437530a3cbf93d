"""Attacks on what a visit leaves behind (T6): canaries, and a scrub that only says so."""

from __future__ import annotations

from sealift.errors import IntegrityError
from sealift.lab.attacks.stage import CANARY, Stage
from sealift.travel.pool import CPUPool
from sealift.travel.scrub import scrub

NOTHING_LEFT = "nothing-left"


def look_for_rows(stage: Stage) -> str:
    """Look for the rows in the visit's memory after it has ended."""
    visited = stage.visit()
    return "" if CANARY in visited.after or any(visited.after) else NOTHING_LEFT


def rows_are_found(stage: Stage) -> bool:
    """The same search finds them while the visit goes on."""
    return CANARY in stage.visit().inside


def idle_scrub(_stage: Stage) -> str:
    """A scrub that does not write is noticed when the memory is read back."""
    return _scrub_refusal(writes=False)


def scrub_works(_stage: Stage) -> bool:
    """The real one passes."""
    return not _scrub_refusal(writes=True)


def _scrub_refusal(*, writes: bool) -> str:
    pool = CPUPool(len(CANARY), len(CANARY))
    pool.buffer[:] = CANARY
    try:
        if writes:
            scrub(pool.regions())
        else:
            scrub(pool.regions(), write=lambda _region: None)
    except IntegrityError as error:
        return error.code
    finally:
        scrub(pool.regions())
        pool.close()
    return ""
