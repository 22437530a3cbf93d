"""The ``local`` plan: one process, one loop, the schedule of ``travel``.

The reference that the other plans are compared with, bit for bit (DESIGN 5.8): the same
slices in the same order through the same ``Trainer``. Rows come from sealed files
whose keys the caller holds, so it is for a party that owns everything the job reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
    mean_over_rows,
)
from sealift.train.loop.tasks import Workplace
from sealift.train.loop.trainer import Trainer
from sealift.train.plans import Coverage
from sealift.travel.accelerator.setup import LoadedCargo
from sealift.travel.settings import JobSettings

ReadRows = Callable[[Stop], SharedBuffer]


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
        settings: Of the job; what concerns the network is not used.
        workplace: Where the recipe runs.
        read_rows: The rows of a stop; closed when they were worked on.
        sink: Where progress goes.

    Raises:
        JobError: if the recipe fails.
        PolicyError: if the model may not leave; ``output-unapproved``.
    """
    rule, trained = agreement.output_rule, settings.training.epochs > 0
    if trained and rule.approved_by:  # nobody could withhold what lies open in the end
        raise PolicyError(
            "the plan local cannot keep a model until it is approved of",
            why=f"the agreement asks for the approval of {' and '.join(rule.approved_by)}",
            code="output-unapproved",
        )

    def watch(cargo: LoadedCargo, found: Measured) -> None:
        told, stop = let_out(found, rule).metrics, cargo.stop
        emit(sink, "local.window", epoch=stop.epoch, holder=stop.holder, **told)

    training = Trainer.under(agreement, workplace, settings.training, watch=watch)
    plan = plan_here(agreement.resources, settings.visits)
    epoch, heldout = -1, list[tuple[int, Mapping[str, float]]]()
    for group in plan:
        measured = _work(agreement, training, group, read_rows)
        if group.purpose == "heldout" and group.epoch != epoch:
            epoch, heldout = group.epoch, []  # an earlier model's numbers say nothing
        for stop in group.stops:
            found = measured[stop.resource]
            if group.purpose == "train":
                emit(
                    sink,
                    "local.slice",
                    epoch=stop.epoch,
                    holder=stop.holder,
                    **found.metrics,
                )
            elif group.purpose == "heldout":
                heldout.append((stop.rows, let_out(found, rule).metrics))
    stops = [stop for group in plan for stop in group.stops]
    if trained:
        Coverage.of(stops, agreement.data_owners).require(rule)
        training.verify()
    statistics, prepared = _totals(agreement, training, stops)
    return LocalRun(
        model=pack_tensors(training.state()) if trained else b"",
        weights=training.digest() if trained else None,
        steps=training.steps,
        metrics=mean_over_rows(heldout, rule.digits),
        statistics=statistics,
        prepared=prepared,
    )


def _totals(
    agreement: Agreement, training: Trainer, stops: Sequence[Stop]
) -> tuple[dict[str, Statistic], dict[str, int]]:
    """Totals that leave, and how many rows of each owner they are made of."""
    if not training.statistics:
        return {}, {}
    rows, owners = Counter[str](), Counter[str]()
    for stop in stops:
        if stop.purpose == "prepare":
            rows[stop.resource] += stop.rows
            owners[stop.holder] += stop.rows
    rule = agreement.output_rule
    check_totals(rule, agreement.resources, rows)
    return let_out_totals(training.statistics, rule), dict(owners)


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
