"""How long rows still flow after a bad act: real roles, a real kernel that measured it.

A guest boots, all roles run as processes on this machine, holders' lines are slow so
that a cargo is always under way, and the guest executes a program that nobody agreed on.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sealift.errors import IntegrityError
from sealift.lab.demo.rehearsal import (
    BOUND_S,
    HEARTBEAT_S,
    RehearsedHost,
    Revocation,
    run_second_act,
)
from sealift.lab.demo.world import make_world, second_act
from sealift.lab.worlds.holders import PACE_S


def measure_revocation(say: Callable[[str], None] = print) -> dict[str, float]:
    """Boot a guest, run the roles, misbehave once, and measure.

    Args:
        say: Told what takes its time.

    Returns:
        ``revocation_s``: from the act to the last frame of any holder; ``ended_s``: to
        the end of the accelerator's process; ``frames_after``: frames in that time;
        ``pace_s``: seconds between two frames of one holder; ``heartbeat_s``,
        ``bar_s``: what was agreed, and that plus one second; ``ready_s``: to boot the
        guest and make the world.

    Raises:
        UnavailableError: if this machine cannot run the guest.
        IntegrityError: ``not-revoked``: no broker saw it.
    """
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, RehearsedHost(say) as host:
        world = second_act(make_world(Path(folder) / "world", host=host.references))
        ready_s = time.monotonic() - began_s
        found = run_second_act(world, host.place, host.misbehave, clock=time.monotonic)
    require_revoked(found)
    return {
        "revocation_s": found.last_byte_s,
        "ended_s": found.ended_s,
        "frames_after": float(found.frames_after),
        "pace_s": PACE_S,
        "heartbeat_s": HEARTBEAT_S,
        "bar_s": BOUND_S,
        "ready_s": ready_s,
    }


def require_revoked(found: Revocation) -> None:
    """Refuse a measurement of something else; raises ``not-revoked``."""
    if "ima-entry-unlisted" not in found.rules.values():
        raise IntegrityError(
            "no broker revoked the lease for the bad act",
            why=str(found.rules or "no lease was revoked"),
            code="not-revoked",
        )
