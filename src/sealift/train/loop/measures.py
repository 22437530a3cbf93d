"""Measures out of counts and sums that were added over owners, by a closed list of formulas.

A recipe says what it counts (``sealift.recipes.measures``); no code of it runs here. A tally
travels as numbers by name and place, ``classes_2[0,1]``, so that those of several slices are
added up place by place. Its places are:

* ``classes_N[0,c]`` rows of class c, ``[1,c]`` those of them that the model finds,
  ``[2,c]`` rows that the model gives class c;
* ``scores_N[0,a,b]`` rows of class 0 whose score lies in the intervals a to b, ``[1,a,b]`` of
  class 1, ``[2,a,b]`` the sum of the scores of both; a recipe's process says ``[0,a]``;
* ``regression[0]`` rows, ``[1]`` sum of the true values, ``[2]`` of their squares, ``[3]`` of
  squared errors, ``[4]`` of absolute errors;
* ``NAME[]`` says that a slice's is not shared (``share_tally``).

What may leave of one owner's is decided here as well (``share_tally``). No torch.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final, NoReturn

from sealift.errors import JobError
from sealift.release.agreement import MAX_DIGITS
from sealift.release.agreement.tallies import (
    MAX_BINS,
    MAX_CLASSES,
    Tally,
    tally_of,
)

Cell = tuple[int, ...]
Cells = Mapping[Cell, float]
WITHHELD: Final[Cells] = {(): 1.0}
_KEY: Final = re.compile(r"(.+)\[((?:\d{1,4}(?:,\d{1,4}){0,2})?)\]")
LOSS: Final = "loss"
ACCURACY: Final = "accuracy"
MAJORITY: Final = "majority"
ERROR: Final = "_error"  # of a number: it is off by so much at most
R2_EXACT: Final = 0.005
_SLACK: Final = 1e-6  # of a sum, for what was rounded on its way


def take_apart(
    metrics: Mapping[str, float],
) -> tuple[dict[str, float], dict[str, dict[Cell, float]]]:
    """Means over rows by name, and tallies by name and place."""
    means, tallies = dict[str, float](), dict[str, dict[Cell, float]]()
    for key, value in metrics.items():
        found = _KEY.fullmatch(key)
        if found is None:
            means[key] = value
            continue
        cell = tuple(int(each) for each in found[2].split(",") if each)
        tallies.setdefault(found[1], {})[cell] = value
    return means, tallies


def names_of(metrics: Mapping[str, float]) -> list[str]:
    """What an agreement would list, of what ``evaluate`` returned.

    Raises:
        JobError: code ``wrong-measure``, for a table whose name stands for none, or the
            name of a table for a single number.
    """
    means, tallies = take_apart(metrics)
    for name in sorted({*means, *tallies}):
        if (tally_of(name) is None) is not (name in means):
            _refuse(
                f"the name {name[:80]!r} does not say what is in it: sealift.recipes.measures has "
                f"tables of up to {MAX_CLASSES} classes and {MAX_BINS} intervals"
            )
    return sorted({*means, *tallies})


def put_together(name: str, cells: Cells) -> dict[str, float]:
    """A tally as numbers by name and place."""
    return {f"{name}[{','.join(map(str, cell))}]": v for cell, v in cells.items()}


def share_tally(
    tally: Tally, cells: Cells, *, rows: int, least: int, digits: int
) -> Cells:
    """What of one slice's tally may leave, so that no number is measured on few rows.

    Of classes nothing leaves if one of them has fewer than ``least`` rows, but some.
    Intervals of the score are joined with their neighbours until each has ``least`` rows.
    Of a regression nothing leaves if rounded sums could change R-squared by ``R2_EXACT``.
    What was shared before stays as it is.

    Args:
        tally: What the name stands for.
        cells: As the recipe counted them, or as they were shared.
        rows: Of the slice; at least ``least``.
        least: Fewest rows behind a number.
        digits: Decimal places of sums.

    Raises:
        JobError: code ``wrong-measure``, if each row is not counted exactly once.
    """
    if cells == WITHHELD:
        return cells
    if tally.kind == "classes":
        return _share_classes(tally, cells, rows=rows, least=least)
    if tally.kind == "scores":
        return _share_scores(tally, cells, rows=rows, least=least, digits=digits)
    return _share_regression(cells, rows=rows, digits=digits)


def joint_numbers(
    parts: Collection[tuple[int, Mapping[str, float]]],
    digits: int,
    *,
    whole: bool = False,
) -> dict[str, float]:
    """Numbers over several parts: means weighted by rows, and measures of added tallies.

    Args:
        parts: Rows of each, and its numbers.
        digits: To round to.
        whole: Leave out a mean that a part lacks: it would not be of all rows.

    A number that is not finite is left out, as each of its parts would be; a measure as
    well that is not defined (no rows of a class), that an owner's share is missing of, or
    that somebody told impossible counts for: this never raises, whatever others tell.
    """
    sums, rows_of = dict[str, float](), Counter[str]()
    tallies = dict[str, dict[Cell, float]]()
    for rows, metrics in parts:
        means, own = take_apart(metrics)
        for name, value in means.items():
            sums[name] = sums.get(name, 0.0) + value * rows
            rows_of[name] += rows
        for name, cells in own.items():
            total = tallies.setdefault(name, {})
            for cell, value in cells.items():
                total[cell] = total.get(cell, 0.0) + value
    found = dict[str, float]()
    for name, total in tallies.items():
        prefix, dot, base = name.rpartition(".")
        tally = tally_of(base)
        if tally is None or not _are_possible(tally, total):
            continue
        for measure, value in _measures(tally, total):
            found[f"{prefix}{dot}{tally.label}{measure}"] = value
    for name, value in sums.items():
        if rows_of[name] and not (whole and any(name not in m for _, m in parts)):
            found[name] = value / rows_of[name]
    return {n: round(each, digits) for n, each in found.items() if math.isfinite(each)}


def numbers_of(names: Iterable[str]) -> set[str]:
    """What numbers come of agreed measures: a measure's own name, or all that a table gives."""
    found = set[str]()
    for name in names:
        tally = tally_of(name)
        found.update((name,) if tally is None else tally.measures)
    return found


def withheld_numbers(agreed: Iterable[str], shown: Collection[str]) -> list[str]:
    """Numbers of agreed measures of which nothing is shown, of rows that are held out.

    The loss is left out: a recipe's ``evaluate`` need not return it.
    """
    whole = [numbers_of([name]) for name in agreed if name != LOSS]
    gone = [each for each in whole if not each.intersection(shown)]
    return sorted({name for each in gone for name in each})


def shown_numbers(metrics: Mapping[str, float]) -> dict[str, float]:
    """Numbers of one part for people: measures stand for what is counted."""
    return joint_numbers([(1, metrics)], MAX_DIGITS)


# Of each kind: how many sums, of which so many first are counts, of them so many of rows.
_SUMS: Final = {"classes": (3, 3, 1), "scores": (3, 2, 2), "regression": (5, 1, 1)}
_PLACES: Final = {"classes": 1, "scores": 2, "regression": 0}


def _are_possible(tally: Tally, cells: Cells) -> bool:
    """Whether places and values may be added-up shares of what the name says, with rows."""
    sums, counts, of_rows = _SUMS[tally.kind]
    for cell, value in cells.items():
        if len(cell) != 1 + _PLACES[tally.kind]:  # or a share is missing
            return False
        which, *places = cell
        if (
            which >= sums
            or places != sorted(places)
            or max(cell[1:], default=0) >= tally.size
        ):
            return False
        signed = (tally.kind, which) == ("regression", 1)
        if not math.isfinite(value) or (value < 0 and not signed):
            return False
        if which < counts and value % 1:
            return False
    return any(value for cell, value in cells.items() if cell[0] < of_rows)


def _measures(tally: Tally, cells: Cells) -> Iterator[tuple[str, float]]:
    """Names and values; undefined ones are left out."""
    if tally.kind == "regression":
        yield from _measure_regression(cells)
    elif tally.kind == "scores":
        yield from _measure_scores(cells)
    else:
        yield from _measure_classes(tally.size, cells)


def _measure_classes(classes: int, cells: Cells) -> Iterator[tuple[str, float]]:
    rows, right, given = (
        [cells.get((kind, each), 0.0) for each in range(classes)] for kind in range(3)
    )
    yield ACCURACY, sum(right) / sum(rows)
    yield MAJORITY, max(rows) / sum(rows)
    recalls = [found / n for found, n in zip(right, rows, strict=True) if n]
    yield "balanced_accuracy", sum(recalls) / len(recalls)
    scores = []
    for each in range(classes):
        found, of, said = right[each], rows[each], given[each]
        mark = "" if classes == 2 else f"_{each}"
        if of + said:
            scores.append(2 * found / (of + said))
        if classes == 2 and not each:
            continue  # of two classes, 1 is the one that is looked for
        if of:
            yield f"recall{mark}", found / of
        if said:
            yield f"precision{mark}", found / said
        if of + said:
            yield f"f1{mark}", scores[-1]
    if classes > 2:
        yield "macro_f1", sum(scores) / len(scores)


def _measure_scores(cells: Cells) -> Iterator[tuple[str, float]]:
    """The area under the ROC curve with its bound, and how far scores are from frequencies.

    Of two rows whose intervals do not overlap it is known whose score is higher. For the other
    pairs the area has a least and a most; the one that is told takes each interval's scores as
    spread evenly over it, and ``auc_error`` is how far the least or the most is from it.
    """
    groups = sorted({cell[1:] for cell in cells})
    size = max(last for _first, last in groups) + 1
    zeros, ones = (
        {each: cells.get((kind, *each), 0.0) for each in groups} for kind in range(2)
    )
    lowest, highest = [0.0] * size, [0.0] * size
    for (first, last), rows in zeros.items():
        lowest[first] += rows
        highest[last] += rows
    below, surely_below = [*accumulate(lowest)], [0.0, *accumulate(highest)]
    pairs = sum(zeros.values()) * sum(ones.values())
    if pairs:
        most = sum(n * below[last] for (_first, last), n in ones.items()) / pairs
        least = sum(n * surely_below[first] for (first, _), n in ones.items()) / pairs
        even = _area_if_even(zeros, ones, size) / pairs
        area = min(max(even, least), most)  # but for rounding it lies between
        yield "auc", area
        yield f"auc{ERROR}", max(most - area, area - least)
    gaps = (abs(cells.get((2, *each), 0.0) - n) for each, n in ones.items())
    yield "calibration_error", sum(gaps) / sum((*zeros.values(), *ones.values()))


def _area_if_even(zeros: Cells, ones: Cells, size: int) -> float:
    """Pairs in which the row of class 1 has the higher score, if intervals are filled evenly.

    Args:
        zeros: Rows of class 0 by first and last narrow interval, of ``size`` in all.
        ones: Rows of class 1.
    """
    filled = []
    for rows in (zeros, ones):
        steps = [0.0] * (size + 1)
        for (first, last), n in rows.items():
            steps[first] += n / (last + 1 - first)
            steps[last + 1] -= n / (last + 1 - first)
        filled.append([*accumulate(steps)])
    below = accumulate(filled[0])
    return sum(
        one * (under - zero / 2)
        for zero, one, under in zip(*filled, below, strict=True)
    )


def _measure_regression(cells: Cells) -> Iterator[tuple[str, float]]:
    rows, total, squares, errors, gaps = (cells.get((n,), 0.0) for n in range(5))
    spread = squares - total * total / rows
    if spread > _SLACK * squares:
        yield "r2", 1 - errors / spread
    yield "rmse", math.sqrt(max(errors, 0.0) / rows)
    yield "mae", gaps / rows


def _share_classes(tally: Tally, cells: Cells, *, rows: int, least: int) -> Cells:
    size = range(tally.size)
    if not cells.keys() <= {(kind, each) for kind in range(3) for each in size}:
        _refuse("it has other classes than its name says")
    _require_counts(cells.values())
    own, right, given = (
        [cells.get((kind, each), 0.0) for each in size] for kind in range(3)
    )
    if sum(own) != rows or sum(given) != rows:
        _refuse("it does not count each row once")
    if any(found > min(own[n], given[n]) for n, found in enumerate(right)):
        _refuse("it finds more rows of a class than there are")
    return WITHHELD if any(0 < each < least for each in own) else cells


def _share_regression(cells: Cells, *, rows: int, digits: int) -> Cells:
    if not cells.keys() <= {(n,) for n in range(5)} or cells.get((0,)) != rows:
        _refuse("it does not count each row once")
    if not all(math.isfinite(each) for each in cells.values()):
        _refuse("a sum of it is not finite")
    mean = cells.get((1,), 0.0) / rows
    spread = cells.get((2,), 0.0) - mean * mean * rows
    if not 10.0**-digits * (1 + abs(mean)) < R2_EXACT * spread:
        return WITHHELD
    return {cell: round(value, digits) for cell, value in cells.items()}


def _share_scores(
    tally: Tally, cells: Cells, *, rows: int, least: int, digits: int
) -> Cells:
    groups = list[list[float]]()  # first, last, zeros, ones, sum of scores
    for first, last in sorted({(cell[1], cell[-1]) for cell in cells if len(cell) > 1}):
        after = groups[-1][1] if groups else -1
        if not after < first <= last < tally.size:
            _refuse("its intervals are not those that its name says")
        values = [
            cells.get((kind, first, last), cells.get((kind, first), 0.0))
            if first == last
            else cells.get((kind, first, last), 0.0)
            for kind in range(3)
        ]
        _require_counts(values[:2])
        count, width = values[0] + values[1], 1 / tally.size
        slack = _SLACK * count + 10.0**-digits
        low, high = first * width * count, (last + 1) * width * count
        if not low - slack <= values[2] <= high + slack:
            _refuse("a sum of scores lies outside of its interval")
        groups.append([float(first), float(last), *values])
    if sum(each[2] + each[3] for each in groups) != rows:
        _refuse("it does not count each row once")
    if any(0 < sum(each[n] for each in groups) < least for n in (2, 3)):
        return WITHHELD
    shared: dict[Cell, float] = {}
    for low, high, zeros, ones, scores in _join_intervals(groups, least):
        place = (int(low), int(high))
        shared |= {(0, *place): zeros, (1, *place): ones}
        shared[2, *place] = round(scores, digits)
    return shared


def _join_intervals(groups: Iterable[list[float]], least: int) -> list[list[float]]:
    """Neighbours joined until each has so many rows; what is left at the end as well."""
    joined = list[list[float]]()
    for each in groups:
        if joined and joined[-1][2] + joined[-1][3] < least:
            _join(joined[-1], each)
        else:
            joined.append(each)
    if len(joined) > 1 and joined[-1][2] + joined[-1][3] < least:
        last = joined.pop()
        _join(joined[-1], last)
    return joined


def _join(into: list[float], after: list[float]) -> None:
    into[1] = after[1]
    for place in (2, 3, 4):
        into[place] += after[place]


def _require_counts(values: Iterable[float]) -> None:
    if not all(each >= 0 and each % 1 == 0 for each in values):  # nor of NaN
        _refuse("a count of it is not a whole number from 0 on")


def _refuse(why: str) -> NoReturn:
    raise JobError(
        "a measure that evaluate() returned is not valid",
        why=why,
        code="wrong-measure",
    )
