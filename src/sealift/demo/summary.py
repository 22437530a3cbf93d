"""The demo's last words: results, phases, what was verified, what was refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sealift.demo import cheating
from sealift.demo.folder import OWNERS
from sealift.demo.outcome import BOUND_S, TOGETHER, Outcome, was_refused
from sealift.demo.progress import AttackSeen
from sealift.demo.tasks.task import Sample
from sealift.demo.texts import (
    ACT_IN_WORDS,
    ATTACK_IN_WORDS,
    say_banner,
    say_sandbox,
)
from sealift.release.agreement.phrases import say_list
from sealift.view.words import say_bytes, say_loudly

BAR_WIDTH: Final = 24
ROLES_BAR_S: Final = 8.0
GUEST_BAR_S: Final = 30.0
SAMPLE_LINES: Final = 4


def print_summary(outcome: Outcome, console: Console) -> None:
    """Print how it ended: 24 lines of 100 characters at most, for who has read nothing."""
    console.print(Text(_story(outcome), style="bold"))
    console.print(_results(outcome))
    if outcome.sample is not None:
        console.print(_sample(outcome.sample))
    if outcome.plan != "local":
        lines = [*_attacks(outcome), *_checks(outcome), *_revocation(outcome)]
        for line in lines:
            line.truncate(console.width, overflow="ellipsis")
            console.print(line)
    for line in _ending(outcome):
        console.print(line, soft_wrap=True, highlight=False)


def _story(outcome: Outcome) -> str:
    """What it was about, in two lines."""
    who, words = say_list(OWNERS).capitalize(), outcome.task.words
    visits = len(outcome.progress.verified)
    if outcome.plan == "local":
        return (
            f"One process read the {words.rows} of {say_list(OWNERS)}, with all keys."
        )
    if not visits:
        return (
            f"{who} kept their {words.rows} on machines of their own,\n"
            "and trained one model by exchanging encrypted updates."
        )
    return (
        f"{who} trained one model without showing each other their {words.rows}:\n"
        f"in {visits} visits {say_bytes(outcome.progress.sealed_bytes)} were sent encrypted, "
        "and the memory was overwritten after each visit."
    )


def _sample(sample: Sample) -> Text:
    """The first lines of what the model writes."""
    text = Text(sample.begun, style="bold")
    text.append(sample.made, style="not bold")
    lines = text.split("\n")[:SAMPLE_LINES]
    return Text("\n").join([Text("It writes:"), *lines])


def _results(outcome: Outcome) -> Table:
    metrics = outcome.task.metrics
    table = _table()
    table.add_column("", min_width=12)
    table.add_column("on held-out rows")
    for metric in metrics:
        less = ", less is better" if metric.lower_is_better else ""
        table.add_column(f"{metric.title}{less}", justify="right")
    for model in outcome.models:
        style = "green" if model.name == TOGETHER else "red"
        bar = Text("█" * round(model.share * BAR_WIDTH), style=style)
        said = [metric.say(model.metrics[metric.name]) for metric in metrics]
        table.add_row(model.name, bar, *said)
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
        return f"{attack.visit} was repeated"
    scrubbed = say_bytes(attack.scrubbed_bytes)
    return f"{scrubbed} scrubbed"


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
        f"then the host {ACT_IN_WORDS}; lease revoked by {rules or 'nobody'}; "
        f"{found.say_stop()} (bar: {BOUND_S:g} s), "
        f"{say_bytes(found.scrubbed_bytes)} scrubbed"
    )


def _ending(outcome: Outcome) -> Iterator[Text]:
    yield Text(f"report   {outcome.world.report}")
    yield Text(f"model    {outcome.world.model}")
    line = Text("time     ")
    line.append(_against("in all", outcome.seconds, outcome.bar_s))
    if outcome.plan in ("travel", "outsource"):
        line.append(
            _against(", all processes ready after", outcome.roles_up_s, _bar(outcome))
        )
    yield line
    if outcome.plan != "local":
        yield Text(
            f"code     {say_sandbox(outcome.sandbox).removeprefix('the recipe ')}"
        )
    loud = f"{say_loudly(outcome.level)}: {say_banner(outcome.level)}"
    yield Text(loud, style="bold red")


def _bar(outcome: Outcome) -> float:
    """Before the roles start, a guest boots or a server compiles, where there is one."""
    plain = outcome.revocation is None and outcome.plan != "outsource"
    return ROLES_BAR_S if plain else GUEST_BAR_S


def _against(what: str, seconds: float, bar_s: float) -> str:
    return f"{what} {seconds:.1f} s (bar: {bar_s:g} s)"


def _mark(good: bool) -> Text:
    return Text("✓ ", style="bold green") if good else Text("✗ ", style="bold red")


def _table() -> Table:
    return Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=True,
        header_style="dim",
    )  # fmt: skip
