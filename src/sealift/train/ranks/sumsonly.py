"""A job whose ranks learn the sum of what all of them bring, and nothing else of one.

What ranks of other jobs tell each other one by one is added up here, masked: states by their
roles, the sums of ``prepare``, and measures: means as sums over rows beside the rows, tallies
place by place. The output rule then judges the sum. What is compared openly follows from
recipe and plan alone: names, shapes, steps and rows.
Source: spec/collective.md section 7.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from sealift.collective.announcement import Algorithm
from sealift.collective.masked import MaskedSums
from sealift.data.schedule.visits import Stop
from sealift.release.agreement import OutputRule
from sealift.release.agreement.sums import COUNTS, MEASURES, SCALARS
from sealift.release.agreement.tallies import Tally, tally_of
from sealift.train.loop.averaging import AveragedPiece
from sealift.train.loop.measures import put_together, take_apart
from sealift.train.loop.states import TensorBytes, pack_tensors
from sealift.train.loop.statistics import check_sums, sum_numbers

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
            own: This rank's sums; empty for none.

        Raises:
            MalformedError: ``bad-tensors``, if a sum is outside its range.
        """
        total, mine = check_sums(layout), check_sums(own) if own else {}
        for dtype, (kind, encoding) in _KINDS.items():
            names = [name for name, each in total.items() if each.dtype == dtype]
            parts = [sum_numbers(mine.get(name, total[name])) for name in names]
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
    ) -> tuple[int, dict[str, float]]:
        """Everybody's measures of a pass, as one part of all rows would have told them.

        Args:
            measured: Numbers of this rank's stops, as the recipe told them.
            stops: Of all ranks.

        Returns:
            Rows that they cover, and means and tallies by name, of which every owner with
            rows enough brought one; nothing where these are fewer than three, or where no
            more than its owner may know them. The output rule has yet to judge them.
        """
        rule = self._rule
        if rule.audience == "owner" or not rule.metrics:
            return 0, {}
        counted = [each for each in stops if each.rows >= rule.metric_rows]
        owners = len({each.holder for each in counted})
        # A sum of two is each one's to the other; of one it is its own.
        if owners < min(3, self._sums.world):
            return 0, {}
        vector = dict.fromkeys(self._places(), 0.0)
        for stop, metrics in measured:
            if stop.rows >= rule.metric_rows:
                self._collect(stop.rows, metrics, vector)
        numbers = np.fromiter(vector.values(), np.float64, len(vector))
        self._sums.add_up(numbers, MEASURES)
        total = dict(zip(vector, numbers.tolist(), strict=True))
        rows = sum(each.rows for each in counted)
        found: dict[str, float] = {}
        for name in sorted(rule.metrics):
            if (
                total[name, "rows"] != rows
            ):  # a rank has none: the sum would be the others'
                continue
            if tally_of(name) is None:
                found[name] = total[name, "sum"] / rows
            else:
                cells = {
                    place: value
                    for (of, place), value in total.items()
                    if of == name and isinstance(place, tuple)
                }
                found |= put_together(name, cells)
        return rows, found

    def _places(self) -> Iterator[tuple[str, str | tuple[int, ...]]]:
        """The same on every rank: by the agreement alone."""
        for name in sorted(self._rule.metrics):
            yield name, "rows"
            if (tally := tally_of(name)) is None:
                yield name, "sum"
            else:
                yield from ((name, place) for place in _places_of(tally))

    def _collect(
        self,
        rows: int,
        metrics: Mapping[str, float],
        vector: dict[tuple[str, str | tuple[int, ...]], float],
    ) -> None:
        means, tallies = take_apart(metrics)
        for name, value in means.items():
            if (name, "sum") in vector and math.isfinite(value):
                vector[name, "rows"] += rows
                vector[name, "sum"] += value * rows
        for name, cells in tallies.items():
            if (name, "rows") in vector:
                vector[name, "rows"] += rows
                for place, value in cells.items():
                    vector[name, place] += value


def _places_of(tally: Tally) -> Iterator[tuple[int, ...]]:
    for which in range(_SUMS_OF[tally.kind]):
        if tally.kind == "regression":
            yield (which,)
        else:
            yield from ((which, each) for each in range(tally.size))


def layout_of(sums: bytes) -> bytes:
    """Names and shapes of sums, with zeros in place of the numbers."""
    found = check_sums(sums) if sums else {}
    return pack_tensors({name: _emptied(each) for name, each in found.items()})


def _emptied(tensor: TensorBytes) -> TensorBytes:
    return replace(tensor, content=memoryview(bytes(len(tensor.content))))
