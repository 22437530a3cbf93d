"""The report: one HTML file without script, font or picture from anywhere else.

Its policy forbids the browser to load anything. Figures are SVG, written by
``charts`` and ``timeline``; everything that others wrote is escaped by ``markup``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from typing import Final

from sealift.demo.outcome import Outcome
from sealift.demo.parties import OWNERS
from sealift.demo.progress import VisitSeen
from sealift.demo.report.charts import loss_curves, result_bars
from sealift.demo.report.machine import machine_facts
from sealift.demo.report.markup import Markup, element, section
from sealift.demo.report.parts import (
    attack_table,
    facts_table,
    log_tables,
    phase_table,
    receipt_table,
    verdict_chip,
)
from sealift.demo.report.timeline import PHASES, all_visits, first_visits
from sealift.demo.words import BANNER, DEVELOPMENT_ONLY, REAL, say_bytes
from sealift.release.files import write_whole

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
CLOSER_LOOK: Final = 9  # visits


def write_report(outcome: Outcome) -> None:
    """Write ``report.html``, whole or not at all."""
    write_whole(outcome.report, render(outcome).encode("utf-8"))


def render(outcome: Outcome) -> str:
    """The page as text."""
    style = resources.files("sealift.demo.report").joinpath("style.css").read_text()
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width"),
        element("title", "Sealift demo: three owners, one model"),
        element("style", Markup(style)),
    )
    body = element("body", _banner(), element("main", _sections(outcome)))
    return "<!doctype html>\n" + element("html", head, body, lang="en") + "\n"


def _banner() -> Markup:
    return element("div", element("b", "DEVELOPMENT"), BANNER, class_="banner")


def _sections(outcome: Outcome) -> Iterator[Markup]:
    yield element("h1", "Three owners, one model, no shared data")
    yield element("p", _subtitle(outcome), class_="sub")
    yield _tiles(outcome)
    yield section(
        "Together and alone",
        "Right answers of each model on the same held-out digits of all owners. Each "
        "owner lacks some digits, so what it trains alone cannot know them.",
        result_bars(outcome),
    )
    if outcome.progress.trained:
        yield from _travel(outcome)
    yield _honesty()
    yield _facts(outcome)


def _travel(outcome: Outcome) -> Iterator[Markup]:
    yield _verified(outcome)
    if outcome.attacks:
        yield section(
            "Attacks, against the process that trained",
            "One holder attacked in its first three visits, with its real identity and "
            "its real data, then behaved. Each attack ended its visit; the memory was "
            "scrubbed, no row of it was used, and another visit was granted.",
            attack_table(outcome),
        )
    yield section(
        "Learning, visit by visit",
        "Mean loss over the rows of each training visit.",
        loss_curves(outcome.progress.trained),
        _legend((owner, f"fill-{owner}") for owner in OWNERS),
    )
    yield _timeline(outcome.progress.visits)
    yield from _records(outcome)


def _timeline(visits: Sequence[VisitSeen]) -> Markup:
    return section(
        "Who is inside when",
        "One buffer: a holder's rows are overwritten and read back before the next "
        "holder is met, so no two bars stand at the same time.",
        all_visits(visits),
        _legend(
            [
                *((owner, f"fill-{owner}") for owner in OWNERS),
                ("paler: held-out rows", "fill-joint pale"),
                ("refused", "fill-refused"),
            ]
        ),
        element("h3", f"The first {CLOSER_LOOK} visits, by phase"),
        first_visits(visits[:CLOSER_LOOK]),
        _legend([("refused", "fill-refused"), *((n, f"phase-{n}") for n in PHASES)]),
    )


def _records(outcome: Outcome) -> Iterator[Markup]:
    yield section(
        "Phases",
        "Median of a visit by holder, by the accelerator's clock.",
        phase_table(outcome),
    )
    yield section(
        "Audit logs",
        "Each owner's broker wrote down every key before it left. The logs were "
        "compared with the signed heads that the other owners kept.",
        log_tables(outcome.verdict.logs),
    )
    yield section(
        "Receipts and scrub reports",
        "Signed by the accelerator's instance key, which its evidence binds. A scrub "
        "report is a statement of that accelerator, not a proof.",
        receipt_table(outcome.verdict.receipts),
    )


def _subtitle(outcome: Outcome) -> str:
    if outcome.plan == "local":
        return (
            "The local plan: one process read all three owners' sealed digits with all "
            "their keys. It is the reference that travelling must equal bit for bit."
        )
    return (
        f"{', '.join(OWNERS[:-1])} and {OWNERS[-1]} sealed their handwritten digits at "
        "home. One accelerator visited them in turn; its model never left it until the "
        "end, and each owner's rows were gone before the next owner was met."
    )


def _tiles(outcome: Outcome) -> Markup:
    headline = outcome.task.headline
    alone = sorted(found[headline.name] for found in outcome.alone.values())
    progress = outcome.progress
    tiles = [
        (headline.say(outcome.together[headline.name]), "together", " main"),
        (f"{headline.say(alone[0])} to {headline.say(alone[-1])}", "alone", ""),
    ]
    if progress.visits:
        tried, refused = len(outcome.attacks), len(outcome.refused)
        tiles += [
            (f"{len(progress.verified)}", "visits, each with a fresh key", ""),
            (say_bytes(progress.sealed_bytes), "crossed sealed", ""),
            (f"{refused} of {tried}", "attacks refused", ""),
        ]
    tiles.append((f"{outcome.seconds:.1f} s", "from command to report", ""))
    return element(
        "div",
        [
            element("div", element("b", n), element("span", t), class_=f"tile{style}")
            for n, t, style in tiles
        ],
        class_="tiles",
    )


def _verified(outcome: Outcome) -> Markup:
    verdict = outcome.verdict
    checks = [
        (verdict.log_verified, "audit logs continue the heads that others kept"),
        (verdict.receipts_verified, f"{len(verdict.receipts)} receipts, one per visit"),
        (
            verdict.scrub_verified,
            f"{say_bytes(verdict.scrubbed_bytes)} overwritten and read back as zero",
        ),
        (
            verdict.model_verified,
            f"the model, opened by its owner: {verdict.parameters:,} parameters with "
            "the weights that the signed manifest names",
        ),
    ]
    items = [
        element("li", verdict_chip(good, "verified", "failed"), words)
        for good, words in checks
    ]
    failures = [element("li", line, class_="bad") for line in verdict.failures]
    return section(
        "Verified afterwards",
        "From the files that the parties kept and the agreement that all of them "
        "signed, without believing any process that ran.",
        element("ul", items, failures, class_="checks"),
    )


def _honesty() -> Markup:
    return section(
        "What is real here, and what is not",
        "",
        element(
            "div",
            element("div", element("h3", "Real"), _bullets(REAL)),
            element(
                "div", element("h3", "Development only"), _bullets(DEVELOPMENT_ONLY)
            ),
            class_="two",
        ),
    )


def _facts(outcome: Outcome) -> Markup:
    run = {
        "level": outcome.level,
        "plan": outcome.plan,
        "weights": outcome.weights,
        "seconds": f"{outcome.seconds:.1f} in all, {outcome.world_s:.1f} for keys and "
        f"sealed data, all roles up after {outcome.roles_up_s:.1f}",
    }
    return section("Run and machine", "", facts_table(run, machine_facts()))


def _bullets(lines: Iterable[str]) -> Markup:
    return element("ul", [element("li", line) for line in lines], class_="plain")


def _legend(entries: Iterable[tuple[str, str]]) -> Markup:
    def swatch(style: str) -> Markup:
        square = element("rect", width=12, height=12, rx=2, class_=style)
        return element("svg", square, viewBox="0 0 12 12", aria_hidden="true")

    items = [element("li", swatch(style), name) for name, style in entries]
    return element("ul", items, class_="legend")
