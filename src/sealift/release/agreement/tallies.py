"""Names in an agreement that stand for counts and sums, from which measures are computed.

Most names in ``output.metrics`` are means over rows, such as ``loss``. A name that ends in
``classes_N``, ``scores_N`` or ``regression`` is a *tally*: counts and sums that are added
over all owners, before any ratio is computed from them. A label may stand before it, as in
``tumour_classes_3``. So what leaves, and how much of it, follows from the signed name alone.
Source: spec/recipe.md section Measures.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sealift.errors import quote_foreign

MAX_CLASSES: Final = 64
MAX_BINS: Final = 256
MOST_SHOWN: Final = 24
_FORM: Final = re.compile(
    r"(?:(?P<label>[a-z0-9_]+)_)?(?:(?P<kind>classes|scores)_(?P<size>[1-9][0-9]*)|regression)"
)
_SIZES: Final = {"classes": (2, MAX_CLASSES), "scores": (2, MAX_BINS)}


@dataclass(frozen=True, slots=True)
class Tally:
    """What a name in an agreement stands for.

    Attributes:
        label: Starts the names of its measures; empty, or with ``_`` at its end.
        kind: Which sums they are.
        size: Number of classes, or of intervals of the score; 1 for a regression.
    """

    label: str
    kind: Literal["classes", "scores", "regression"]
    size: int = 1

    @property
    def counted(self) -> str:
        """What is counted or added up, for a sentence."""
        if self.kind == "classes":
            return (
                f"for each of {self.size} classes, how many rows have it, how many the model gives it, and how "
                "many of these are right"
            )
        if self.kind == "scores":
            return (
                f"how many rows of either class have a score in each of at most {self.size} intervals from 0 to "
                "1, and the sum of their scores"
            )
        return "the sums of true values, of their squares, of absolute errors and of their squares"

    @property
    def floor(self) -> str:
        """What keeps few rows from being shown, for a sentence."""
        if self.kind == "classes":
            return "if a class has rows, but fewer than that, none of these counts are shared"
        if self.kind == "scores":
            return (
                "neighbouring intervals are joined until each has as many, and if a class has "
                "rows, but fewer than that, nothing of this is shared"
            )
        return "of values that hardly differ nothing is shared"

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the measures that are computed from it; an undefined one is left out."""
        return tuple(f"{self.label}{name}" for name in self._measures())

    def _measures(self) -> Iterator[str]:
        if self.kind == "regression":
            yield from ("r2", "rmse", "mae")
        elif self.kind == "scores":
            yield from ("auc", "auc_error", "calibration_error")
        else:
            yield from ("accuracy", "majority", "balanced_accuracy")
            classes = [""] if self.size == 2 else [f"_{n}" for n in range(self.size)]
            for each in classes:
                yield from (f"recall{each}", f"precision{each}", f"f1{each}")
            if self.size > 2:
                yield "macro_f1"


def tally_of(name: str) -> Tally | None:
    """What a name stands for; None for a mean over rows, whatever its size would be."""
    found = _FORM.fullmatch(name)
    if found is None:
        return None
    label = f"{found['label']}_" if found["label"] else ""
    if found["kind"] is None:
        return Tally(label, "regression")
    kind: Literal["classes", "scores"] = (
        "classes" if found["kind"] == "classes" else "scores"
    )
    least, most = _SIZES[kind]
    size = int(found["size"][:9])
    return Tally(label, kind, size) if least <= size <= most else None


def say_numbers(
    names: Iterable[str], rows: str, *, least: str, most: str, digits: int, seen_by: str
) -> Iterator[str]:
    """What is measured and counted, what for, and what keeps few rows from being shown.

    Args:
        names: Of an agreement.
        rows: Whose rows, in words.
        least: Fewest rows behind a number, as ``16 rows``.
        most: Most values of one mean in a visit, as ``4 values``.
        digits: Decimal places.
        seen_by: Who sees one owner's numbers, in words.
    """
    tallies = {name: tally_of(name) for name in names}
    if means := [quote_foreign(n) for n, each in tallies.items() if each is None]:
        yield (
            f"Numbers measured on {rows} are shared: {_first(means, ' and ')}. Each is measured on at "
            f"least {least} and rounded to {digits} decimal places; a visit gives at "
            f"most {most} of each. They go to {seen_by}."
        )
    for name, tally in tallies.items():
        if tally is not None:
            yield (
                f"Counts and sums of {rows} are shared as {quote_foreign(name)}: {tally.counted}. All owners' are "
                f"added, and from them are computed: {_first(tally.measures, ', ')}. They cover at least {least}; "
                f"{tally.floor}. Sums are rounded to {digits} decimal places. One owner's counts go to {seen_by}."
            )


def _first(names: Sequence[str], last: str) -> str:
    more = len(names) - MOST_SHOWN
    shown = [*names[:MOST_SHOWN], f"{more} more"] if more > 0 else names
    return last.join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))
