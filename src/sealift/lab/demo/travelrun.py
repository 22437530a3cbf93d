"""Run the job over separate processes and watch it: the ``travel`` plan of the demo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from sealift.errors import JobError
from sealift.lab.demo.progress import Progress
from sealift.lab.demo.roles import HOSTILE, start_orchestrator, start_others
from sealift.lab.worlds.folder import OWNERS, World
from sealift.release.signed import load_verified
from sealift.train.eventlines import RoleEvent, RoleResult
from sealift.train.household import Ended, Household
from sealift.train.settings import read_job
from sealift.travel.schedule import count_stops
from sealift.travel.sizing import plan_here

SILENCE_S: Final = 60.0
GRACE_S: Final = 1.0  # all end when the orchestrator does; who ends first is a race

Watch = Callable[[Progress, RoleEvent], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stops:
    """How this process is stopped, as the command line does it.

    Attributes:
        on_second_signal: Registers what must happen before a second signal ends us.
        postponed: While it is entered, a signal waits: for starting processes.
        environment: Makes a role end with this process, however that ends.
    """

    on_second_signal: Callable[[Callable[[], None]], None]
    postponed: Callable[[], AbstractContextManager[None]]
    environment: Mapping[str, str]


NO_STOPS: Final = Stops(
    on_second_signal=lambda _act: None, postponed=nullcontext, environment={}
)


@dataclass(frozen=True, slots=True)
class TravelRun:
    """A finished run.

    Attributes:
        progress: Everything that was told.
        result: The orchestrator's summary.
    """

    progress: Progress
    result: Mapping[str, Any]


def run_travel(
    world: World,
    watch: Watch,
    *,
    attacks: bool = True,
    agent: str = "",
    stops: Stops = NO_STOPS,
) -> TravelRun:
    """Start every role, watch until the job has ended, end every role.

    Args:
        world: Made by ``make_world``.
        watch: Called in this thread with every event, after it was taken note of.
        attacks: Start one holder as a hostile one.
        agent: What attests for the accelerator's host; empty for a software key.
        stops: How this process is stopped.

    Raises:
        SealiftError: if a process failed; its line and exit code.
    """
    progress = Progress(count_visits(world))
    with Household(world.path, stops.environment) as house:
        stops.on_second_signal(house.kill)
        with stops.postponed():
            start_orchestrator(house, world)
        result: Mapping[str, Any] = {}
        for told in house.listen(SILENCE_S):
            if isinstance(told, RoleEvent):
                if told.kind == "orchestrator.listening":
                    with stops.postponed():
                        port = int(told.fields["port"])
                        start_others(
                            house,
                            world,
                            port,
                            unusual=HOSTILE if attacks else {},
                            agent=agent,
                        )
                progress.take(told)
                watch(progress, told)
            elif isinstance(told, RoleResult) and told.process == "orchestrator":
                result = told.content
            elif isinstance(told, Ended) and _all_done(house, told):
                break
        _require_good_end(house)
    if not result:
        raise JobError("the orchestrator gave no result", code="role-ended")
    return TravelRun(progress, result)


def count_visits(world: World) -> int:
    """Visits that the schedule asks for."""
    agreement = load_verified(world.agreement).agreement
    settings = read_job(world.job).settings
    return count_stops(plan_here(agreement.resources, settings))


def _all_done(house: Household, told: Ended) -> bool:
    """Whether the job has ended; raises if a process failed before that."""
    if told.process == "orchestrator":
        house.require_success(told.process)
        return True
    if not house.ends_within("orchestrator", GRACE_S):
        house.require_success(told.process)
    return False


def _require_good_end(house: Household) -> None:
    """Accelerator and holders end by themselves once the job has; brokers serve on."""
    for name in ("accelerator", *(f"holder-{owner}" for owner in OWNERS)):
        house.require_success(name)
