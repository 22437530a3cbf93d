"""The command lines of the demo's processes: what eight people would type."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from sealift.lab.worlds import holders
from sealift.lab.worlds.folder import HOST, OPERATOR, OWNERS, Home, World
from sealift.train.household import Household
from sealift.travel.scrub import ALLOCATOR_ENVIRONMENT

HOSTILE: Final = {"south": "hostile"}  # attacks first, then behaves
SLOW: Final = dict.fromkeys(OWNERS, "slow")
NORMAL: Final = "sealift"


def start_orchestrator(house: Household, world: World) -> None:
    """Listens on a free port and tells which."""
    arguments = ["orchestrator", world.job, *_key(world.home(OPERATOR)), *_EVENTS]
    house.start("orchestrator", NORMAL, arguments)


def start_others(
    house: Household,
    world: World,
    port: int,
    *,
    unusual: Mapping[str, str] = MappingProxyType({}),
    agent: str = "",
) -> None:
    """Everybody who dials; the accelerator first, since torch takes its time.

    Args:
        house: Starts them.
        world: Made by ``make_world``.
        port: Of the orchestrator.
        unusual: How a holder is up to something (``worlds.holders``), by owner.
        agent: What attests for the accelerator's host; empty for a software key.
    """
    dial = ["--orchestrator", f"127.0.0.1:{port}"]
    accelerator = ["accelerator", world.job, *_key(world.home(HOST)), *dial, *_EVENTS]
    accelerator += ["--agent", agent] if agent else []
    # It would restart itself with this environment; started with it, it need not.
    house.start("accelerator", NORMAL, accelerator, ALLOCATOR_ENVIRONMENT)
    for owner in OWNERS:
        home = world.home(owner)
        broker = ["broker", world.job, *_key(home), *_stores(home), *dial, *_EVENTS]
        house.start(f"broker-{owner}", NORMAL, broker)
        join = [world.job, *_key(home), *_cargo(home), *_stores(home), *dial, *_EVENTS]
        if owner in unusual:
            house.start(f"holder-{owner}", holders.MODULE, [unusual[owner], *join])
        else:
            house.start(f"holder-{owner}", NORMAL, ["join", "--holder-only", *join])


_EVENTS: Final = ("--events", "-")


def _key(home: Home) -> list[str | Path]:
    return ["--key", home.key, "--passphrase-file", home.passphrase]


def _stores(home: Home) -> list[str | Path]:
    return ["--vault", home.vault, "--log", home.log]


def _cargo(home: Home) -> list[str | Path]:
    return [
        "--sealed",
        home.sealed,
        "--receipts",
        home.receipts,
        "--heads",
        home.heads,
    ]
