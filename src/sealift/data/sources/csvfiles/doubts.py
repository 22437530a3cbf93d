"""What a draft doubts of columns that can be read, and yet may mean something else.

Nothing is refused or changed here: a number that stands for nothing, one category in two
spellings and an index among the numbers are all honest tables. Their owner reads a line.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from unicodedata import category, normalize

import numpy as np

from sealift.data.schema.owntable import IN_FILE
from sealift.errors import visible

# As programs and people write into columns of numbers that nothing is there.
_MARKS: Final = (-9, -99, -999, -9999, -99999, 999, 9999, 99999)
_FAR: Final = 3  # times the largest other number
_FEWEST: Final = 10
_FIRST_DAY, _LAST_DAY = 19000101, 21001231
_TRUTHS: Final = frozenset(
    ("yes", "no", "y", "n", "true", "false", "t", "f", "ja", "nein", "j", "oui", "non", "o", "si", "sí")
)  # fmt: skip
_READ_TWICE: Final = re.compile("[ÃÂ][\u0080-\u00bf]|â€|\ufffd")


@dataclass
class Values:
    """Of the numbers of a column.

    Attributes:
        marks: How often each number is there that may stand for nothing.
        lowest: Of the others.
        highest: Of the others.
        counting: Whether each is one more than the one before.
        days: Whether all others can be dates, as 20240131 is one.
    """

    marks: Counter[int] = field(default_factory=Counter)
    lowest: float = np.inf
    highest: float = -np.inf
    counting: bool = True
    days: bool = True

    def look(self, values: Any, times: Any = None) -> None:
        """Note the numbers of a block; ``times`` if they are the different ones alone."""
        if not len(values):
            return
        self.counting &= times is None and (
            len(values) < 2
            or (
                float(values[1]) - float(values[0]) == 1
                and bool((np.diff(values) == 1).all())
            )
        )
        low, high = values.min(), values.max()
        if low in _MARKS or high in _MARKS:
            for mark in _MARKS:
                found = values == mark
                self.marks[mark] += int(
                    found.sum() if times is None else times[found].sum()
                )
            values = values[~np.isin(values, _MARKS)]
            if not len(values):
                return
            low, high = values.min(), values.max()
        self.lowest = min(self.lowest, float(low))
        self.highest = max(self.highest, float(high))
        in_range = low >= _FIRST_DAY and high <= _LAST_DAY
        self.days &= bool(in_range and _can_be_days(values))

    def add(self, more: Values) -> None:
        """The same of another block below."""
        self.counting &= more.counting
        self.marks += more.marks
        self.lowest = min(self.lowest, more.lowest)
        self.highest = max(self.highest, more.highest)
        self.days &= more.days

    def doubts(self, rows: int, *, gaps: bool) -> Iterator[str]:
        """What may be meant by the numbers of so many rows, and what to write then.

        Args:
            rows: With a number.
            gaps: Whether other rows have none.
        """
        for mark, count in self.marks.items():
            below = mark < 0 <= self.lowest
            above = self.lowest >= 0 and mark > _FAR * self.highest
            if count > 1 and (below or above) and self.highest > -np.inf:
                yield (
                    f"{mark} is in {count:,} rows, and {'no other number is negative' if below else 'far above all others'}; if it means that "
                    f'the value is missing, write missing = ["{mark}"] {IN_FILE}'
                )
        if self.marks.total() or rows < _FEWEST or self.highest < self.lowest:
            return
        if self.lowest == self.highest and gaps:
            return  # a flag
        if self.lowest == self.highest:
            yield "it has the same number in every row, so a model learns nothing from it"
        elif self.counting and self.highest - self.lowest == rows - 1:
            yield "it counts the rows; if it is not a measurement, add it to leave_out"
        elif self.days:
            yield (
                'its numbers look like dates; if they are, write date = "%Y%m%d" and dtype = "int32" '
                "in its field"
            )


def _can_be_days(values: Any) -> bool:
    months, days = values // 100 % 100, values % 100
    return bool(((months >= 1) & (months <= 12) & (days >= 1) & (days <= 31)).all())


def doubt_categories(texts: Sequence[str], name: str) -> Iterator[str]:
    """What is odd about the different texts of a field that become its categories."""
    alike: dict[str, list[str]] = {}
    for text in texts:
        alike.setdefault(_same(text), []).append(text)
    for group in alike.values():
        if len(group) > 1:
            forms = {normalize("NFC", each) for each in group}
            alike_too = len(forms) < len(group)  # also to whoever reads this
            # Whole, as it is to be copied.
            first, *others = (
                visible(json.dumps(each, ensure_ascii=alike_too)) for each in group
            )
            yield (
                f"{' and '.join([first, *others])} look like one category; if they are, write "
                f"{others[0]} = {first} under [synonyms.{name}] {IN_FILE}, and only {first} in categories"
            )
    words = [each[0] for same, each in alike.items() if same in _TRUTHS]
    if words and {"0", "1"} & alike.keys():
        yield (
            f"it has {_quoted(words[0])} beside 0 and 1, which may mean the same; if they do, write which "
            f"is which under [synonyms.{name}] {IN_FILE}"
        )
    if damaged := [text for text in texts if _READ_TWICE.search(text)]:
        yield (
            f"{_quoted(damaged[0])} looks damaged by a program that read the file in another encoding; "
            "export it again from where it comes from"
        )


def _same(text: str) -> str:
    """What is left where case, spaces, forms of one letter and invisible signs do not count."""
    seen = "".join(each for each in text if category(each) != "Cf")
    return " ".join(normalize("NFKC", seen).casefold().split())


def _quoted(text: str) -> str:
    return visible(json.dumps(text[:40], ensure_ascii=False))
