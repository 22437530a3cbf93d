"""The demo's report: one HTML file without script, font or picture from anywhere else.

What everybody asks is told by ``view``; the other sections are those of ``results``,
``times``, ``trust`` and ``records``; head and foot are here.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import sealift
from sealift.demo.folder import OWNERS
from sealift.demo.machine import this_machine
from sealift.demo.outcome import Outcome
from sealift.demo.report.records import records, sealed
from sealift.demo.report.results import learning, results
from sealift.demo.report.rounds import rounds
from sealift.demo.report.times import spend, timeline, where_time_went
from sealift.demo.report.trust import refused, revoked, trust
from sealift.demo.texts import (
    DEVELOPMENT_ONLY,
    ONLY_REHEARSED,
    REAL,
    REAL_AT_HOME,
    REAL_REHEARSED,
    REAL_SERVERS,
    SOFTWARE_KEY,
    TOGETHER_THEY_SEE,
    rehearses,
    say_banner,
    say_sandbox,
)
from sealift.release.agreement.explain import say_list
from sealift.release.files import write_whole
from sealift.train.sandbox.confine import Confinement
from sealift.view.markup import Markup, bullets, element, facts, fold, join, section
from sealift.view.officer import SeenRun, for_owners, glossary, who_gave_what
from sealift.view.page import opening, page, tiles
from sealift.view.words import say_bytes, say_loudly


def write_report(outcome: Outcome) -> None:
    """Write ``report.html``, whole or not at all."""
    write_whole(outcome.world.report, render(outcome).encode("utf-8"))


def render(outcome: Outcome) -> str:
    """The page as text."""
    level = outcome.level
    return page(
        f"Sealift demo: three owners, one model, {outcome.task.name}",
        join(element("b", say_loudly(level)), say_banner(level)),
        _sections(outcome),
    )


def _sections(outcome: Outcome) -> Iterator[Markup]:
    """What everybody asks first; how it went is folded away; words come last."""
    yield from _opening(outcome)
    run = _seen(outcome)
    if run is not None:
        yield for_owners(run)
        yield who_gave_what(run)
    yield _honesty(outcome)
    if outcome.progress.visits:
        yield refused(outcome)
        yield revoked(outcome)
        yield from trust(outcome)
    if outcome.alone:
        yield from results(outcome)
    yield fold("Details: learning, times, keys, records, machine", *_how(outcome))
    yield glossary()


def _how(outcome: Outcome) -> Iterator[Markup]:
    if outcome.alone:
        yield from learning(outcome)
    if outcome.progress.visits:
        spending = spend(outcome.progress)
        yield timeline(outcome, spending)
        yield where_time_went(outcome, spending)
        yield sealed(outcome)
        yield records(outcome)
    if outcome.progress.rounds:
        yield from rounds(outcome)
    yield _machine(outcome)


def _seen(outcome: Outcome) -> SeenRun | None:
    """The run as the parties' records tell it; a local run has none."""
    verdict = outcome.verdict
    if verdict.agreement is None or outcome.plan == "local":
        return None
    scrubbed = (
        "After each visit the memory was overwritten and read back as zeros, as the "
        "accelerator's signed receipts state."
    )
    numbers: Counter[str] = Counter()
    for visit in outcome.progress.verified:
        numbers[visit.holder] += len(visit.metrics)
    opened: Counter[str] = Counter()
    for receipt in verdict.receipts:
        opened[receipt.holder] += receipt.cargo_bytes
    return SeenRun(
        agreement=verdict.agreement,
        level=outcome.level,
        visits=dict(Counter(receipt.holder for receipt in verdict.receipts)),
        numbers=dict(numbers),
        opened_bytes=dict(opened),
        scrubbed=scrubbed
        if verdict.scrub_verified
        else "Not all memory was overwritten as it should be.",
        reader="own" if outcome.plan == "ddp" else "one",
        model_bytes=verdict.model_bytes,
        told_by="the verified logs and receipts of the parties show",
    )


def _opening(outcome: Outcome) -> Iterator[Markup]:
    """Title, three sentences that say what happened, tiles with the figures."""
    eyebrow = f"Sealift demo · {outcome.task.name} · plan {outcome.plan}"
    told = _TOLD[outcome.plan](outcome)
    yield opening(eyebrow, "Three owners, one model, no shared data", told)
    yield tiles(_tiles(outcome))


def _travelled(outcome: Outcome) -> Iterator[str]:
    words, travel = outcome.task.words, outcome.travel
    yield (
        f"{say_list(OWNERS).capitalize()} encrypted their {words.rows} and signed one "
        "agreement on who may use them for what."
    )
    cargo = "each owner's rows were overwritten before the next owner's were loaded"
    if travel.mixed:
        cargo = "it trained across the rows of all owners, and overwrote them after each visit"
    elif travel.buffers == 2:
        cargo = "it loaded an owner's rows during another's visit, and overwrote both"
    yield (
        f"One accelerator visited them {len(outcome.progress.verified)} times, each time "
        f"with a fresh key and a lease for that visit only; {cargo}. The model, encrypted "
        f"for its owner, {_result(outcome)}."
    )
    checked = (
        "some records of the parties are not valid, see below"
        if outcome.verdict.failures
        else "then logs, receipts and model were verified from the parties' records"
    )
    yield (
        f"{_attacks(outcome)}; {checked}. All of this is a rehearsal: "
        f"{say_banner(outcome.level)}."
    )


def _local(outcome: Outcome) -> Iterator[str]:
    words = outcome.task.words
    yield f"Three owners, {say_list(OWNERS)}, encrypted their {words.rows}."
    yield (
        "One process read all of them with all keys, and trained. Plan travel must give the "
        f"same result, bit for bit. The model {_result(outcome)}."
    )
    yield "Nothing was protected, attacked or logged."


def _in_rounds(outcome: Outcome) -> Iterator[str]:
    words = outcome.task.words
    yield (
        f"{say_list(OWNERS).capitalize()} encrypted their {words.rows} and signed one "
        "agreement: rows stay on their owner's machine."
    )
    yield (
        "Each owner's own accelerator got the key from that owner's broker, trained on "
        "its rows, and after each round all of them averaged their updates, encrypted for "
        f"each other only. The model {_result(outcome)}."
    )
    yield (
        "Each accelerator can read the others' updates in the part that it adds up. All of "
        f"this is a rehearsal: {say_banner(outcome.level)}."
    )


def _outsourced(outcome: Outcome) -> Iterator[str]:
    opening, visits, ending = _travelled(outcome)
    yield opening
    yield visits
    yield (
        "Three servers computed all large products. Each saw only random-looking numbers; if "
        "two of them collude, they can read everything."
    )
    yield ending


_TOLD: Final = {
    "local": _local, "travel": _travelled, "ddp": _in_rounds, "outsource": _outsourced,
}  # fmt: skip


def _result(outcome: Outcome) -> str:
    headline, words = outcome.task.headline, outcome.task.words
    alone = [found[headline.name] for found in outcome.alone.values()]
    joint = headline.say(outcome.together[headline.name])
    if not alone:
        return words.result.format(joint)
    return (
        f"{words.result.format(joint)}, where each owner's own model "
        f"{words.reaches} {headline.say(min(alone))} to {headline.say(max(alone))}"
    )


def _attacks(outcome: Outcome) -> str:
    tried, refused = len(outcome.attacks), len(outcome.refused)
    if not tried:
        return "Nobody attacked"
    who = say_list(sorted({attack.holder for attack in outcome.attacks})).capitalize()
    ending = "and was refused" if refused == tried else f"refused {refused}"
    comma = "" if refused == tried else ","
    does = "server cheated" if outcome.plan == "outsource" else "holder attacked"
    return f"{who}'s {does} {tried} times{comma} {ending}"


def _tiles(outcome: Outcome) -> Iterator[tuple[str, str, str]]:
    headline, progress = outcome.task.headline, outcome.progress
    together = headline.say(outcome.together[headline.name])
    yield together, f"together: {headline.title}", "main"
    if outcome.alone:
        alone = [found[headline.name] for found in outcome.alone.values()]
        best = min(alone) if headline.lower_is_better else max(alone)
        yield headline.say(best), "best owner alone", ""
    if progress.rounds:
        trained = [each for each in progress.rounds if each.purpose == "train"]
        yield str(len(trained)), "encrypted rounds between owners", ""
    if progress.visits:
        yield str(len(progress.verified)), "visits, each with a fresh key", ""
        yield say_bytes(progress.sealed_bytes), "sent, encrypted", ""
        tried, stopped = len(outcome.attacks), len(outcome.refused)
        yield f"{stopped} of {tried}", "attacks refused", ""
    yield f"{outcome.seconds:.1f} s", "from command to report", ""


def _honesty(outcome: Outcome) -> Markup:
    kept = REAL_AT_HOME if outcome.plan == "ddp" else REAL
    real: tuple[str, ...] = (*kept, outcome.task.words.real)
    only: tuple[str, ...] = (SOFTWARE_KEY, *DEVELOPMENT_ONLY)
    if outcome.plan == "outsource":
        real, only = real + REAL_SERVERS, (*only, TOGETHER_THEY_SEE)
    if rehearses(outcome.level):
        real, only = real + REAL_REHEARSED, ONLY_REHEARSED + DEVELOPMENT_ONLY
    if outcome.plan != "local":
        line = (say_sandbox(outcome.sandbox),)
        confined = Confinement.parse(outcome.sandbox).holds
        real, only = (real + line, only) if confined else (real, only + line)
    columns = [
        element("div", element("h3", title), bullets(lines, class_="plain"))
        for title, lines in (("Real", real), ("Development only", only))
    ]
    two = element("div", columns, class_="two")
    return section("What is real here, and what is not", "", two)


def _machine(outcome: Outcome) -> Markup:
    """A number without its machine is not a number."""
    travel = outcome.travel
    mixed = "mixed cargo" if travel.mixed else "one owner's rows at a time"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = {
        "task": outcome.task.name,
        "plan": outcome.plan,
        "buffers": f"{travel.buffers}, {mixed}",
        "weights": outcome.weights,
        "folder": str(outcome.world.path),
        **{name: str(found) for name, found in this_machine().items()},
        "memory": f"{memory / 2**30:.1f} GiB",
        "torch": _version("torch"),
        "cryptography": _version("cryptography"),
        "Sealift": sealift.__version__,
    }
    return section("Run and machine", "", facts(found))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
