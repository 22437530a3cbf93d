"""A job whose ranks learn the sum of what all of them bring, and nothing else of one.

What ranks of other jobs tell each other one by one is added up here, masked: states by their
roles, the sums of ``prepare``, and measures: means times their rows, tallies place by
place, where every rank has them. The output rule then judges the sum. What is compared openly follows from
recipe and plan alone: names, shapes, steps and rows.
Source: spec/collective.md section 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from sealift.channel.device.device import DeviceTensor
from sealift.collective.announcement import Algorithm
from sealift.collective.group import SealedGroup
from sealift.collective.masked import MaskedSums
from sealift.collective.tensors import Numbers
from sealift.data.schedule.visits import Stop
from sealift.errors import JobError, UsageError, require_value
from sealift.release.agreement import OutputRule
from sealift.release.agreement.sums import COUNTS, MEASURES, SCALARS
from sealift.release.agreement.tallies import Tally, tally_of
from sealift.release.agreement.training import PrivateSteps, TrainingRule
from sealift.train.loop.averaging import AveragedPiece
from sealift.train.loop.measures import (
    WITHHELD,
    Cell,
    Cells,
    put_together,
    take_apart,
)
from sealift.train.loop.states import TensorBytes, pack_tensors
from sealift.train.loop.statistics import check_sums, sum_numbers
from sealift.train.loop.stepsums import ReduceGroup

_SUMS_OF: Final = {"classes": 3, "scores": 3, "regression": 5}
_KINDS: Final = {"F64": (np.float64, MEASURES), "I64": (np.int64, COUNTS)}


class SumsOnly:
    """One rank's part of it.

    Args:
        sums: Its end of the group.
        rule: Names the measures, and who may know them.
    """

    def __init__(self, sums: MaskedSums, rule: OutputRule) -> None:
        self._sums, self._rule = sums, rule
        self.begin, self.count_cut = sums.renew, sums.count_cut

    def add_piece(self, piece: AveragedPiece) -> None:
        """Everybody's piece of a state, in place."""
        encoding = self._sums.encoding
        if piece.counts:
            encoding = COUNTS
        elif piece.role == "scalar":
            encoding = SCALARS
        elif piece.role == "optimizer":
            encoding = encoding.wide
        self._sums.add_up(piece.numbers, encoding, Algorithm.TWO_PHASE)

    def add_statistics(self, layout: bytes, own: bytes) -> bytes:
        """Everybody's sums of ``prepare``.

        Args:
            layout: Names and shapes, the same on every rank.
            own: This rank's sums, of this layout; empty where it has none.

        Raises:
            MalformedError: ``bad-tensors``, if a sum is outside its range.
        """
        total, mine = check_sums(layout), check_sums(own) if own else {}
        for dtype, (kind, encoding) in _KINDS.items():
            names = [name for name, each in total.items() if each.dtype == dtype]
            parts = [sum_numbers(mine[name]) for name in names]
            numbers = np.array([n for part in parts for n in part], kind)
            if not numbers.size:
                continue
            self._sums.add_up(numbers, encoding)
            at = 0
            for name, part in zip(names, parts, strict=True):
                content = memoryview(numbers[at : at + len(part)].tobytes())
                total[name] = replace(total[name], content=content)
                at += len(part)
        found = pack_tensors(total)
        check_sums(found)
        return found

    def add_measures(
        self,
        measured: Sequence[tuple[Stop, Mapping[str, float]]],
        stops: Sequence[Stop],
        tell: Callable[[bytes], Sequence[bytes]],
    ) -> tuple[int, dict[str, float]]:
        """Everybody's measures of a pass, as one part of all rows would have told them.

        A measure that a rank lacks is not added up at all: the sum would be of fewer ranks.

        Args:
            measured: Numbers of this rank's stops, as the recipe told them.
            stops: Of all ranks.
            tell: What every rank says, as long on each, and to all alike: which measures
                it has.

        Returns:
            Rows that they cover, and means and tallies by name; nothing where a rank has no
            stop with rows enough, or where no more than its owner may know them. A tally
            that a rank lacks is withheld. The output rule has yet to judge them.
        """
        rule, names = self._rule, sorted(self._rule.metrics)
        counted = [each for each in stops if each.rows >= rule.metric_rows]
        owners = len({each.holder for each in counted})
        if rule.audience == "owner" or not names or owners != self._sums.world:
            return 0, {}
        own = self._own_cells(measured)
        told = tell(bytes(name in own for name in names))
        common = [
            n for at, n in enumerate(names) if all(each[at] == 1 for each in told)
        ]
        numbers = np.array([v for n in common for v in own[n].values()], np.float64)
        if common:
            self._sums.add_up(numbers, MEASURES)
        rows, sums = sum(each.rows for each in counted), iter(numbers.tolist())
        found: dict[str, float] = {}
        for name in names:
            if name in common:
                cells: Cells = {place: next(sums) for place in own[name]}
            else:
                cells = WITHHELD
            if tally_of(name) is not None:
                found |= put_together(name, cells)
            elif name in common:
                found[name] = cells[()] / rows
        return rows, found

    def _own_cells(
        self, measured: Sequence[tuple[Stop, Mapping[str, float]]]
    ) -> dict[str, dict[Cell, float]]:
        """What this rank has of each measure, summed over its rows: all of it, or nothing.

        A mean has one place, times its rows. What would be cut to the bound is not there.
        """
        found = dict[str, dict[Cell, float]]()
        for name in self._rule.metrics:
            tally = tally_of(name)
            places = [()] if tally is None else _places_of(tally)
            cells = dict.fromkeys(places, 0.0)
            for stop, metrics in measured:
                if stop.rows < self._rule.metric_rows:
                    continue
                means, tallies = take_apart(metrics)
                told = tallies.get(name, {})
                if tally is None:
                    told = {(): means.get(name, math.nan) * stop.rows}
                if not told or not told.keys() <= cells.keys():
                    break
                for place, value in told.items():
                    cells[place] += value
            else:
                if all(abs(each) <= MEASURES.bound for each in cells.values()):
                    found[name] = cells
        return found


class NoisedSteps:
    """Sums of steps of a group in which each rank adds its part of the noise.

    Args:
        sums: A rank's end.
        private: Says how much noise a part has.
    """

    def __init__(self, sums: MaskedSums, private: PrivateSteps) -> None:
        self._sums, self._variance = sums, private.part
        self.exchange = sums.exchange

    def all_reduce(self, tensor: Numbers) -> None:
        """Add up everybody's whole numbers with everybody's noise, in place."""
        if isinstance(tensor, DeviceTensor):
            raise UsageError("noise is added to numbers in this process's memory")
        self._sums.add_up(tensor, COUNTS, variance=self._variance)


def step_group(
    group: SealedGroup, sums: MaskedSums | None, rule: TrainingRule
) -> ReduceGroup:
    """What adds up the gradients of steps: the group, or masked sums with shared noise."""
    if rule.privacy is None or not rule.honest_ranks:
        return group
    return NoisedSteps(require_value(sums), rule.privacy)


def _places_of(tally: Tally) -> Iterator[Cell]:
    for which in range(_SUMS_OF[tally.kind]):
        if tally.kind == "regression":
            yield (which,)
        else:
            yield from ((which, each) for each in range(tally.size))


def layout_of(sums: bytes) -> bytes:
    """Names and shapes of sums, with zeros in place of the numbers.

    Raises:
        JobError: ``statistics-withheld``, if one of them would be cut to the bound.
    """
    found = check_sums(sums) if sums else {}
    for each in found.values():
        bound = _KINDS[each.dtype][1].bound
        if any(abs(number) > bound for number in sum_numbers(each)):
            raise JobError(
                "a sum of prepare is too large to be added up masked",
                why=f"it is beyond {bound:.0f}",
                code="statistics-withheld",
            )
    return pack_tensors({name: _emptied(each) for name, each in found.items()})


def _emptied(tensor: TensorBytes) -> TensorBytes:
    return replace(tensor, content=memoryview(bytes(len(tensor.content))))
