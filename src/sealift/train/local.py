"""The ``local`` plan: one process, one loop, the schedule of ``travel``.

The reference that the other plans are compared with, bit for bit (DESIGN 5.8): the same
slices in the same order through the same ``JointTraining``. Rows come from sealed files
whose keys the caller holds, so it is for a party that owns everything the job reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from sealift.channel.commitment import ContentCommitment, verify_leaves
from sealift.channel.sealedfile import SealedFileReader
from sealift.crypto.keys import SecretKey
from sealift.data.card import ResourceCard
from sealift.errors import IntegrityError
from sealift.events import Sink, discard, emit
from sealift.release.agreement import Agreement, Resource
from sealift.train.joint import Cargo, JointTraining
from sealift.travel.lease import Purpose
from sealift.travel.orchestrator import TravelSettings
from sealift.travel.schedule import Stop, plan_resources

ReadRows = Callable[[Stop], Tensor]


def run_local(
    agreement: Agreement,
    settings: TravelSettings,
    training: JointTraining,
    *,
    read_rows: ReadRows,
    sink: Sink = discard,
) -> dict[str, dict[str, float]]:
    """Run every planned slice here; return the last metrics of each held-out resource.

    Args:
        agreement: Names the resources.
        settings: The schedule; what concerns the network is not used.
        training: The model or models.
        read_rows: The rows of a stop, ``uint8`` (rows, row_bytes).
        sink: Where progress goes.
    """
    heldout: dict[str, dict[str, float]] = {}
    for epoch in range(settings.epochs):
        for stop in plan_part(agreement, settings, epoch, "train"):
            metrics = training.work(_cargo(agreement, stop, read_rows(stop)))
            emit(sink, "local.slice", epoch=epoch, holder=stop.holder, **metrics)
        if settings.evaluates(epoch):
            for stop in plan_part(agreement, settings, epoch, "heldout"):
                cargo = _cargo(agreement, stop, read_rows(stop))
                heldout[stop.resource] = training.work(cargo)
    return heldout


def plan_part(
    agreement: Agreement, settings: TravelSettings, epoch: int, purpose: Purpose
) -> tuple[Stop, ...]:
    """The stops of one epoch for one purpose, as the orchestrator plans them."""
    return plan_resources(
        agreement.resources,
        epoch=epoch,
        purpose=purpose,
        order=settings.order,
        buffer_bytes=settings.buffer_bytes,
    )


class SealedRows:
    """Reads rows from sealed files with their keys, after checking the commitments.

    Args:
        agreement: Says what the content must be.
        readers: Open file by resource.
        cards: Resource cards; their leaves lead to the commitment.
        keys: Data key by resource.

    Raises:
        IntegrityError: if a file is not the one agreed on.
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

    def __call__(self, stop: Stop) -> Tensor:
        """The rows of one stop."""
        resource = self._agreement.resource(stop.resource)
        start, length = (
            stop.first_row * resource.row_bytes,
            stop.rows * resource.row_bytes,
        )
        raw = bytearray(self._readers[resource.name].read(start, length))
        rows = torch.frombuffer(raw, dtype=torch.uint8)
        return rows.reshape(stop.rows, resource.row_bytes)


def _verify(
    resource: Resource,
    readers: Mapping[str, SealedFileReader],
    cards: Mapping[str, ResourceCard],
    keys: Mapping[str, SecretKey],
) -> None:
    name = resource.name
    if name not in readers or name not in cards or name not in keys:
        raise IntegrityError(
            f"no sealed file or key for {name}",
            fix="The local plan reads every resource of the agreement",
            code="missing-resource",
        )
    commitment = ContentCommitment(
        resource.content, resource.total_bytes, resource.record_bytes
    )
    leaves = verify_leaves(cards[name].leaves, commitment, data_key=keys[name])
    readers[name].verify(leaves)


def _cargo(agreement: Agreement, stop: Stop, rows: Tensor) -> Cargo:
    resource = agreement.resource(stop.resource)
    return Cargo(resource, stop.epoch, stop.first_row, rows)
