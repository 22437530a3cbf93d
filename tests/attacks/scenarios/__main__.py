"""``python -m tests.attacks.scenarios``: try the attacks, and show how each is refused."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any, Final

from sealift.cli.arguments import Parser
from sealift.cli.main import run_guarded
from sealift.errors import IntegrityError

BEGINNING: Final = (
    "Each row is an attack on the code that runs in a job, tried here in memory. What "
    "stopped it has a name, which `sealift explain` explains; the control is the same "
    "without the attack, and must succeed, so that a refusal means something."
)


def main(arguments: Sequence[str]) -> int:
    """Try all; the exit code."""
    parser = Parser(
        prog="python -m tests.attacks.scenarios",
        description="Tries each attack on the real session and visit code, in memory, "
        "and beside it a control: the same without the attack, which must succeed.",
    )
    parser.add_flag("--json", "one line of JSON")
    return run_guarded(lambda: run(parser.parse_args(arguments)))


def run(args: argparse.Namespace) -> int:
    """Try all; the exit code.

    Raises:
        IntegrityError: ``attack-succeeded``, with the first that was not refused.
    """
    from tests.attacks.scenarios.table import try_all

    tried = list(try_all())
    if args.json:
        print(json.dumps([_plain(each) for each in tried]))
    else:
        _print(tried)
    bad = next((each for each in tried if not each.good), None)
    if bad is not None:
        raise IntegrityError(
            f"an attack was not refused as it must be: {bad.scenario.attack}",
            why=f"expected {bad.scenario.expected}, found {bad.refusal or 'nothing'}; "
            f"the control {'held' if bad.control_held else 'failed'}",
            code="attack-succeeded",
        )
    return 0


def _plain(each: Any) -> dict[str, Any]:
    scenario = each.scenario
    return {
        "name": scenario.name,
        "claim": scenario.claim,
        "attack": scenario.attack,
        "refused": each.refusal,
        "control": scenario.shown,
        "control_held": each.control_held,
        "good": each.good,
        "missing": each.missing,
    }


def _print(tried: list[Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("", "claim", "attack", "refused as", "control"):
        table.add_column(heading)
    claim = ""
    for each in tried:
        scenario = each.scenario
        mark = "[green]✓[/]" if each.good else "[red]✗[/]"
        control = scenario.shown if each.control_held else "CONTROL FAILED"
        told = scenario.claim if scenario.claim != claim else ""
        claim = scenario.claim
        refused = f"{mark} {each.refusal or 'NOT REFUSED'}"
        if each.missing:
            refused, control = f"- needs {each.missing}", "not tried"
        table.add_row(scenario.name, told, scenario.attack, refused, control)
    wide = None if sys.stdout.isatty() else 150
    console = Console(width=wide, highlight=False)
    console.print(BEGINNING, end="\n\n")
    console.print(table)
    done = [each for each in tried if not each.missing]
    good = sum(each.good for each in done)
    console.print(f"{good} of {len(done)} refused, each beside a control that succeeds")
    if len(done) < len(tried):
        console.print(f"{len(tried) - len(done)} not tried: apt-get install swtpm")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
