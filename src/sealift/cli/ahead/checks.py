"""Checks that go on after one fails, so that all that is wrong is told at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from sealift.errors import SealiftError, visible

Sign = Literal["ok", "no", "--"]


class Unknown(str):
    """A line about what cannot be known yet, or is not asked for; no failure."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of one check.

    Attributes:
        name: What was looked at.
        line: What was found.
        sign: ``ok``; ``no``, it failed; ``--``, it is not known.
        error: That it failed with.
    """

    name: str
    line: str
    sign: Sign
    error: SealiftError | None = None


class Checks:
    """What was checked so far, in order."""

    def __init__(self) -> None:
        self.done: list[Checked] = []

    def look(self, name: str, at: Callable[[], str]) -> None:
        """Check one thing; what it raises is kept."""
        try:
            line = at()
        except SealiftError as error:
            self.done += [
                Checked(name, problem, "no", error)
                for problem in (*getattr(error, "problems", ()), said(error))
            ]
        else:
            sign: Sign = "--" if isinstance(line, Unknown) else "ok"
            self.done.append(Checked(name, line, sign))

    @property
    def refused(self) -> list[Checked]:
        """Those that failed."""
        return [each for each in self.done if each.sign == "no"]

    @property
    def exit_code(self) -> int:
        """Of the first that failed; 0 if none did."""
        codes = (each.error.exit_code for each in self.refused if each.error)
        return next(codes, 0)

    def lines(self) -> Iterator[str]:
        """One for each, for people."""
        for each in self.done:
            yield f"{each.sign}  {each.name:<10}{visible(each.line)}"


def said(error: SealiftError) -> str:
    """An error's line, as it stands on a screen."""
    return f"{error} [{error.code}]"
