"""How the work of a job is laid out: the plans, and what a plan's work covered of each owner.

One record each, and no branch elsewhere: commands, the checks of a job at home and its
checkpoints go by the record of its plan. Coverage decides whether a model was trained on
enough of everybody to leave (rule H8).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from sealift.data.schedule.visits import (
    Stop,
    VisitBatch,
    check_buffer,
    check_length,
    plan_job,
)
from sealift.errors import PolicyError, UsageError, quote_foreign
from sealift.release.agreement import (
    About,
    Agreement,
    OutputRule,
    Purpose,
    Resource,
)
from sealift.release.agreement.phrases import say_list
from sealift.release.agreement.sums import FEWEST_RANKS
from sealift.train.loop.measures import numbers_of
from sealift.train.loop.privacy import require_private, require_whole_tables
from sealift.travel.accelerator.rules import check_cargo
from sealift.travel.settings import JobSettings, TrainingSettings, require_agreed
from sealift.travel.visit.lease import check_seconds

PlanName = Literal["local", "travel", "ddp", "outsource", "group", "serve"]
PlanRole = Literal["orchestrator", "accelerator", "holder", "broker", "server", "rank"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One plan.

    Attributes:
        name: As ``job.toml`` says it.
        about: What an agreement must be about.
        command: The command that runs such a job; torchrun, for scripts of users.
        roles: Its processes; none where the command does all of it.
        check_terms: Demands that the agreement allows what a job asks for.
        checkpoints: Whether a job that was cut off goes on.
        manifest: Whether its accelerator signs one of the run.
    """

    name: PlanName
    about: About
    command: str
    roles: frozenset[PlanRole]
    check_terms: Callable[[JobSettings, Agreement], None]
    checkpoints: bool = False
    manifest: bool = False


def plans_with(role: PlanRole) -> tuple[PlanName, ...]:
    """The plans that have such a process."""
    return tuple(plan.name for plan in PLANS.values() if role in plan.roles)


# Plans in which noise is added as [privacy] says.
PRIVATE_PLANS: Final[frozenset[PlanName]] = frozenset({"ddp", "travel"})


def _check_training(
    settings: JobSettings, agreement: Agreement, plan: PlanName
) -> None:
    """What a job that trains asks for must be agreed on.

    Raises:
        PolicyError: ``settings-differ``, ``privacy-not-enforced``.
        UsageError: ``nothing-to-make``; ``buffer-too-small``, if a cell does not fit;
            ``bad-choice``.
        PolicyError: if it asks for longer leases, more buffers or mixed cargo than
            agreed; as ``require_planned``.
    """
    require_agreed(settings, plan, agreement.training_rule)
    if settings.privacy is not None and plan not in PRIVATE_PLANS:
        raise PolicyError(
            f"the job has a section [privacy], and its plan is {plan}",
            why="this version does not add noise in this plan",
            code="privacy-not-enforced",
        )
    training, travel = settings.training, settings.travel
    require_private(agreement, training)
    makes_sums = training.prepare and agreement.output_rule.statistics
    if not training.epochs and not makes_sums:
        raise UsageError(
            "the job would have no result",
            why="it has no epochs, and the agreement allows no statistics",
            code="nothing-to-make",
        )
    _check_choice(training, agreement, plan)
    if training.keep_state and agreement.training_rule.runs == 1:
        raise UsageError(
            "the job keeps its state for a later run (training.keep_state)",
            why="the agreement allows only one run; to allow more, raise `runs` in [agreed] of the job",
            code="bad-choice",
        )
    if training.keep_state and training.stop_after:
        raise UsageError(
            "the job keeps its state for a later run (training.keep_state) and may end early "
            "(training.stop_after)",
            why="no run can go on from one that decided itself when to end: leave out one of the two",
            code="bad-choice",
        )
    if travel.asked_bytes:
        check_buffer(agreement.resources, travel.asked_bytes)
    if plan == "travel":
        work = PlannedWork.of(settings, agreement.resources)
        require_whole_tables(agreement, work.batches)
    check_seconds(settings.run.lease_s, agreement.travel_rule.lease_s)
    check_cargo(travel, agreement.travel_rule)
    require_planned(settings, agreement)


def _check_choice(
    training: TrainingSettings, agreement: Agreement, plan: PlanName
) -> None:
    """What chooses a state must be measured on the way, by an agreed measure.

    Raises:
        UsageError: ``bad-choice``.
    """
    asks = training.keep == "best" or training.stop_after > 0
    name, why = training.measure.removeprefix("-"), ""
    if not asks and not name:
        return
    if not name:
        why = "training.measure names none"
    elif not asks:
        why = 'neither training.stop_after nor training.keep = "best" uses it'
    elif name not in (known := numbers_of(agreement.output_rule.metrics)):
        why = f"the agreement has no measure {quote_foreign(name)}; it has {', '.join(sorted(known))}"
    elif not training.evaluate_every:
        why = "training.evaluate_every is 0, so that only the last state is measured"
    elif plan not in ("local", "ddp"):
        why = f"plan {plan} releases only the last state"
    if why:
        raise UsageError(
            "a held-out measure cannot choose the model", why=why, code="bad-choice"
        )


def require_measured_by_all(settings: JobSettings, agreement: Agreement) -> None:
    """With sums alone, what chooses a state is told only where every owner holds rows out.

    Raises:
        UsageError: ``bad-choice``.
    """
    training = settings.training
    asks = training.keep == "best" or training.stop_after > 0
    if settings.slices.sums != "only" or not asks:
        return
    least = agreement.output_rule.metric_rows
    parts = [each for each in agreement.resources if each.part == "heldout"]
    measured = {each.owner for each in parts if each.rows >= least}
    if without := [each for each in agreement.data_owners if each not in measured]:
        raise UsageError(
            "a held-out measure cannot choose the model",
            why=f'with sums = "only" each owner needs {least} held-out rows or more, which '
            f'{say_list(without)} does not bring; [slices] sums = "open" does without them',
            code="bad-choice",
        )


def _check_local(settings: JobSettings, agreement: Agreement) -> None:
    """One process, whatever its slices are."""
    _check_training(settings, agreement, "local")
    _check_slices(settings, agreement)


def _check_alone(
    settings: JobSettings, agreement: Agreement, plan: PlanName = "travel"
) -> None:
    """One accelerator, which visits everybody.

    Raises:
        UsageError: ``slices-differ``.
    """
    _check_training(settings, agreement, plan)
    if settings.slices.count != 1:
        raise _slices_differ("one accelerator computes one slice", settings)


def _check_outsourced(settings: JobSettings, agreement: Agreement) -> None:
    """One accelerator, which visits everybody and asks three servers.

    Raises:
        UsageError: ``servers-missing``; ``no-mixed-cargo``: a group
            whose holder is missing has batches of other sizes.
    """
    _check_alone(settings, agreement, "outsource")
    if agreement.servers is None or not all(settings.servers.addresses.values()):
        raise UsageError(
            "the plan outsource needs the addresses of three servers",
            why=(
                "the agreement names the servers in [servers], and the job their "
                "addresses"
            ),
            code="servers-missing",
        )
    if settings.travel.mixed:
        raise UsageError(
            "plan outsource does not support mixed rows (travel.mixed)",
            why="the sizes of batches would depend on which holders are connected",
            code="no-mixed-cargo",
        )


def _check_group(settings: JobSettings, agreement: Agreement) -> None:
    """As many ranks as agreed, on the rows that were agreed.

    Raises:
        PolicyError: ``group-not-agreed``.
    """
    group, slices = agreement.group, settings.slices
    if group is None or (group.ranks, group.rows) != (slices.count, slices.rows):
        agreed = (
            f'{group.ranks} ranks with rows = "{group.rows}"'
            if group
            else "one accelerator"
        )
        raise PolicyError(
            f'the job asks for {slices.count} ranks with rows = "{slices.rows}"',
            why=f"the agreement names {agreed}",
            code="group-not-agreed",
        )
    _check_training(settings, agreement, "ddp")
    _check_slices(settings, agreement)


def _check_slices(settings: JobSettings, agreement: Agreement) -> None:
    slices, owners = settings.slices, len(agreement.data_owners)
    shared = settings.privacy is not None and settings.privacy.honest_ranks > 0
    step = slices.sync == "step" and not shared
    if slices.sums == "only" and (slices.max_norm or step):
        raise _slices_differ(
            'sums = "only" works without max_norm, which no other rank could check, and with '
            'sync = "round": a step shows a sum of few owners where rows of the others are used '
            "up, unless [privacy] has honest_ranks",
            settings,
        )
    tables = sum(each.part == "train" for each in agreement.resources)
    if shared and tables != owners:
        raise _slices_differ(
            f"with honest_ranks each of the {owners} owners has one table to train on, and there are {tables}",
            settings,
        )
    if slices.sums == "only" and slices.count < FEWEST_RANKS:
        raise _slices_differ(
            'sums = "only" needs three or more: with two, each has the other\'s part by '
            "subtraction",
            settings,
        )
    if slices.count == 1:
        return
    if slices.rows == "owner" and slices.count != owners:
        raise _slices_differ(
            f'with rows = "owner" each of the {owners} data owners has one slice',
            settings,
        )
    if slices.rows == "owner" and len(agreement.holders) != owners:
        raise _slices_differ(
            'with rows = "owner" each owner needs rows for training, and an owner '
            "has only held-out rows",
            settings,
        )
    if slices.sync == "step" and slices.max_norm:
        raise _slices_differ(
            'max_norm works only with sync = "round", and the job has sync = "step"',
            settings,
        )
    most = max(each.cells for each in agreement.resources if each.part == "train")
    if slices.rows != "owner" and slices.count > most:  # else nothing is cut
        raise _slices_differ(
            f"the longest table has {most} cells, and each slice needs at least one",
            settings,
        )


def _slices_differ(why: str, settings: JobSettings) -> UsageError:
    return UsageError(
        f"the job has {settings.slices.count} slices", why=why, code="slices-differ"
    )


def _check_nothing(settings: JobSettings, agreement: Agreement) -> None:
    """Nothing is trained on what the agreement names."""


PLANS: Final[dict[PlanName, Plan]] = {
    "local": Plan(
        name="local",
        about="train",
        command="train",
        roles=frozenset(),
        check_terms=_check_local,
    ),
    "travel": Plan(
        name="travel",
        about="train",
        command="train",
        roles=frozenset({"orchestrator", "accelerator", "holder", "broker"}),
        check_terms=_check_alone,
        checkpoints=True,
        manifest=True,
    ),
    "ddp": Plan(
        name="ddp",
        about="train",
        command="train",
        roles=frozenset({"orchestrator", "accelerator", "broker"}),
        check_terms=_check_group,
        checkpoints=True,
        manifest=True,
    ),
    "outsource": Plan(
        name="outsource",
        about="train",
        command="train",
        roles=frozenset({"orchestrator", "accelerator", "holder", "broker"}),
        check_terms=_check_outsourced,
        checkpoints=True,
        manifest=True,
    ),
    "group": Plan(
        name="group",
        about="group",
        command="torchrun",
        roles=frozenset({"rank"}),
        check_terms=_check_nothing,
    ),
    "serve": Plan(
        name="serve",
        about="serve",
        command="serve",
        roles=frozenset({"server", "broker"}),
        check_terms=_check_nothing,
    ),
}


@dataclass(frozen=True, slots=True)
class Coverage:
    """Rows and passes, by data owner, every owner included.

    Attributes:
        passes: How often the model was trained on rows of an owner; to ``travel`` each
            is a visit.
        rows: Distinct rows among them.
    """

    passes: Mapping[str, int]
    rows: Mapping[str, int]

    @classmethod
    def of(cls, stops: Iterable[Stop], owners: Iterable[str]) -> Coverage:
        """Of slices that were all trained on; their ranges are equal or apart."""
        trained = [stop for stop in stops if stop.purpose == "train"]
        passes = Counter(stop.holder for stop in trained)
        slices = {(stop.resource, stop.first_row): stop for stop in trained}
        rows: Counter[str] = Counter()
        for stop in slices.values():
            rows[stop.holder] += stop.rows
        owners = tuple(owners)
        return cls({o: passes[o] for o in owners}, {o: rows[o] for o in owners})

    def require(self, rule: OutputRule) -> None:
        """May the model leave?

        Raises:
            PolicyError: code ``output-withheld``, with the rule that is not met.
        """
        passes, rows = self.passes, self.rows
        few = [owner for owner, count in passes.items() if count < rule.min_visits]
        holders = sum(1 for count in passes.values() if count)
        lacking = [owner for owner, n in rows.items() if n < rule.min_owner_rows]
        if few:
            why = (
                f"the model was trained in {passes[few[0]]} visits to {few[0]}; the "
                f"agreement requires at least {rule.min_visits}"
            )
        elif holders < rule.min_holders:
            why = (
                f"the model was trained on the rows of {holders} holders; the "
                f"agreement requires at least {rule.min_holders}"
            )
        elif sum(rows.values()) < rule.min_rows:
            why = (
                f"the model was trained on {sum(rows.values())} distinct rows; the "
                f"agreement requires at least {rule.min_rows}"
            )
        elif lacking:
            why = (
                f"the model was trained on {rows[lacking[0]]} distinct rows of "
                f"{lacking[0]}; the agreement requires at least "
                f"{rule.min_owner_rows}"
            )
        else:
            return
        raise PolicyError(
            "the model may not leave the accelerator", why=why, code="output-withheld"
        )


@dataclass(frozen=True, slots=True)
class PlannedWork:
    """What a job visits, by agreement and job alone, before anything starts.

    Attributes:
        batches: Of one pass for each purpose, of all slices.
        passes: How often each of them is made.
    """

    batches: tuple[VisitBatch, ...]
    passes: Mapping[Purpose, int]

    @classmethod
    def of(cls, settings: JobSettings, tables: Sequence[Resource]) -> PlannedWork:
        """With the buffer that the job names; without one, with the largest that makes sense.

        Raises:
            UsageError: ``buffer-too-small``, ``plan-too-long``.
        """
        terms, slices = settings.visits, settings.slices
        one = replace(terms, epochs=min(1, terms.epochs), evaluate_every=0)
        shares = slices.count if slices.rows == "share" else 1
        longest = max(each.total_bytes for each in tables)
        plans = (
            plan_job(
                tables,
                replace(one, share=(number, shares)),
                terms.buffer_bytes or longest,
            )
            for number in range(shares)
        )
        batches = tuple(batch for plan in plans for batch in plan)
        work = cls(batches, Counter(purpose for purpose, _ in terms.passes()))
        check_length(sum(work.visits.values()))
        return work

    @property
    def visits(self) -> Counter[tuple[str, Purpose]]:
        """How often each owner is visited for each purpose, in the whole job."""
        found: Counter[tuple[str, Purpose]] = Counter()
        for batch in self.batches:
            for stop in batch.stops:
                found[stop.holder, batch.purpose] += self.passes[batch.purpose]
        return found

    def require_visits(self, rule: OutputRule) -> None:
        """Demand that an output rule allows all of these visits.

        Raises:
            PolicyError: ``too-many-visits``.
        """
        for (owner, purpose), visits in self.visits.items():
            if visits > rule.max_visits:
                raise PolicyError(
                    f"the job uses the rows of {owner} {visits:,} times (purpose: {purpose})",
                    why=f"the agreement allows {rule.max_visits:,} times (output.max_visits)",
                    code="too-many-visits",
                )

    def coverage(self, owners: Iterable[str]) -> Coverage:
        """What the model is trained on, if everybody takes part."""
        stops = (stop for batch in self.batches for stop in batch.stops)
        once, times = Coverage.of(stops, owners), self.passes.get("train", 0)
        return replace(once, passes={o: n * times for o, n in once.passes.items()})


def require_planned(settings: JobSettings, agreement: Agreement) -> None:
    """Demand that the agreement allows every planned visit, and that they suffice.

    Every role asks this before it starts, and every party before it signs: a job that
    needs more than is agreed would otherwise find that out after its last allowed round.

    Raises:
        UsageError: ``plan-too-long``.
        PolicyError: ``too-many-visits``, ``output-withheld``.
    """
    rule, work = agreement.output_rule, PlannedWork.of(settings, agreement.resources)
    work.require_visits(rule)
    if not settings.training.epochs:
        return
    covered = work.coverage(agreement.data_owners)
    if not settings.visits.buffer_bytes:  # a smaller one means more visits
        most = {o: max(n, rule.min_visits) for o, n in covered.passes.items() if n}
        covered = replace(covered, passes={**covered.passes, **most})
    covered.require(rule)
