"""Slices that make every step together: in one task, and as ranks of a sealed group."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from sealift.channel.device.device import SummingEngine
from sealift.collective.group import SealedGroup
from sealift.data.schedule.memory import SharedBuffer
from sealift.data.schedule.visits import Stop, VisitBatch
from sealift.errors import SealiftError
from sealift.train.loop.averaging import Contribution, mean_state
from sealift.train.loop.slices import Slice, StepGroup, groups_together, train_beside
from sealift.train.loop.states import TrainingState
from sealift.train.loop.statistics import Measured
from sealift.train.loop.tasks import Workplace
from sealift.train.loop.trainer import Trainer
from sealift.travel.settings import TrainingSettings
from tests.sim.summing import pipes_of
from tests.sim.wires import simulated_wires
from tests.unit.train.joints import in_place, resource
from tests.unit.train.recipes import SETTINGS, rows

Rows = Sequence[Sequence[int]]
"""Rows of each group of each slice."""
Told = list[tuple[Stop, Measured]]
Join = Callable[[int, SealedGroup], Any]


@dataclass
class World:
    """Slices of so many rows, and a recipe.

    Attributes:
        text: Of the recipe.
        rows: Of each group of each slice.
        settings: Of the loop.
        work: Where a slice's tasks are done.
        tables: Of each slice, instead of made ones.
    """

    text: str
    rows: Rows
    settings: TrainingSettings = SETTINGS
    work: Callable[[int], Workplace] | None = None
    tables: Sequence[Tensor] = ()

    @property
    def plans(self) -> list[tuple[VisitBatch, ...]]:
        return [tuple(self._groups(n, own)) for n, own in enumerate(self.rows)]

    def slice(self, number: int) -> Slice:
        place = self.work(number) if self.work else in_place(self.text)
        trainer = Trainer(place, replace(self.settings), values=2, number=number)
        owners = [f"o{n}" for n in range(len(self.rows))]
        resources = {f"{o}-train": resource(o, 4096) for o in owners}
        agreement: Any = SimpleNamespace(resource=resources.__getitem__)
        return Slice(agreement, self.plans[number], trainer, self._lend)

    def here(self) -> tuple[list[Slice], Told]:
        """As the plan ``local`` does it."""
        slices = [self.slice(number) for number in range(len(self.rows))]
        told: Told = []
        for stops, together in groups_together(self.plans, 0, self.settings):
            with ExitStack() as stack:
                pairs = zip(slices, stops, strict=True)
                found = train_beside(
                    [each.trainer for each in slices],
                    [stack.enter_context(each.load(own)) for each, own in pairs],
                    together,
                    workplace=in_place(self.text),
                    settings=self.settings,
                )
            for own, measured in zip(stops, found, strict=True):
                told += [(stop, measured[stop.resource]) for stop in own]
        return slices, told

    def apart(
        self,
        join: Join = lambda rank, group: group,
        bucket_bytes: int = 64,
        devices: Mapping[int, SummingEngine] | None = None,
    ) -> list[Ranked]:
        """As the plan ``ddp`` does it, each rank in a thread, some with a device."""
        devices = devices or {}
        make = pipes_of if devices else simulated_wires
        wires: Any = make(len(self.rows))
        found = [Ranked(self.slice(number)) for number in range(len(self.rows))]

        def rank(number: int) -> None:
            with SealedGroup(number, wires[number]) as group:
                if number in devices:
                    group.use_device(devices[number])
                beside = StepGroup(
                    group=join(number, group),
                    plans=self.plans,
                    bucket_bytes=bucket_bytes,
                    device=devices.get(number),
                )
                found[number].work(beside)

        threads = [
            threading.Thread(target=rank, args=(number,))
            for number in range(len(wires))
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
            assert not each.is_alive()
        return found

    def table(self, number: int, count: int) -> Tensor:
        return self.tables[number] if self.tables else rows(count, seed=number + 7)

    def _lend(self, stop: Stop) -> closing[SharedBuffer]:
        end = stop.first_row + stop.rows
        found = self.table(int(stop.holder[1:]), end)[stop.first_row : end]
        return closing(SharedBuffer.of(found.contiguous().numpy().tobytes()))

    def _groups(self, number: int, own: Sequence[int]) -> Iterator[VisitBatch]:
        first = 0
        for position, count in enumerate(own):
            name = f"o{number}-train"
            stop = Stop(0, f"o{number}", name, "train", first, count)
            yield VisitBatch(position, "train", 0, (stop,))
            first += count


class Ranked:
    """One rank's slice, what it told, and what ended it."""

    def __init__(self, of: Slice) -> None:
        self.slice = of
        self.trainer = of.trainer
        self.before = of.trainer.joint
        self.told: Told = []
        self.error: SealiftError | None = None

    def work(self, beside: StepGroup) -> None:
        try:
            self.told += self.slice.work("train", 0, beside)
        except SealiftError as error:
            self.error = error


def joined(before: TrainingState, slices: Sequence[Slice]) -> TrainingState:
    """What all slices go on from after a pass."""
    rows = [each.rows("train", 0) for each in slices]
    parts = [
        Contribution(
            before,
            each.trainer.joint,
            count / sum(rows),
            summed=each.trainer.summed,
        )
        for each, count in zip(slices, rows, strict=True)
    ]
    return mean_state(parts, slices[0].trainer.steps)
