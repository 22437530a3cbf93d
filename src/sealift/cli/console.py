"""What is asked at a terminal, passphrases above all, and what is written to stdout.

A passphrase comes from a file, from the environment or from the terminal, never from an
argument: every process of the machine can read those. The environment is
for machines without a terminal; the variable is removed once read, so that no process
that we start inherits it.

stdout is the result: where it cannot be written, that is an error like any other.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import shlex
import sys
import termios
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sealift.errors import (
    UnavailableError,
    UsageError,
    ascii_only,
    for_screen,
    visible,
)
from sealift.release.files import read_given_passphrase, said_of_others

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
            raise UsageError("the question was not answered", code="no-answer")
        answer = line.strip() or default
        if answer:
            return answer


def ask_afresh(question: str, default: str = "") -> str:
    """One answer that was typed after its question was shown.

    What was typed ahead, say a second ``y`` of somebody who waited, answers something
    that nobody has read yet, so it is dropped.
    """
    if has_terminal():
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    return ask_line(question, default)


def ask_words(question: str, default: str = "") -> list[str]:
    """Several answers on one line, quoted as for a shell; ``-`` for none."""
    answer = ask_line(question, default)
    return [] if answer == "-" else shlex.split(answer)


def confirm(
    question: str,
    *,
    yes: bool,
    fix: str = "Read it with `sealift agreement check`, then add --yes",
) -> None:
    """Go on only if somebody said yes.

    Raises:
        UsageError: ``not-confirmed``.
    """
    if yes:
        return
    if not has_terminal():
        raise UsageError(
            "nobody confirmed this",
            why="there is no terminal to ask",
            fix=fix,
            code="not-confirmed",
        )
    if ask_afresh(f"{question} (yes/no)", "no").lower() not in YES:
        raise UsageError(
            "nothing was done", why="the answer was no", code="not-confirmed"
        )


if TYPE_CHECKING:
    from sealift.crypto.identity import Identity


def read_passphrase(file: Path | None, *, prompt: str, twice: bool = False) -> str:
    """The passphrase, without its line end.

    Args:
        file: Where it stands, if the user named a file.
        prompt: What the terminal shows.
        twice: Ask the terminal twice, for a passphrase that is being chosen.

    Raises:
        UsageError: without file, variable and terminal, or if two answers differ.
        UnavailableError: if the file cannot be read.
        MalformedError: if its first line is empty or not UTF-8.
    """
    given = read_given_passphrase(file, os.environ)
    if given is not None:
        return given
    passphrase = ask_terminal(prompt)
    if twice and ask_terminal(f"{prompt}, again") != passphrase:
        raise UsageError("the two passphrases differ", code="passphrases-differ")
    return passphrase


def ask_terminal(prompt: str) -> str:
    """Ask without echo.

    Raises:
        UsageError: ``no-terminal``.
    """
    if not sys.stdin.isatty():
        raise UsageError(
            "there is no terminal to ask for the passphrase", code="no-terminal"
        )
    return getpass.getpass(f"{prompt}: ")


def say(line: str) -> None:
    """A line for people, beside the result; one with colours is no longer than a screen."""
    shown = f"sealift: {line}"
    if "\x1b" not in line:
        shown = for_screen(shown, sys.stderr)
    print(shown, file=sys.stderr, flush=True)


def show(
    facts: Mapping[str, Any], *, as_json: bool, width: int, gap: str = "  "
) -> None:
    """The result: one line of JSON, or a line for each fact, its name ``width`` wide.

    Of a fact that is several numbers by name each has its line.
    """
    if as_json:
        print(json.dumps(facts))
        return
    for name, value in facts.items():
        several = isinstance(value, Mapping)
        for number, line in enumerate(columns(value) if several else [value]):
            print(visible(f"{'' if number else name:<{width}}{gap}{line}"))


def columns(facts: Mapping[str, Any], least: int = 0) -> list[str]:
    """A line for each fact; values stand below each other behind the longest name."""
    width = max([least, *map(len, facts)])
    return [f"{name:<{width}}  {value}" for name, value in facts.items()] or ["none"]


def print_result(line: str) -> None:
    """Print a line now, for whoever reads along.

    Raises:
        UnavailableError: ``cannot-write``, if the disk behind stdout is full.
        BrokenPipeError: if nobody reads any more.
    """
    try:
        print(line)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritten(error) from None
    flush_results()


def flush_results() -> None:
    """Notice a full disk behind stdout while an exit code can still say so.

    Raises:
        UnavailableError, BrokenPipeError: as ``print_result``.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritten(error) from None


def forget_stdout() -> None:
    """Let the interpreter's own flush at exit find a place that takes everything."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def unwritten(error: OSError) -> UnavailableError:
    """What to say of results that did not go out; nothing more goes there."""
    forget_stdout()
    return UnavailableError("cannot write the output", why=error, code="cannot-write")


def unlock(args: argparse.Namespace, key: Path, prompt: str = "") -> Identity:
    """The identity of a file, opened with the passphrase of ``--passphrase-file``.

    Raises:
        SealiftError: as ``read_passphrase`` and ``load_identity``.
    """
    from sealift.crypto.identity import load_identity

    prompt, file = prompt or f"passphrase of {key.name}", args.passphrase_file
    identity = load_identity(key, read_passphrase(file, prompt=prompt))
    for sentence in said_of_others(key, *([file] if file else [])):
        say(sentence)
    return identity
