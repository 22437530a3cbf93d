"""The closed list of operations of a graph recipe; `operations.toml` has it. No torch here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sealift.codec import parse_toml

_TABLE: Final = Path(__file__).with_suffix(".toml")
_ARGUMENT: Final = re.compile(
    r"(\w+):([TNSIFBDL]\??\*?\??)(?:\(([\w,]+)\))?(?:=(\w+))?"
)
_NOTHING: Final = object()
# BatchNorm while training: GroupNorm does not.
_MIXES_ROWS: Final = frozenset({"_native_batch_norm_legit_functional"})


@dataclass(frozen=True, slots=True)
class Argument:
    """What one argument of an operation may be.

    Attributes:
        name: As ATen names it.
        kind: One letter: see `operations.toml`.
        many: A list of them.
        optional: Or nothing.
        items_optional: Or nothing in a place of the list.
        words: What a word may be.
        by_name: It is given by name.
        default: What the operation uses where it is not given; for those by name.
    """

    name: str
    kind: str
    many: bool
    optional: bool
    items_optional: bool
    words: tuple[str, ...]
    by_name: bool
    default: Any


@dataclass(frozen=True, slots=True)
class GraphOperation:
    """One operation of the list.

    Attributes:
        name: ATen's, with its overload.
        family: Which rule gives its results' shapes.
        arguments: In their order.
        mixes_rows: Whether one row's result depends on others, as no row's gradient may.
    """

    name: str
    family: str
    arguments: tuple[Argument, ...]
    mixes_rows: bool


def _read_operation(name: str, family: str, text: str) -> GraphOperation:
    before, _, after = text.partition("/")
    arguments = [_read_argument(each, by_name=False) for each in before.split()]
    arguments += [_read_argument(each, by_name=True) for each in after.split()]
    return GraphOperation(name, family, tuple(arguments), name in _MIXES_ROWS)


def _read_argument(text: str, *, by_name: bool) -> Argument:
    match = _ARGUMENT.fullmatch(text)
    if match is None:
        raise ValueError(f"operations.toml: {text}")
    name, kind, words, default = match.groups()
    letter, marks = kind[0], kind[1:]
    before, many, after = marks.partition("*")
    return Argument(
        name=name,
        kind=letter,
        many=bool(many),
        optional="?" in (after if many else before),
        items_optional=bool(many) and "?" in before,
        words=tuple(words.split(",")) if words else (),
        by_name=by_name,
        default=_NOTHING
        if default is None
        else int(default)
        if default.isdigit()
        else default,
    )


def _read_table() -> dict[str, GraphOperation]:
    table = parse_toml(_TABLE.read_bytes(), source=_TABLE.name)
    return {
        name: _read_operation(name, family, text)
        for family, entries in table.items()
        for name, text in entries.items()
    }


OPERATIONS: Final = _read_table()
