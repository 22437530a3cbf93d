"""The demo's last words: results, phases, what was verified, what was refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sealift.lab.demo.outcome import Outcome
from sealift.lab.demo.rehearsal import BOUND_S
from sealift.lab.demo.texts import (
    ACT_IN_WORDS,
    ATTACK_IN_WORDS,
    say_banner,
    say_bytes,
    say_loudly,
    say_sandbox,
)
from sealift.lab.worlds.folder import OWNERS
from sealift.lab.worlds.progress import VisitSeen, timed_phases

BAR_WIDTH: Final = 40
ROLES_BAR_S: Final = 8.0
GUEST_BAR_S: Final = 30.0


def print_summary(outcome: Outcome, console: Console) -> None:
    """Print how it ended."""
    console.print()
    console.print(_results(outcome))
    if outcome.plan == "travel":
        console.print()
        console.print(_phases(outcome))
        console.print()
        for line in _attacks(outcome):
            console.print(line)
        for line in _checks(outcome):
            console.print(line)
        for line in _revocation(outcome):
            console.print(line)
    console.print()
    for line in _ending(outcome):
        console.print(line, soft_wrap=True, highlight=False)


def _results(outcome: Outcome) -> Table:
    headline = outcome.task.headline
    better = "less is better" if headline.lower_is_better else "more is better"
    table = _table(f"Everybody's held-out rows: {headline.title} ({better})")
    table.add_column("", min_width=12)
    table.add_column("")
    models = [
        *((f"{owner} alone", found, "red") for owner, found in outcome.alone.items()),
        ("together", outcome.together, "green"),
    ]
    for _ in outcome.task.metrics:
        table.add_column("", justify="right")
    full = headline.full_scale([found[headline.name] for _, found, _ in models])
    for name, found, style in models:
        bar = "█" * round(found[headline.name] / full * BAR_WIDTH)
        said = [metric.say(found[metric.name]) for metric in outcome.task.metrics]
        table.add_row(name, Text(bar, style=style), *said)
    return table


def _phases(outcome: Outcome) -> Table:
    table = _table("Phases of a visit: median in ms; all visits together in s")
    table.add_column("holder")
    table.add_column("visits", justify="right")
    verified = outcome.progress.verified
    phases = timed_phases(verified)
    for name in (*phases, "whole", "sealed"):
        table.add_column(name, justify="right")
    for owner in OWNERS:
        visits = [visit for visit in verified if visit.holder == owner]
        table.add_row(
            owner, *_cells(visits, phases, lambda values: f"{median(values) * 1e3:.1f}")
        )
    table.add_row("in all", *_cells(verified, phases, lambda v: f"{sum(v):.2f}"))
    return table


def _cells(
    visits: list[VisitSeen], phases: list[str], say: Callable[[list[float]], str]
) -> Iterator[str]:
    yield str(len(visits))
    for name in phases:
        yield say([visit.phases_s.get(name, 0.0) for visit in visits])
    yield say([sum(visit.phases_s.values()) for visit in visits])
    yield say_bytes(sum(visit.sealed_bytes for visit in visits))


def _attacks(outcome: Outcome) -> Iterator[Text]:
    refused = {id(attack) for attack in outcome.refused}
    for attack in outcome.attacks:
        good = id(attack) in refused
        line = _mark(good)
        line.append(f"{attack.holder} {ATTACK_IN_WORDS[attack.name]}: ")
        line.append("refused" if good else "NOT REFUSED", style="bold")
        line.append(f" [{attack.reason}], visit revoked, ")
        line.append(f"{say_bytes(attack.scrubbed_bytes)} scrubbed; no row was used")
        yield line


def _checks(outcome: Outcome) -> Iterator[Text]:
    verdict = outcome.verdict
    entries = sum(log.size for log in verdict.logs)
    yield _mark(verdict.log_verified).append(
        f"audit logs of {len(verdict.logs)} owners, {entries} entries: "
        "each continues the heads that the other owners kept"
    )
    yield _mark(verdict.receipts_verified).append(
        f"{len(verdict.receipts)} receipts: signature, evidence, content, log heads"
    )
    yield _mark(verdict.scrub_verified).append(
        f"{len(verdict.receipts)} scrub reports: {say_bytes(verdict.scrubbed_bytes)} "
        "overwritten, read back as zero"
    )
    yield _mark(verdict.model_verified).append(
        f"model of {verdict.parameters:,} parameters opened with its owner's key: "
        f"its weights are the manifest's, {outcome.weights[:19]}…"
    )
    for failure in verdict.failures:
        yield _mark(False).append(failure, style="red")


def _revocation(outcome: Outcome) -> Iterator[Text]:
    found = outcome.revocation
    if found is None:
        return
    rules = ", ".join(f"{owner} [{rule}]" for owner, rule in found.rules.items())
    yield _mark(found.held).append(
        f"second act: the host {ACT_IN_WORDS}; lease revoked by {rules or 'nobody'}; "
        f"{found.say_stop()} (bar: {BOUND_S:g} s), "
        f"{say_bytes(found.scrubbed_bytes)} scrubbed"
    )


def _ending(outcome: Outcome) -> Iterator[Text]:
    yield Text(f"report   {outcome.world.report}")
    yield Text(f"model    {outcome.world.model}")
    line = Text("time     ")
    line.append(_against("in all", outcome.seconds, outcome.bar_s))
    if outcome.plan == "travel":
        line.append(_against(", all roles up after", outcome.roles_up_s, _bar(outcome)))
    yield line
    rest = f"; {say_sandbox(outcome.sandbox)}" if outcome.plan == "travel" else ""
    loud = f"{say_loudly(outcome.level)}: {say_banner(outcome.level)}{rest}"
    yield Text(loud, style="bold red")


def _bar(outcome: Outcome) -> float:
    """A guest boots before the roles start, where there is one."""
    return ROLES_BAR_S if outcome.revocation is None else GUEST_BAR_S


def _against(what: str, seconds: float, bar_s: float) -> str:
    return f"{what} {seconds:.1f} s (bar: {bar_s:g} s)"


def _mark(good: bool) -> Text:
    return Text("✓ ", style="bold green") if good else Text("✗ ", style="bold red")


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="dim",
    )
