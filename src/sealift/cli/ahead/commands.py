"""The commands that can look ahead: their parsers with the flags for it, and who is run.

What looks is loaded when it is asked to.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

DRY: Final = (
    "only show what would run where, who would see what, and what would be refused"
)
CHECK: Final = "only check data, keys, code, evidence, clock and the connection to the orchestrator"


@dataclass(frozen=True, slots=True)
class Look:
    """What is run in place of a command."""

    module: str
    name: str

    def __call__(self, args: argparse.Namespace) -> int:
        """Look; the exit code."""
        code: int = getattr(
            import_module(f"sealift.cli.ahead.{self.module}"), self.name
        )(args)
        return code


def add_host(nouns: Any) -> None:
    """Add `host`."""
    from sealift.cli.meeting.host import add_parser

    add_parser(nouns)
    _add_look(nouns.choices["host"], "dry_run", DRY, "hosting")


def add_join(nouns: Any) -> None:
    """Add `join` with a job."""
    from sealift.cli.roles.join import add_parser

    add_parser(nouns)
    _add_look(nouns.choices["join"], "dry_run", DRY, "joining")
    _add_look(nouns.choices["join"], "check", CHECK, "joining")


def add_invited(nouns: Any) -> None:
    """Add `join` with an invitation."""
    from sealift.cli.meeting.guest import add_parser

    add_parser(nouns)
    text = "only check data, key, torch, clock and the connection to the host"
    _add_look(nouns.choices["join INVITATION"], "check", text, "inviting")


def add_train(nouns: Any) -> None:
    """Add `train`."""
    from sealift.cli.train import add_parser

    add_parser(nouns)
    _add_look(nouns.choices["train"], "dry_run", DRY, "training")


def _add_look(parser: Any, name: str, text: str, module: str) -> None:
    """Add a flag that has the module's function of its name run."""
    parser.add_argument(
        f"--{name.replace('_', '-')}",
        dest="run",
        action="store_const",
        const=Look(module, name),
        help=text,
    )
