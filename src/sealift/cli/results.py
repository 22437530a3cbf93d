"""stdout is the result: where it cannot be written, that is an error like any other."""

from __future__ import annotations

import os
import sys

from sealift.errors import UnavailableError


def print_result(line: str) -> None:
    """Print a line now, for whoever reads along.

    Raises:
        UnavailableError: ``cannot-write``, if the disk behind stdout is full.
        BrokenPipeError: if nobody reads any more.
    """
    try:
        print(line)
    except OSError as error:
        raise _unwritten(error) from None
    flush_results()


def flush_results() -> None:
    """Notice a full disk behind stdout while an exit code can still say so.

    Raises:
        UnavailableError, BrokenPipeError: as ``print_result``.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        raise _unwritten(error) from None


def forget_stdout() -> None:
    """Let the interpreter's own flush at exit find a place that takes everything."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unwritten(error: OSError) -> Exception:
    if isinstance(error, BrokenPipeError):
        return error
    forget_stdout()
    return UnavailableError("cannot write the output", why=error, code="cannot-write")
