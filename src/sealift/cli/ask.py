"""Plain questions at a terminal: one line each, answered by typing."""

from __future__ import annotations

import shlex
import sys
from typing import Final

from sealift.errors import UsageError
from sealift.release.visible import ascii_only

YES: Final = frozenset({"y", "yes"})


def has_terminal() -> bool:
    """Whether somebody can answer."""
    return sys.stdin.isatty()


def ask_line(question: str, default: str = "") -> str:
    """One answer; empty takes the default. Asked again until there is one.

    Raises:
        UsageError: ``no-answer``, if the input ends.
    """
    shown = f"{question} [{default}]: " if default else f"{question}: "
    while True:
        print(ascii_only(shown), end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            raise UsageError("nobody answered", code="no-answer")
        answer = line.strip() or default
        if answer:
            return answer


def ask_words(question: str, default: str = "") -> list[str]:
    """Several answers on one line, quoted as for a shell; ``-`` for none."""
    answer = ask_line(question, default)
    return [] if answer == "-" else shlex.split(answer)


def confirm(
    question: str,
    *,
    yes: bool,
    fix: str = "Read it with `sealift agreement check`, then give --yes",
) -> None:
    """Go on only if somebody said yes.

    Raises:
        UsageError: ``not-confirmed``.
    """
    if yes:
        return
    if not has_terminal():
        raise UsageError(
            "nobody said yes",
            why="there is no terminal to ask",
            fix=fix,
            code="not-confirmed",
        )
    if ask_line(f"{question} (yes/no)", "no").lower() not in YES:
        raise UsageError("nothing was done", why="not yes", code="not-confirmed")
