"""All that is wrong with a table, told in one go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sealift.data.schema.owntable import IN_FILE
from sealift.errors import MalformedError

SHOWN: Final = 20


class Problems:
    """Collects them; the first ones are shown, the others counted.

    Args:
        source: The file's name.

    Attributes:
        read_as: Which encoding the file was taken for, if a word of it depends on that.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.total = 0
        self.read_as = ""
        self._first: list[tuple[str, str, str]] = []

    def add(self, line: str, *, fix: str, code: str = "bad-row") -> None:
        """One more: where and what; and what to do about it."""
        self.total += 1
        if len(self._first) < SHOWN:
            self._first.append((line, fix, code))

    def count(self, more: int) -> None:
        """So many more, of which nothing is said."""
        self.total += more

    def error(self) -> MalformedError:
        """The one error that tells them all."""
        line, fix, code = self._first[0]
        if self.total == 1:
            why = f"the file was read as {self.read_as}" if self.read_as else ""
            return MalformedError(f"{self.source}, {line}", why=why, fix=fix, code=code)
        fixes = {each for _, each, _ in self._first}
        first = len(self._first)
        shown = "" if self.total <= first else f"the first {first} are shown"
        read = f"the file was read as {self.read_as}" if self.read_as else ""
        tables = any(each == "bad-table" for _, _, each in self._first)
        return MalformedError(
            f"{self.source} has {self.total:,} problems",
            why="; ".join(filter(None, (shown, read))),
            fix=fix
            if len(fixes) == 1
            else "Correct them, write what your file calls its columns and how it is written "
            f"{IN_FILE}, or change the schema",
            code="bad-table" if tables else "bad-row",
            problems=tuple(self._lines(with_fixes=len(fixes) > 1)),
        )

    def _lines(self, *, with_fixes: bool) -> Iterator[str]:
        """The problems, each advice behind the first one that it is about."""
        said = set[str]()
        for each, fix, _ in self._first:
            more = f". {fix}" if with_fixes and fix not in said else ""
            said.add(fix)
            yield f"{self.source}, {each}{more}"

    def demand_none(self) -> None:
        """Go on, if nothing is wrong.

        Raises:
            MalformedError: with all of them.
        """
        if self.total:
            raise self.error()
