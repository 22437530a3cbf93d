"""Cells that are numbers to a person: with thousands marks, units, a currency."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from unicodedata import category, digit, normalize

import pyarrow as pa
import pyarrow.compute as pc

from sealift.data.schema.owntable import IN_FILE, OwnTable
from sealift.data.schema.schema import Field
from sealift.data.sources.csvfiles.cells import NOTHING, NUMBER
from sealift.data.sources.csvfiles.cleaning import clean
from sealift.errors import visible

_LIKE: Final = re.compile(
    r"([^\d\s.,+-]{0,4})\s*[+-]?\s*([^\d\s.,+-]{0,4})\s*"  # EUR -5, -$5
    r"(\d[\d.,'\u2019 \u00a0\u2009\u202f]*?)\s*([^\d\s.,+-]{0,5})"
)
_SPACED: Final = re.compile(r"\d[ \u00a0\u2009\u202f]\d{3}")
_DIGITS: Final = r"\d[\d.,]*"
_LIMIT: Final = rf"[<>\u2264\u2265]=?\s*[+-]?{_DIGITS}"  # of detection, in a laboratory
# What people and programs write for one number, and what to write for it.
_FORMS: Final = (
    (rf"\(\s*{_DIGITS}\s*\)", "write a minus instead of the brackets"),
    (rf"{_DIGITS}-", "write the minus before the number"),
    (rf"[+-]?{_DIGITS}[dD][+-]?\d+", "write e instead of d"),
    (r'="[^"]*"', "write only what is in the quotation marks"),
    (_LIMIT, "write a number for values beyond a limit, by one rule for all owners"),
    (r"\d{1,3}:\d\d(:\d\d)?", "write one number, such as minutes"),
    (rf"{_DIGITS}\s*/\s*{_DIGITS}", "make a column of each of the two numbers"),
    (r"\[.*\]|\{.*\}", "make a column of each value in it"),
)
_SPACES: Final = str.maketrans(dict.fromkeys("\u00a0\u2009\u202f", " "))
_MOST_UNITS: Final = 4
# So many different numbers, beside so few texts, that these may stand for nothing.
_SURELY_NUMBERS: Final = 10
_MOST_MARKS: Final = 8
_PLAIN: Final = "0123456789.,+-eE"
_UNITS: Final = {
    "%", "‰", "°", "°C", "°F", "kg", "g", "mg", "µg", "μg", "km", "m", "cm", "mm", "l", "L", "ml",
    "mL", "dl", "h", "min", "s", "ms", "EUR", "USD", "GBP", "CHF", "JPY", "CNY", "INR", "PLN", "CZK", "HUF",
    "RON", "SEK", "NOK", "DKK", "RUB", "UAH", "TRY", "BRL", "CAD", "AUD", "zł", "Kč", "kr", "Fr.",
}  # fmt: skip
_PARTS: Final = ("%", "‰")  # 50 % is 0.5 in other cells
_FIELD: Final = Field("x", "float64")


@dataclass(frozen=True, slots=True)
class LikeNumbers:
    """How cells are written that look like numbers.

    Attributes:
        text: One of them that does not read as a number.
        own: With which they do.
        fix: What to do to the file, where no setting makes numbers of them.
    """

    text: str
    own: OwnTable
    fix: str = ""

    @property
    def advice(self) -> str:
        """What an owner writes, in words."""
        if self.fix:
            return self.fix
        lines = [
            f'{key} = "{getattr(self.own, key)}"'
            for key in ("thousands", "decimal")
            if getattr(self.own, key)
        ]
        if self.own.units:
            units = ", ".join(f'"{unit}"' for unit in self.own.units)
            lines.append(f"units = [{units}]")
        return f"write {' and '.join(map(visible, lines))} {IN_FILE}"


def look_like_numbers(texts: Sequence[str], known: OwnTable) -> LikeNumbers | None:
    """How to read texts as numbers, if nine of ten can be; None if they cannot.

    Args:
        texts: Cells of a column, of which not all are numbers; empty ones do not count.
        known: What is said of the file already.
    """
    filled = [text.strip() for text in texts if text.strip().lower() not in NOTHING]
    strange = [text for text in filled if not re.fullmatch(_NUMBER, text, re.ASCII)]
    numbers = len(filled) - len(strange)
    if strange and (fix := _odd_form(strange, alone=len(filled) == len(strange) > 1)):
        return LikeNumbers(shown(strange[0]), known, fix)
    without_digits = not any(
        map(str.isdigit, "".join(text for text in strange if text[0] != "#"))
    )
    if (
        numbers >= _SURELY_NUMBERS
        and 0 < len(strange) <= _MOST_MARKS
        and without_digits
    ):
        marks = ", ".join(json.dumps(text, ensure_ascii=False) for text in strange)
        fix = f"write missing = [{visible(marks)}] {IN_FILE}, if such cells mean that the value is missing"
        return LikeNumbers(shown(strange[0]), known, fix)
    found = [match for text in strange if (match := _LIKE.fullmatch(text))]
    if not strange or len(found) < 0.9 * len(strange):
        return None
    units = Counter(unit for match in found for unit in match.group(1, 2, 4) if unit)
    if len(units) > _MOST_UNITS or not all(map(_is_unit, units)):
        return None
    if len({normalize("NFKC", unit) for unit in units}) > 1:
        names = " and ".join(map(visible, units))
        return LikeNumbers(
            shown(strange[0]),
            known,
            f"convert them to one unit: the column has {names}",
        )
    if numbers and not units.keys().isdisjoint(_PARTS):
        fix = "write all cells with the percent sign, or none"
        return LikeNumbers(shown(strange[0]), known, fix)
    digits = [match[3] for match in map(_LIKE.fullmatch, filled) if match]
    for thousands, decimal in _marks(digits):
        own = replace(known, thousands=thousands, decimal=decimal)
        own = replace(own, units=tuple(dict.fromkeys((*known.units, *units))))
        cleaned = clean(pa.array(filled, pa.string()), _FIELD, own)
        read = pc.sum(pc.match_substring_regex(cleaned, NUMBER)).as_py() or 0
        if own != known and read >= 0.9 * len(filled):
            return LikeNumbers(shown(strange[0]), own)
    return None


def _odd_form(texts: Sequence[str], *, alone: bool) -> str:
    """What to write for numbers of one form that is none of a number's; "" if there is none.

    ``alone``: without a number beside them, ``<5`` and ``>5`` are two categories.
    """
    for form, fix in _FORMS:
        all_of_it = all(re.fullmatch(form, text) for text in texts)
        if all_of_it and not (alone and form == _LIMIT):
            return fix
    if not all(map(_is_foreign, texts)):
        return ""
    odd = next(each for each in texts[0] if each not in _PLAIN)
    return f"write {_in_ascii(texts[0])}, without the character U+{ord(odd):04X}"


def shown(text: str) -> str:
    """The beginning of a cell, with plain spaces."""
    return text[:40].translate(_SPACES)


def _in_ascii(text: str) -> str:
    """The same number, if it is one, in digits, marks and signs that are ASCII."""
    found = ""
    for each in normalize("NFKC", text):
        if category(each) == "Nd":
            found += str(digit(each))
        elif each == "\u2212" or category(each) == "Pd":
            found += "-"
        elif category(each) != "Cf":
            found += {"\u066b": ".", "\u066c": ""}.get(each, each)
    return found.strip()


def _is_foreign(text: str) -> bool:
    """Whether it is a number but for digits, signs or invisible characters beyond ASCII."""
    return not text.isascii() and bool(re.fullmatch(_NUMBER, _in_ascii(text), re.ASCII))


def _is_unit(text: str) -> bool:
    """Whether people write it beside a number; P7 and text 7 are no numbers."""
    return text in _UNITS or all(category(each) == "Sc" for each in text)


def _marks(digits: Sequence[str]) -> list[tuple[str, str]]:
    """What may part thousands and decimals, the likeliest first."""
    if any("'" in each or "\u2019" in each for each in digits):
        return [("'", "")]
    if any(map(_SPACED.search, digits)):
        return [(" ", ","), (" ", "")] if any("," in d for d in digits) else [(" ", "")]
    commas = any("," in each for each in digits)
    points = any("." in each for each in digits)
    both = [each for each in digits if "," in each and "." in each]
    if any(each.rindex(",") < each.index(".") for each in both):
        return [(",", ".")]
    if both:
        return [(".", ",")]
    if commas and any(each.count(",") > 1 for each in digits):
        return [(",", ".")]
    if points and any(each.count(".") > 1 for each in digits):
        return [(".", ",")]
    return [("", "")] if not (commas and points) else [(".", ","), (",", ".")]


_NUMBER: Final = r"[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?"
