"""Ask for a passphrase: from a file that the user names, or at the terminal.

Never from an argument or the environment: other processes can read those.
"""

from __future__ import annotations

import argparse
import getpass
import sys
from pathlib import Path
from typing import Final

from sealift.errors import MalformedError, UsageError
from sealift.release.files import read_whole

MAX_PASSPHRASE_BYTES: Final = 1024


def add_passphrase_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--passphrase-file``."""
    parser.add_argument(
        "--passphrase-file",
        type=Path,
        metavar="FILE",
        help="read the identity's passphrase from the first line of FILE; "
        "without it the terminal is asked",
    )


def read_passphrase(file: Path | None, *, prompt: str) -> str:
    """The passphrase, without its line end.

    Raises:
        UsageError: without a file and without a terminal.
        UnavailableError: if the file cannot be read.
        MalformedError: if its first line is empty or not UTF-8.
    """
    if file is None:
        return _ask(prompt)
    lines = read_whole(file, MAX_PASSPHRASE_BYTES).splitlines()
    try:
        passphrase = lines[0].decode("utf-8") if lines else ""
    except UnicodeDecodeError:
        raise MalformedError(
            f"{file} is not UTF-8", code="bad-passphrase-file"
        ) from None
    if not passphrase:
        raise MalformedError(
            f"the first line of {file} is empty",
            fix="Put the passphrase there",
            code="bad-passphrase-file",
        )
    return passphrase


def _ask(prompt: str) -> str:
    if not sys.stdin.isatty():
        raise UsageError(
            "a passphrase is needed and there is no terminal to ask",
            fix="Name a file that holds it with --passphrase-file",
            code="no-terminal",
        )
    return getpass.getpass(f"{prompt}: ")
