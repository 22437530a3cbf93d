"""The ``local`` plan: one process, one loop, the schedule of ``travel``.

The reference that the other plans are compared with, bit for bit (DESIGN 5.8): the same
slices in the same order through the same ``Trainer``. Rows come from sealed files
whose keys the caller holds, so it is for a party that owns everything the job reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from sealift.channel.record.commitment import verify_leaves
from sealift.channel.record.sealedfile import SealedFileReader
from sealift.crypto.keys import SecretKey
from sealift.data.schedule.memory import SharedBuffer
from sealift.data.schedule.visits import Group, Stop, plan_here
from sealift.data.schema.card import (
    SEALED_SUFFIX,
    ResourceCard,
    commitment_of,
    schema_of,
)
from sealift.data.shards.inspect import demand_sealed_as
from sealift.data.shards.shard import Shard
from sealift.errors import IntegrityError, PolicyError
from sealift.events import Sink, discard, emit
from sealift.ids import Digest
from sealift.release.agreement import Agreement, Resource
from sealift.train.loop.states import pack_tensors
from sealift.train.loop.statistics import (
    Measured,
    Statistic,
    check_totals,
    let_out,
    let_out_totals,
)
from sealift.train.loop.tasks import Workplace
from sealift.train.loop.trainer import Trainer, mean_over_rows
from sealift.train.plans.plan import Coverage
from sealift.travel.accelerator.setup import LoadedCargo
from sealift.travel.settings import JobSettings

MeasuredRows = tuple[int, Mapping[str, float]]  # how many, and what on them
ReadRows = Callable[[Stop], SharedBuffer]


def _run_local(
    agreement: Agreement,
    settings: JobSettings,
    training: Trainer,
    *,
    read_rows: ReadRows,
    sink: Sink = discard,
) -> list[MeasuredRows]:
    """Run every planned slice here; return what was measured last on held-out rows.

    Args:
        agreement: Names the resources.
        settings: The schedule; what concerns the network is not used.
        training: The model or models.
        read_rows: The rows of a stop; closed when they were worked on.
        sink: Where progress goes.
    """
    heldout: list[MeasuredRows] = []
    epoch, rule = -1, agreement.output_rule
    for group in plan_here(agreement.resources, settings.visits):
        measured = _work(agreement, training, group, read_rows)
        if group.purpose == "heldout" and group.epoch != epoch:
            epoch, heldout = group.epoch, []  # an earlier model's numbers say nothing
        for stop in group.stops:
            found = measured[stop.resource]
            if group.purpose == "train":
                _tell(sink, stop, found)
            elif group.purpose == "heldout":
                heldout.append((stop.rows, let_out(found, rule).metrics))
    return heldout


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRun:
    """What a local run leaves.

    Attributes:
        model: As safetensors; empty where statistics alone were made.
        weights: Digest of the model's state; None without a model.
        steps: Optimizer steps.
        metrics: Means over all held-out rows, by the output rule.
        statistics: Totals of ``prepare``, by the output rule.
        prepared: Rows that they are made of, by data owner.
    """

    model: bytes
    weights: Digest | None
    steps: int
    metrics: dict[str, float]
    statistics: dict[str, Statistic] = field(default_factory=dict)
    prepared: dict[str, int] = field(default_factory=dict)


def train_local(
    agreement: Agreement,
    settings: JobSettings,
    workplace: Workplace,
    *,
    read_rows: ReadRows,
    sink: Sink = discard,
) -> LocalRun:
    """Run a whole job here, under the agreement's output rule.

    Args:
        agreement: Names resources, code and rules.
        settings: Of the job.
        workplace: Where the recipe runs.
        read_rows: The rows of a stop.
        sink: Where progress goes.

    Raises:
        JobError: if the recipe fails.
        PolicyError: if the model may not leave; ``output-unapproved``.
    """
    trained = settings.training.epochs > 0
    if trained:
        _require_no_approval(agreement)

    def watch(cargo: LoadedCargo, found: Measured) -> None:
        stop, let = cargo.stop, let_out(found, agreement.output_rule).metrics
        emit(sink, "local.window", epoch=stop.epoch, holder=stop.holder, **let)

    training = Trainer.under(agreement, workplace, settings.training, watch=watch)
    heldout = _run_local(agreement, settings, training, read_rows=read_rows, sink=sink)
    plan = plan_here(agreement.resources, settings.visits)
    if trained:
        stops = (stop for group in plan for stop in group.stops)
        coverage = Coverage.of(stops, agreement.data_owners)
        coverage.require(agreement.output_rule)
        training.verify()
    return LocalRun(
        model=pack_tensors(training.state()) if trained else b"",
        weights=training.digest() if trained else None,
        steps=training.steps,
        metrics=mean_of_parts(agreement, heldout),
        statistics=_totals(agreement, training, plan),
        prepared=_prepared(agreement) if training.statistics else {},
    )


def _totals(
    agreement: Agreement, training: Trainer, plan: Sequence[Group]
) -> dict[str, Statistic]:
    if not training.statistics:
        return {}
    stops = [
        stop for group in plan if group.purpose == "prepare" for stop in group.stops
    ]
    rows: Counter[str] = Counter()
    for stop in stops:
        rows[stop.resource] += stop.rows
    check_totals(agreement.output_rule, agreement.resources, rows)
    return let_out_totals(training.statistics, agreement.output_rule)


def _prepared(agreement: Agreement) -> dict[str, int]:
    """The local plan leaves nobody out."""
    rows: Counter[str] = Counter()
    for each in agreement.resources:
        if each.part == "train":
            rows[each.owner] += each.rows
    return dict(rows)


def mean_of_parts(
    agreement: Agreement, heldout: Iterable[MeasuredRows]
) -> dict[str, float]:
    """Means over everybody's held-out rows, rounded as the output rule says."""
    means = mean_over_rows(heldout)
    return {
        name: round(mean, agreement.output_rule.digits) for name, mean in means.items()
    }


def _require_no_approval(agreement: Agreement) -> None:
    """Here the model lies open at the end, so nobody could withhold an approval."""
    names = agreement.output_rule.approved_by
    if names:
        raise PolicyError(
            "the plan local cannot keep a model until it is approved of",
            why=f"the agreement asks for the approval of {' and '.join(names)}",
            code="output-unapproved",
        )


class SealedTables:
    """Reads rows from sealed files with their keys, after checking the commitments.

    Args:
        agreement: Says what the content must be.
        readers: Open file by resource.
        cards: Resource cards; their leaves lead to the commitment.
        keys: Data key by resource.

    Raises:
        IntegrityError: if a file is not the one agreed on.
        MalformedError: ``schema-mismatch``, if it was sealed with other columns.
    """

    def __init__(
        self,
        agreement: Agreement,
        readers: Mapping[str, SealedFileReader],
        cards: Mapping[str, ResourceCard],
        keys: Mapping[str, SecretKey],
    ) -> None:
        self._agreement = agreement
        self._readers = readers
        for resource in agreement.resources:
            _verify(resource, readers, cards, keys)

    def __call__(self, stop: Stop) -> SharedBuffer:
        """The rows of one stop."""
        resource = self._agreement.resource(stop.resource)
        start, length = (
            stop.first_row * resource.row_bytes,
            stop.rows * resource.row_bytes,
        )
        return SharedBuffer.of(self._readers[resource.name].read(start, length))


def _verify(
    resource: Resource,
    readers: Mapping[str, SealedFileReader],
    cards: Mapping[str, ResourceCard],
    keys: Mapping[str, SecretKey],
) -> None:
    name = resource.name
    if name not in readers or name not in cards or name not in keys:
        raise IntegrityError(
            f"no sealed file or key for {name}", code="missing-resource"
        )
    reader, key = readers[name], keys[name]
    if reader.header.is_described:  # a model's is not
        shard = Shard(f"{name}{SEALED_SUFFIX}", key)
        demand_sealed_as(schema_of(resource), "the agreement", shard, reader.header)
    leaves = verify_leaves(cards[name].leaves, commitment_of(resource), data_key=key)
    reader.verify(leaves)


def _tell(sink: Sink, stop: Stop, found: Measured) -> None:
    emit(sink, "local.slice", epoch=stop.epoch, holder=stop.holder, **found.metrics)


def _work(
    agreement: Agreement, training: Trainer, group: Group, read_rows: ReadRows
) -> dict[str, Measured]:
    with ExitStack() as stack:
        cargo = [
            LoadedCargo(
                stop,
                agreement.resource(stop.resource),
                stack.enter_context(closing(read_rows(stop))),
            )
            for stop in group.stops
        ]
        return training.work(cargo, group.purpose)
