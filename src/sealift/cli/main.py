"""`sealift`: find the noun, run it, and turn whatever happens into an exit code.

0 success; 2-7 by the error tree; 1 a bug of ours, whose traceback goes to a log file
and never to the screen; 130 and 143 for SIGINT and SIGTERM. stdout is the result,
stderr the talk. A noun's module is loaded only when it is used, so that `sealift key`
does not load torch.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import sealift
from sealift.cli.buglog import record_bug
from sealift.cli.nouns import NOUNS, joined, module_name
from sealift.cli.results import flush_results, forget_stdout
from sealift.cli.signals import (
    StopRequested,
    follow_parent,
    install_stop_signals,
)
from sealift.errors import SealiftError, UnavailableError, UsageError
from sealift.release.visible import visible

EXIT_BUG = 1
EXIT_PIPE = 128 + signal.SIGPIPE


class Parser(argparse.ArgumentParser):
    """Reports mistakes as one line, through the same door as every other error.

    Words that may be left out may stand anywhere: argparse alone takes them for left out
    as soon as an option stands before them.
    """

    _anywhere = False

    def add_argument(self, *names: Any, **terms: Any) -> argparse.Action:
        """Note words that may be left out."""
        action = super().add_argument(*names, **terms)
        if not action.option_strings and action.nargs in ("?", "*"):
            self._anywhere = True
        return action

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; also called by the parser above, for a noun or a verb."""
        if not self._anywhere:
            return super().parse_known_args(args, namespace)
        self._anywhere = False  # which calls this again, for options and for words
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._anywhere = True

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        raise UsageError(message, fix=f"`{self.prog} --help` says how it is used")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code."""
    install_stop_signals()
    followed = follow_parent()
    words = joined(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(words)
        flush_results()
        return code
    except SystemExit as leaving:  # argparse after --help and --version
        return EXIT_BUG if leaving.code else 0
    except SealiftError as error:
        return _report(error)
    except StopRequested as stop:
        if not followed:  # whoever started us says it
            _say(f"stopped by {stop}")
        return stop.exit_code
    except BrokenPipeError:
        forget_stdout()
        return EXIT_PIPE
    except MemoryError:
        fix = "Free some memory, or use smaller buffers"
        return _report(UnavailableError("out of memory", fix=fix, code="no-memory"))
    except Exception as error:
        _say(record_bug(error))
        return EXIT_BUG


def build_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser: all nouns by name, the one that ``words`` ask for in full."""
    parser = Parser(
        prog="sealift",
        description="Train one model over several parties' sealed data.",
        epilog="Errors end with a name in brackets: `sealift explain NAME` says more.",
    )
    parser.add_argument(
        "--version", action="version", version=f"sealift {sealift.__version__}"
    )
    nouns = parser.add_subparsers(dest="noun", required=True, metavar="NOUN")
    asked = next((word for word in words if not word.startswith("-")), "")
    for noun, summary in NOUNS.items():
        if noun == asked:
            importlib.import_module(module_name(noun)).add_parser(nouns)
        else:
            nouns.add_parser(noun, help=summary)
    return parser


def _run(words: Sequence[str]) -> int:
    args = build_parser(words).parse_args(words)
    code: int = args.run(args)
    return code


def _report(error: SealiftError) -> int:
    _say(f"{error} [{error.code}]")
    return error.exit_code


def _say(line: str) -> None:
    with suppress(OSError):  # nobody may be listening; the exit code still says it
        print(f"sealift: {visible(line)}", file=sys.stderr, flush=True)
