"""The report: one HTML file without script, font or picture from anywhere else.

Its policy forbids the browser to load anything. Figures are SVG and boxes, written by
``charts``; everything that others wrote is escaped by ``markup``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import resources
from itertools import chain
from typing import Final

from sealift.attest.level import protects_nobody
from sealift.lab.demo.outcome import Outcome
from sealift.lab.demo.report.hours import hours
from sealift.lab.demo.report.learning import learning
from sealift.lab.demo.report.machine import machine_facts
from sealift.lab.demo.report.markup import Markup, element, join, section
from sealift.lab.demo.report.opening import opening
from sealift.lab.demo.report.records import records
from sealift.lab.demo.report.refused import refused
from sealift.lab.demo.report.revoked import revoked
from sealift.lab.demo.report.sealed import sealed
from sealift.lab.demo.report.standing import standing
from sealift.lab.demo.report.timeline import timeline
from sealift.lab.demo.spending import spend
from sealift.lab.demo.words import (
    DEVELOPMENT_ONLY,
    ONLY_REHEARSED,
    REAL,
    REAL_REHEARSED,
    SOFTWARE_KEY,
    rehearses,
    say_banner,
    say_loudly,
    say_sandbox,
)
from sealift.release.files import write_whole
from sealift.train.sandbox.confine import Confinement

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def write_report(outcome: Outcome) -> None:
    """Write ``report.html``, whole or not at all."""
    write_whole(outcome.report, render(outcome).encode("utf-8"))


def render(outcome: Outcome) -> str:
    """The page as text."""
    style = resources.files("sealift.lab.demo.report").joinpath("style.css").read_text()
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width"),
        element("title", f"Sealift demo: three owners, one model, {outcome.task.name}"),
        element("style", Markup(style)),
    )
    body = element("body", _banner(outcome), element("main", _sections(outcome)))
    return "<!doctype html>\n" + element("html", head, body, lang="en") + "\n"


def _banner(outcome: Outcome) -> Markup:
    if not protects_nobody(outcome.level):
        return join()
    level = outcome.level
    loud = element("b", say_loudly(level))
    return element("div", loud, say_banner(level), class_="banner")


def _sections(outcome: Outcome) -> Iterator[Markup]:
    yield from opening(outcome)
    yield from learning(outcome)
    if outcome.progress.visits:
        yield from _travel(outcome)
    yield _honesty(outcome)
    yield _facts(outcome)


def _travel(outcome: Outcome) -> Iterator[Markup]:
    spending = spend(outcome.progress)
    yield timeline(outcome, spending)
    yield hours(outcome, spending)
    yield refused(outcome)
    yield from revoked(outcome)
    yield sealed(outcome)
    yield from standing(outcome)
    yield records(outcome)


def _honesty(outcome: Outcome) -> Markup:
    real: tuple[str, ...] = (*REAL, outcome.task.words.real)
    only: tuple[str, ...] = (SOFTWARE_KEY, *DEVELOPMENT_ONLY)
    if rehearses(outcome.level):
        real, only = real + REAL_REHEARSED, ONLY_REHEARSED + DEVELOPMENT_ONLY
    if outcome.plan == "travel":
        line = (say_sandbox(outcome.sandbox),)
        confined = Confinement.parse(outcome.sandbox).holds
        real, only = (real + line, only) if confined else (real, only + line)
    return section(
        "What is real here, and what is not",
        "",
        element(
            "div",
            element("div", element("h3", "Real"), _bullets(real)),
            element("div", element("h3", "Development only"), _bullets(only)),
            class_="two",
        ),
    )


def _facts(outcome: Outcome) -> Markup:
    run = {
        "task": outcome.task.name,
        "plan": outcome.plan,
        "buffers": f"{outcome.travel.buffers}, {_mixed(outcome)}",
        "weights": outcome.weights,
        "folder": str(outcome.folder),
    }
    facts = chain(run.items(), machine_facts().items())
    items = [join(element("dt", name), element("dd", value)) for name, value in facts]
    return section("Run and machine", "", element("dl", items))


def _mixed(outcome: Outcome) -> str:
    return "mixed cargo" if outcome.travel.mixed else "one owner's rows at a time"


def _bullets(lines: Iterable[str]) -> Markup:
    return element("ul", [element("li", line) for line in lines], class_="plain")
