"""What a kind of source is: who reads it, and whether it says what a row is.

Every kind is one file of this folder and one line of the registry (``__init__``). A
kind may need a package that sealift itself does not (``packages``).
"""

from __future__ import annotations

import importlib
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Protocol

from sealift.data.schema.owntable import AS_IT_LOOKS, OwnTable
from sealift.data.schema.rows import Columns, Locate, bad_table
from sealift.data.schema.schema import Field, Schema
from sealift.data.schema.split import Split
from sealift.errors import MalformedError, UnavailableError, UsageError
from sealift.events import Sink


class TableReader(Protocol):
    """One opened source."""

    @property
    def rows(self) -> int:
        """Rows in the table."""

    def columns(self, rows_per_block: int) -> Iterator[Columns]:
        """The rows in order, as columns, at most ``rows_per_block`` at a time."""

    def locate(self, first_row: int) -> Locate:
        """Words for a place in the block that starts at ``first_row``."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a user says about a source beside its schema.

    Attributes:
        fields: Pairs of a field's name and the column that it is in; () for all.
        image_size: Height and width that images are scaled to; None: as they are.
        image_mode: ``"RGB"`` or ``"L"``, to which images are converted.
        vectors: Pairs of a field's name and what its columns are called: ``x*``, or
            ``x..y`` for those from x to y; for drafts of text tables.
        own: What the owner's ``table.toml`` says of a text table.
        split: Which of its rows are read; None: all.
    """

    fields: tuple[tuple[str, str], ...] = ()
    image_size: tuple[int, int] | None = None
    image_mode: str | None = None
    vectors: tuple[tuple[str, str], ...] = ()
    own: OwnTable = AS_IT_LOOKS
    split: Split | None = None

    def column(self, field: str) -> str:
        """The column that a field is in."""
        return dict(self.fields).get(field, field)

    def chosen(self, columns: list[str]) -> list[tuple[str, str]]:
        """Field and column of all that are read.

        Raises:
            UsageError: if a column that was named is not there.
        """
        for _, column in self.fields:
            if column not in columns:
                raise UsageError(
                    f"the source has no column {column!r}",
                    fix=f"It has {', '.join(name[:40] for name in columns[:20])}",
                )
        return list(self.fields) or [(name, name) for name in columns]


NO_OPTIONS = SourceOptions()


@dataclass(frozen=True, slots=True)
class Draft:
    """A schema for its owner to look at.

    Attributes:
        schema: As the source says it, or as its text looks.
        notes: What the owner should know, a line each.
        fits: Whether every cell of the source is known to fit it.
        units: Of a text table: those beside numbers of its columns, all columns together.
    """

    schema: Schema
    notes: tuple[str, ...] = ()
    fits: bool = False
    units: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableSource:
    """One kind of source.

    Attributes:
        name: In words, for errors and help.
        claims: Whether a place (a path or words) looks like it.
        open: Opens it; only then packages are needed.
        infer: Its schema as it says it itself; None if it does not.
        check: Looks at every row of an opened one, and says all that is wrong; None if
            rows are looked at as they are read.
        has_names: Whether a column of a place names its classes, so that their numbers
            become the schema's; else its numbers are taken as they are.
    """

    name: str
    claims: Callable[[str], bool]
    open: Callable[[str, Schema, SourceOptions], TableReader]
    infer: Callable[[str, SourceOptions], Schema] | None = None
    check: Callable[[Any, Sink], None] | None = None
    has_names: Callable[[str, str], bool] = lambda place, column: False


def with_suffix(*suffixes: str) -> Callable[[str], bool]:
    """Claims files by how their names end."""
    return lambda place: Path(place).suffix.lower() in suffixes


def refuse_options(options: SourceOptions, kind: str) -> None:
    """Refuse what the user said and this kind of source does not heed.

    Raises:
        UsageError: names it.
    """
    if options.fields:
        raise UsageError(f"--fields cannot be used with {kind}", fix="Use --schema")
    refuse_image_options(options, kind)


def refuse_vectors(options: SourceOptions) -> None:
    """Refuse vectors for a source that says its schema itself.

    Raises:
        UsageError: if there are any.
    """
    if options.vectors:
        raise UsageError("--vector can only be used with .csv and .tsv files")


def refuse_image_options(options: SourceOptions, kind: str) -> None:
    """The same, for a kind that has columns to choose from but no images."""
    if options.image_size or options.image_mode:
        raise UsageError(f"--image-size and --image-mode cannot be used with {kind}")


def unclear(what: str, *, why: str = "", fix: str = "") -> MalformedError:
    """A source from which no schema follows."""
    return MalformedError(what, why=why, fix=fix, code="no-schema")


def made_field(
    name: str, dtype: str, shape: tuple[int, ...], source: str, **more: Any
) -> Field:
    """A field, or why there is none of that name.

    Raises:
        MalformedError: ``no-schema``.
    """
    try:
        return Field(name, dtype, shape, **more)
    except MalformedError as error:
        raise unclear(
            f"{source}: {name[:80]!r} cannot be the name of a field",
            why=error.what,
            fix=f"Give it a name with --fields {quote('NAME=' + name[:80])}",
        ) from None


def field_name(column: str, taken: set[str]) -> str:
    """A name that a field may have, as near to the column's as can be."""
    plain = unicodedata.normalize("NFKD", column.casefold())
    plain = plain.encode("ascii", "ignore").decode()
    name = re.sub(r"[^a-z0-9]+", "_", plain).strip("_")[:58] or "column"
    name = name if name[0].isalpha() else f"c_{name}"
    number, free = 2, name
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    return free


def demand_distinct(names: Sequence[str], source: str) -> None:
    """Refuse a table in which a name does not say which column it is.

    Raises:
        MalformedError: names the column.
    """
    for index, name in enumerate(names):
        if name in names[:index]:
            raise bad_table(
                f"{source} has two columns {name[:80]!r}", fix="Rename one of them"
            )


def require(module: str, *, extra: str, what: str) -> Any:
    """Import a module of an extra.

    Args:
        module: Its import path.
        extra: The extra of sealift that brings it.
        what: What needs it, in words.

    Raises:
        UnavailableError: ``extra-missing``, with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UnavailableError(
            f"{what} needs a package that is not installed",
            why=error,
            fix=f"In Sealift's folder, run: pip install '.[{extra}]'",
            code="extra-missing",
        ) from None
