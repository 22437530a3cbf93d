"""The ``local`` plan: one process, one loop, the schedule of ``travel``.

The reference that the other plans are compared with, bit for bit: the same
slices in the same order through the same ``Trainer``. Rows come from sealed files
whose keys the caller holds, so it is for a party that owns everything the job reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sealift.channel.record.commitment import verify_leaves
from sealift.channel.record.sealedfile import SealedFileReader
from sealift.crypto.keys import SecretKey
from sealift.data.schedule.memory import SharedBuffer
from sealift.data.schedule.visits import Stop, plan_here
from sealift.data.schema.card import (
    CARD_SUFFIX,
    SEALED_SUFFIX,
    ResourceCard,
    commitment_of,
    read_card,
    schema_of,
)
from sealift.data.shards.inspect import demand_sealed_as
from sealift.data.shards.shard import Shard
from sealift.errors import (
    AuthenticationError,
    IntegrityError,
    MalformedError,
    PolicyError,
)
from sealift.events import Sink, discard, emit, metric_fields
from sealift.ids import Digest
from sealift.release.agreement import Agreement, Purpose, Resource
from sealift.train.loop.averaging import Contribution, mean_state
from sealift.train.loop.held import Content
from sealift.train.loop.measures import joint_numbers
from sealift.train.loop.products import Outsourcing, first_forms
from sealift.train.loop.slices import (
    LendRows,
    Slice,
    groups_together,
    plan_slice,
    steps_of_slices,
    train_beside,
)
from sealift.train.loop.states import Settled, TrainingState, chain_tensors
from sealift.train.loop.statistics import (
    Measured,
    Statistic,
    add_sums,
    check_totals,
    let_out,
    let_out_totals,
)
from sealift.train.loop.tasks import Workplace
from sealift.train.loop.told import Watch
from sealift.train.loop.trainer import Trainer
from sealift.train.plans import Coverage
from sealift.travel.accelerator.setup import LoadedCargo
from sealift.travel.settings import JobSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRun:
    """What a local run leaves.

    Attributes:
        model: As safetensors; empty where statistics alone were made.
        weights: Digest of the model's state; None without a model.
        steps: Optimizer steps.
        rows: Rows trained on, with repetition.
        metrics: Means over all held-out rows, by the output rule.
        statistics: Totals of ``prepare``, by the output rule.
        prepared: Rows that they are made of, by data owner.
    """

    model: Content
    weights: Digest | None
    steps: int
    rows: int
    metrics: dict[str, float]
    statistics: dict[str, Statistic] = field(default_factory=dict)
    prepared: dict[str, int] = field(default_factory=dict)


def train_local(
    agreement: Agreement,
    settings: JobSettings,
    workplace: Workplace,
    *,
    lend_rows: LendRows,
    sink: Sink = discard,
    products: Outsourcing | None = None,
) -> LocalRun:
    """Run a whole job here, under the agreement's output rule.

    Args:
        agreement: Names resources, code and rules.
        settings: Of the job; what concerns the network is not used.
        workplace: Where the recipe runs.
        lend_rows: The rows of a stop, for as long as they are worked on.
        sink: Where progress goes.
        products: Makes it the reference of the plan ``outsource``, with ``PlainProducts``.

    Raises:
        JobError: if the recipe fails.
        PolicyError: if the model may not leave; ``output-unapproved``.
    """
    rule, trained = agreement.output_rule, settings.training.epochs > 0
    if trained and rule.approved_by:  # nobody could withhold what lies open in the end
        raise PolicyError(
            "the plan local cannot withhold the model until it is approved",
            why=(
                "the agreement requires the approval of "
                f"{' and '.join(rule.approved_by)}"
            ),
            code="output-unapproved",
        )

    def watch(cargo: LoadedCargo, found: Measured) -> None:
        told, stop = let_out(found, rule).metrics, cargo.stop
        emit(sink, "local.window", epoch=stop.epoch, holder=stop.holder, **told)

    if workplace.on_gpu:  # as ``open_training``
        outsourced = products is not None
        forms = first_forms(agreement, settings.training, outsourced=outsourced)
        workplace.stand_by(settings.training, forms)
    slices = _slices(
        agreement, settings, workplace, lend_rows, watch, products=products
    )
    slices[0].trainer.rehearse(slices[0].plan, agreement)
    heldout = _train_passes(agreement, settings, workplace, slices, sink)
    stops = [s for each in slices for group in each.plan for s in group.stops]
    training = slices[0].trainer
    if trained:
        Coverage.of(stops, agreement.data_owners).require(rule)
        training.verify()
    statistics, prepared = _totals(agreement, training, stops)
    return LocalRun(
        model=chain_tensors(training.state()) if trained else b"",
        weights=training.digest() if trained else None,
        steps=training.steps,
        rows=sum(each.trainer.rows_trained for each in slices),
        metrics=joint_numbers(heldout, rule.digits),
        statistics=statistics,
        prepared=prepared,
    )


Measures = list[tuple[int, Mapping[str, float]]]  # rows, and what may leave of them


def _train_passes(
    agreement: Agreement,
    settings: JobSettings,
    workplace: Workplace,
    slices: Sequence[Slice],
    sink: Sink,
) -> Measures:
    """All passes, or fewer where no better state comes; the last measures of what is handed out."""
    rule, best = agreement.output_rule, slices[0].trainer.best
    heldout, kept = Measures(), Measures()
    for purpose, epoch in settings.visits.passes():
        if best.is_over:
            break
        averaged = purpose == "train" and len(slices) > 1
        before = slices[0].trainer.joint if averaged else None
        began = Settled(before) if before else None
        told = list(_work(slices, purpose, epoch, workplace, settings))
        heldout = [(stop.rows, let_out(found, rule).metrics) for stop, found in told]
        for (stop, _found), (_rows, out) in zip(told, heldout, strict=True):
            _tell_slice(sink, stop, out)
        if purpose == "prepare":
            _join_sums(slices)
        if before and began:
            began.verify(before)
            _join_states(slices, before, epoch, settings.slices.max_norm)
        if purpose == "heldout" and settings.training.measure:
            joint = joint_numbers(heldout, rule.digits)
            if best.take(epoch, joint, slices[0].trainer.joint):
                kept = heldout
    if (state := best.state) is None:
        return heldout
    for each in slices:
        each.trainer.join(state)
    return kept


def _slices(
    agreement: Agreement,
    settings: JobSettings,
    workplace: Workplace,
    lend_rows: LendRows,
    watch: Watch,
    *,
    products: Outsourcing | None,
) -> list[Slice]:
    """What is trained side by side; a single one goes as the plan ``travel`` does."""
    if settings.slices.count == 1:
        plan = plan_here(agreement.resources, settings.visits)
        training = Trainer.under(
            agreement, workplace, settings.training, watch=watch, products=products
        )
        return [Slice(agreement, plan, training, lend_rows)]
    return [
        Slice(
            agreement,
            plan_slice(agreement, settings, number),
            Trainer.under(
                agreement, workplace, settings.training, watch=watch, number=number
            ),
            lend_rows,
        )
        for number in range(settings.slices.count)
    ]


def _join_sums(slices: Sequence[Slice]) -> None:
    own = [each.trainer.statistics for each in slices]
    total = add_sums([blob for blob in own if blob])
    for each in slices:
        each.trainer.take_sums(total)


def _tell_slice(sink: Sink, stop: Stop, out: Mapping[str, float]) -> None:
    emit(
        sink,
        "local.slice",
        purpose=stop.purpose,
        epoch=stop.epoch,
        holder=stop.holder,
        resource=stop.resource,
        first_row=stop.first_row,
        rows=stop.rows,
        **metric_fields(out),
    )


def _work(
    slices: Sequence[Slice],
    purpose: Purpose,
    epoch: int,
    workplace: Workplace,
    settings: JobSettings,
) -> Iterator[tuple[Stop, Measured]]:
    """One pass: slice after slice, or all of them step by step."""
    plans = [each.plan for each in slices]
    if len(slices) == 1 or (purpose, settings.slices.sync) != ("train", "step"):
        most = 0
        if len(slices) > 1 and purpose == "train":
            most = max(steps_of_slices(plans, epoch, settings.training, "round"))
        for each in slices:
            yield from each.work(purpose, epoch, most=most)
        return
    for stops, together in groups_together(plans, epoch, settings.training):
        with ExitStack() as stack:
            pairs = zip(slices, stops, strict=True)
            found = train_beside(
                [each.trainer for each in slices],
                [stack.enter_context(each.load(own)) for each, own in pairs],
                together,
                workplace=workplace,
                settings=settings.training,
            )
        for own, measured in zip(stops, found, strict=True):
            yield from ((stop, measured[stop.resource]) for stop in own)


def _join_states(
    slices: Sequence[Slice],
    before: TrainingState,
    epoch: int,
    max_norm: float,
) -> None:
    """Every slice goes on from the mean of all, by rows."""
    for each in slices:
        each.trainer.verify()
    rows = [each.rows("train", epoch) for each in slices]
    contributions = [
        Contribution(
            before,
            each.trainer.joint,
            n / sum(rows),
            max_norm=max_norm,
            summed=each.trainer.summed or None,
        )
        for each, n in zip(slices, rows, strict=True)
    ]
    state = mean_state(contributions, max(each.trainer.steps for each in slices))
    for each in slices:
        each.trainer.join(state)


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


class SealedTables:
    """Reads rows from sealed files with their keys, after checking the commitments.

    Args:
        agreement: Says what the content must be.
        readers: Open file by resource.
        cards: Resource cards; their leaves lead to the commitment.
        keys: Data key by resource.
        resources: Those of the agreement that are read; all without.

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
        resources: Sequence[Resource] = (),
    ) -> None:
        self._agreement = agreement
        self._readers = readers
        for resource in resources or agreement.resources:
            _verify(resource, readers, cards, keys)

    @contextmanager
    def __call__(self, stop: Stop) -> Iterator[SharedBuffer]:
        """The rows of one stop, for as long as they are used."""
        with closing(SharedBuffer.of(self.read(stop))) as shared:
            yield shared

    def read(self, stop: Stop) -> bytes:
        """The rows of one stop."""
        resource = self._agreement.resource(stop.resource)
        start = stop.first_row * resource.row_bytes
        return self._readers[resource.name].read(start, stop.rows * resource.row_bytes)


@contextmanager
def opened_tables(
    agreement: Agreement,
    folders: Sequence[Path],
    keys: Mapping[str, SecretKey],
    resources: Sequence[Resource] = (),
) -> Iterator[SealedTables]:
    """Sealed files and their cards, each from the first of the folders that has it.

    Raises:
        UnavailableError: if a file is missing.
        MalformedError: ``other-resource``, if one was sealed with another key.
        IntegrityError, MalformedError: see ``SealedTables``.
    """
    readers: dict[str, SealedFileReader] = {}
    cards: dict[str, ResourceCard] = {}
    with ExitStack() as stack:
        for name, key in keys.items():
            folder = _find(name, folders)
            cards[name] = read_card(folder / f"{name}{CARD_SUFFIX}")
            file = folder / f"{name}{SEALED_SUFFIX}"
            try:
                reader = SealedFileReader(file, key)
            except AuthenticationError:
                raise MalformedError(
                    f"{file} is not the sealed file that its key belongs to",
                    code="other-resource",
                ) from None
            readers[name] = stack.enter_context(closing(reader))
        yield SealedTables(agreement, readers, cards, keys, resources)


def _find(name: str, folders: Sequence[Path]) -> Path:
    """The first folder that has the file, or the first at all, for the error."""
    having = (each for each in folders if (each / f"{name}{CARD_SUFFIX}").exists())
    return next(having, folders[0] if folders else Path())


def _verify(
    resource: Resource,
    readers: Mapping[str, SealedFileReader],
    cards: Mapping[str, ResourceCard],
    keys: Mapping[str, SecretKey],
) -> None:
    name = resource.name
    if name not in readers or name not in cards or name not in keys:
        raise IntegrityError(
            f"there is no sealed file or no key for {name}", code="missing-resource"
        )
    reader, key = readers[name], keys[name]
    if reader.header.is_described:  # a model's is not
        shard = Shard(f"{name}{SEALED_SUFFIX}", key)
        demand_sealed_as(schema_of(resource), "the agreement", shard, reader.header)
    leaves = verify_leaves(cards[name].leaves, commitment_of(resource), data_key=key)
    reader.verify(leaves)
