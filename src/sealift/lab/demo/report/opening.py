"""The head of the page: three sentences that say what happened, then the figures."""

from __future__ import annotations

from collections.abc import Iterator

from sealift.attest.level import protects_nobody
from sealift.lab.demo.outcome import Outcome
from sealift.lab.demo.report.markup import Markup, element
from sealift.lab.demo.words import say_banner, say_bytes, say_list, say_sandbox
from sealift.lab.worlds.folder import OWNERS


def opening(outcome: Outcome) -> Iterator[Markup]:
    """Title, three sentences, tiles."""
    yield element("p", _eyebrow(outcome), class_="eyebrow")
    yield element("h1", "Three owners, one model, no shared data")
    told = _local(outcome) if outcome.plan == "local" else _travelled(outcome)
    yield element("ol", [element("li", line) for line in told], class_="told")
    yield element("div", [_tile(*tile) for tile in _tiles(outcome)], class_="tiles")


def _eyebrow(outcome: Outcome) -> str:
    return f"Sealift demo · {outcome.task.name} · plan {outcome.plan}"


def _travelled(outcome: Outcome) -> Iterator[str]:
    words, progress = outcome.task.words, outcome.progress
    yield (
        f"{say_list(OWNERS).capitalize()} sealed their {words.rows} at home and signed "
        "one agreement about who may do what with them."
    )
    yield (
        f"One accelerator visited them {len(progress.verified)} times, each time under "
        f"a fresh key and a lease of that visit alone; {_cargo(outcome)}; and the model "
        f"that left it at the end, sealed for its owner, {_result(outcome)}."
    )
    yield f"{_attacks(outcome)}; {_doubts(outcome)}."


def _local(outcome: Outcome) -> Iterator[str]:
    words = outcome.task.words
    yield f"Three owners, {say_list(OWNERS)}, sealed their {words.rows} at home."
    yield (
        "One process read all of them with everybody's keys and trained: the reference "
        f"that travelling must equal bit for bit. The model {_result(outcome)}."
    )
    yield "Nobody was kept from anything here, nothing was attacked, nothing was logged."


def _cargo(outcome: Outcome) -> str:
    if outcome.travel.mixed:
        return "it trained across the rows of all owners, and scrubbed each visit's"
    if outcome.travel.buffers == 2:
        return "one owner's rows loaded while another's were trained on, then scrubbed"
    return "each owner's rows were gone before the next owner was met"


def _result(outcome: Outcome) -> str:
    headline, words = outcome.task.headline, outcome.task.words
    joint = headline.say(outcome.together[headline.name])
    low, high = _alone(outcome)
    return (
        f"{words.result.format(joint)}, where each owner's own model "
        f"{words.reaches} {headline.say(low)} to {headline.say(high)}"
    )


def _alone(outcome: Outcome) -> tuple[float, float]:
    values = [found[outcome.task.headline.name] for found in outcome.alone.values()]
    return min(values), max(values)


def _attacks(outcome: Outcome) -> str:
    tried, refused = len(outcome.attacks), len(outcome.refused)
    if not tried:
        return "No holder attacked"
    holders = say_list(sorted({attack.holder for attack in outcome.attacks}))
    if refused == tried:
        return f"{holders.capitalize()}'s holder attacked {tried} times and was refused"
    return f"{holders.capitalize()}'s holder attacked {tried} times, refused {refused}"


def _doubts(outcome: Outcome) -> str:
    checked = (
        "afterwards some of what the parties keep did not verify, see below"
        if outcome.verdict.failures
        else "afterwards logs, receipts and model verified from what the parties keep"
    )
    if not protects_nobody(outcome.level):
        return f"{checked}; {say_sandbox(outcome.sandbox)}"
    return f"{checked}; but all of this is a rehearsal: {say_banner(outcome.level)}"


def _tiles(outcome: Outcome) -> Iterator[tuple[str, str, str]]:
    headline, progress = outcome.task.headline, outcome.progress
    yield (
        headline.say(outcome.together[headline.name]),
        f"together: {headline.title}",
        "main",
    )
    low, high = _alone(outcome)
    best = low if headline.lower_is_better else high
    yield headline.say(best), "best owner alone", ""
    if progress.visits:
        yield str(len(progress.verified)), "visits, each with a fresh key", ""
        yield say_bytes(progress.sealed_bytes), "crossed, sealed", ""
        tried, refused = len(outcome.attacks), len(outcome.refused)
        yield f"{refused} of {tried}", "attacks refused", ""
    yield f"{outcome.seconds:.1f} s", "from command to report", ""


def _tile(figure: str, words: str, style: str) -> Markup:
    return element(
        "div",
        element("b", figure),
        element("span", words),
        class_=f"tile {style}".strip(),
    )
