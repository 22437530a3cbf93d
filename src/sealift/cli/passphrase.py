"""Ask for a passphrase: from a file, from the environment, or at the terminal.

Never from an argument: every process of the machine can read those. The environment is
for machines without a terminal; the variable is removed once read, so that no process
that we start inherits it.
"""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from pathlib import Path
from typing import Final

from sealift.errors import UsageError
from sealift.release.files import read_secret_line

VARIABLE: Final = "SEALIFT_PASSPHRASE"


def add_passphrase_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--passphrase-file``."""
    parser.add_argument(
        "--passphrase-file",
        type=Path,
        metavar="FILE",
        help="read the identity's passphrase from the first line of FILE; without it "
        f"{VARIABLE} is used, or the terminal is asked",
    )


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
    if file is not None:
        return read_secret_line(file)
    if VARIABLE in os.environ:
        return os.environ.pop(VARIABLE)
    passphrase = ask_terminal(prompt)
    if twice and ask_terminal(f"{prompt}, once more") != passphrase:
        raise UsageError("the two passphrases differ", code="passphrases-differ")
    return passphrase


def ask_terminal(prompt: str) -> str:
    """Ask without echo.

    Raises:
        UsageError: ``no-terminal``.
    """
    if not sys.stdin.isatty():
        raise UsageError(
            "a passphrase is needed and there is no terminal to ask", code="no-terminal"
        )
    return getpass.getpass(f"{prompt}: ")
