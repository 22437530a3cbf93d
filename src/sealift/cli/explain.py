"""`sealift explain NAME`: what an error's name means, and what to do about it."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from sealift.errors import UsageError, catalogue, nearest

WIDTH = 80


def add_parser(subparsers: Any) -> None:
    """Add the noun `explain`."""
    parser = subparsers.add_parser("explain", run=run)
    parser.add_argument(
        "name", nargs="?", help="the name in brackets; without it, all names are listed"
    )


def run(args: argparse.Namespace) -> int:
    """Print the explanation; the exit code."""
    if args.name is None:
        for name in sorted(catalogue()):
            print(name)
        return 0
    name = args.name.strip("[]")
    entry = catalogue().get(name)
    if entry is None:
        raise UsageError(
            f"no error has the name {name[:60]!r}",
            fix=nearest(name, catalogue()) or "`sealift explain` lists all names",
            code="no-explanation",
        )
    for part in entry.values():
        print(textwrap.fill(part, WIDTH))
    return 0
