"""The plans that ``job.toml`` may name: one record each, and no branch elsewhere.

Commands, the checks of a job at home and its checkpoints go by the record of its plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from sealift.data.schedule.visits import check_buffer
from sealift.errors import UsageError
from sealift.release.agreement import About, Agreement
from sealift.travel.accelerator.rules import check_cargo
from sealift.travel.settings import JobSettings
from sealift.travel.visit.lease import check_seconds

PlanName = Literal["local", "travel", "serve"]
PlanRole = Literal["orchestrator", "accelerator", "holder", "broker", "server"]
SignedPlan = Literal["travel"]
"""Plans whose accelerator signs a manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One plan.

    Attributes:
        name: As ``job.toml`` says it.
        about: What an agreement must be about.
        command: The command that runs such a job.
        roles: Its processes; none where the command does all of it.
        check_terms: Demands that the agreement allows what a job asks for.
        checkpoints: Whether a job that was cut off goes on.
    """

    name: PlanName
    about: About
    command: str
    roles: frozenset[PlanRole]
    check_terms: Callable[[JobSettings, Agreement], None]
    checkpoints: bool = False


def plans_with(role: PlanRole) -> tuple[PlanName, ...]:
    """The plans that have such a process."""
    return tuple(plan.name for plan in PLANS.values() if role in plan.roles)


def _check_training(settings: JobSettings, agreement: Agreement) -> None:
    """What a job that trains asks for must be agreed on.

    Raises:
        UsageError: ``nothing-to-make``; ``buffer-too-small``, if a cell does not fit.
        PolicyError: if it asks for longer leases, more buffers or mixed cargo than
            agreed.
    """
    training, travel = settings.training, settings.travel
    makes_sums = training.prepare and agreement.output_rule.statistics
    if not training.epochs and not makes_sums:
        raise UsageError(
            "the job would make nothing",
            why="it has no epochs, and no statistics may leave",
            code="nothing-to-make",
        )
    if travel.asked_bytes:
        check_buffer(agreement.resources, travel.asked_bytes)
    check_seconds(settings.run.lease_s, agreement.travel_rule.lease_s)
    check_cargo(travel, agreement.travel_rule)


def _check_nothing(settings: JobSettings, agreement: Agreement) -> None:
    """A server trains nothing."""


PLANS: Final[dict[PlanName, Plan]] = {
    "local": Plan(
        name="local",
        about="train",
        command="train",
        roles=frozenset(),
        check_terms=_check_training,
    ),
    "travel": Plan(
        name="travel",
        about="train",
        command="train",
        roles=frozenset({"orchestrator", "accelerator", "holder", "broker"}),
        check_terms=_check_training,
        checkpoints=True,
    ),
    "serve": Plan(
        name="serve",
        about="serve",
        command="serve",
        roles=frozenset({"server", "broker"}),
        check_terms=_check_nothing,
    ),
}
