"""How long a visit's buffer is: what the job says, or as much as memory allows.

Every visit that may be in the accelerator at one time has a buffer of its own, so the
free memory is divided by their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sealift.data.schedule.capacity import free_memory_bytes
from sealift.errors import UnavailableError
from sealift.release.agreement import Resource
from sealift.travel.schedule import Group, group_size, plan_job
from sealift.travel.settings import JobSettings, TravelSettings

SHARE: Final = 0.5  # of the free memory; the rest is the model's and its batches'
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class BufferChoice:
    """Largest cargo of one visit, and why it is that long, in words."""

    buffer_bytes: int
    why: str


def choose_buffer(
    resources: Sequence[Resource], settings: TravelSettings, free_bytes: int
) -> BufferChoice:
    """The buffer of a job's visits.

    Args:
        resources: Of the agreement.
        settings: ``buffer_bytes`` as the job has it, and how many buffers.
        free_bytes: Memory that this process may still allocate.

    Raises:
        UnavailableError: code ``buffer-too-large``, if not all buffers fit into memory,
            or not a single cell does.
    """
    visits = settings.buffers * group_size(resources, mixed=settings.mixed)
    wanted, free = settings.asked_bytes, f"{say_bytes(free_bytes)} are free"
    if wanted:
        if wanted * visits > free_bytes:
            raise _too_large(wanted, visits, free)
        return BufferChoice(wanted, f"as the job says; {free}")
    longest = max(each.total_bytes for each in resources)
    share = int(free_bytes * SHARE) // visits
    cell = max(each.longest_cell_bytes for each in resources)
    if share < cell:
        raise _too_large(cell, visits, free)
    if longest <= share:
        return BufferChoice(longest, f"the largest resource; {free}")
    times = f", divided among {visits} visits" if visits > 1 else ""
    return BufferChoice(share, f"half of the memory{times}; {free}")


def plan_here(
    resources: Sequence[Resource], settings: JobSettings
) -> tuple[Group, ...]:
    """A job's plan with the buffer that this machine has room for.

    Raises:
        UnavailableError: code ``buffer-too-large``.
    """
    chosen = choose_buffer(resources, settings.travel, free_memory_bytes())
    return plan_job(resources, settings, chosen.buffer_bytes)


def say_bytes(count: int) -> str:
    """``67108864`` -> ``64.0 MiB``."""
    amount, unit = float(count), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {_UNITS[unit]}" if unit else f"{count} B"


def _too_large(wanted: int, visits: int, free: str) -> UnavailableError:
    times = f"{visits} times " if visits > 1 else ""
    return UnavailableError(
        "the visits' buffers do not fit into memory",
        why=f"{times}{say_bytes(wanted)} are asked for, {free}",
        code="buffer-too-large",
    )
