"""The demo's last words: results, phases, what was verified, what was refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sealift.lab.demo.outcome import TOGETHER, Outcome, phase_table, was_refused
from sealift.lab.demo.rehearsal import BOUND_S
from sealift.lab.demo.texts import (
    ACT_IN_WORDS,
    ATTACK_IN_WORDS,
    say_banner,
    say_loudly,
    say_sandbox,
)
from sealift.lab.worlds import cheating
from sealift.lab.worlds.progress import AttackSeen
from sealift.view.words import say_bytes

BAR_WIDTH: Final = 40
ROLES_BAR_S: Final = 8.0
GUEST_BAR_S: Final = 30.0


def print_summary(outcome: Outcome, console: Console) -> None:
    """Print how it ended."""
    console.print()
    console.print(_results(outcome))
    if outcome.plan in ("travel", "outsource"):
        console.print()
        console.print(_phases(outcome))
        console.print()
        for line in _attacks(outcome):
            console.print(line)
        for line in _checks(outcome):
            console.print(line)
        for line in _revocation(outcome):
            console.print(line)
    elif outcome.plan == "ddp":
        console.print()
        for line in _checks(outcome):
            console.print(line)
    console.print()
    for line in _ending(outcome):
        console.print(line, soft_wrap=True, highlight=False)


def _results(outcome: Outcome) -> Table:
    headline, *_ = metrics = outcome.task.metrics
    better = "less is better" if headline.lower_is_better else "more is better"
    table = _table(f"Everybody's held-out rows: {headline.title} ({better})")
    table.add_column("", min_width=12)
    table.add_column("")
    for _ in metrics:
        table.add_column("", justify="right")
    for model in outcome.models:
        style = "green" if model.name == TOGETHER else "red"
        bar = Text("█" * round(model.share * BAR_WIDTH), style=style)
        said = [metric.say(model.metrics[metric.name]) for metric in metrics]
        table.add_row(model.name, bar, *said)
    return table


def _phases(outcome: Outcome) -> Table:
    table, (columns, rows) = (
        _table("Phases: medians of one visit; of all visits together"),
        phase_table(outcome.progress),
    )
    for name in columns:
        table.add_column(name, justify="left" if name is columns[0] else "right")
    for row in rows:
        table.add_row(*row)
    return table


def _attacks(outcome: Outcome) -> Iterator[Text]:
    for attack in outcome.attacks:
        good = was_refused(attack)
        line = _mark(good)
        line.append(f"{attack.holder} {ATTACK_IN_WORDS[attack.name]}: ")
        line.append("refused" if good else "NOT REFUSED", style="bold")
        line.append(f" [{attack.reason}], {_after(attack)}")
        yield line


def _after(attack: AttackSeen) -> str:
    if attack.name in cheating.TRIES:
        return f"{attack.visit} was made again under new masks"
    scrubbed = say_bytes(attack.scrubbed_bytes)
    return f"visit revoked, {scrubbed} scrubbed; no row was used"


def _checks(outcome: Outcome) -> Iterator[Text]:
    for good, words in outcome.verdict.checks:
        yield _mark(good).append(words)
    for failure in outcome.verdict.failures:
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
    if outcome.plan in ("travel", "outsource"):
        line.append(_against(", all roles up after", outcome.roles_up_s, _bar(outcome)))
    yield line
    rest = f"; {say_sandbox(outcome.sandbox)}" if outcome.plan != "local" else ""
    loud = f"{say_loudly(outcome.level)}: {say_banner(outcome.level)}{rest}"
    yield Text(loud, style="bold red")


def _bar(outcome: Outcome) -> float:
    """Before the roles start, a guest boots or a server compiles, where there is one."""
    plain = outcome.revocation is None and outcome.plan != "outsource"
    return ROLES_BAR_S if plain else GUEST_BAR_S


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
