"""What was refused: attacks, keys that a broker kept back, visits that failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sealift.lab.demo.outcome import Outcome
from sealift.lab.demo.report.markup import (
    Child,
    Markup,
    element,
    join,
    section,
    table,
    verdict_chip,
)
from sealift.lab.demo.words import ATTACK_IN_WORDS, WHY_REFUSED, say_bytes

_LEAD: Final = join(
    "One holder attacked in its first three visits, with its real identity and its real "
    "data, then behaved. Each attack ended its visit: the memory was scrubbed, no row of "
    "it was used, and another visit was granted. Each rule has a name; ",
    element("code", "sealift explain NAME"),
    " says more.",
)


def refused(outcome: Outcome) -> Markup:
    """The section about refusals, each with its rule's name and reason."""
    lead = _LEAD if outcome.attacks else "No holder attacked."
    return section("What was refused", lead, *_attacks(outcome), *_others(outcome))


def _attacks(outcome: Outcome) -> Iterator[Markup]:
    if not outcome.attacks:
        return
    good = {id(attack) for attack in outcome.refused}
    rows = [
        [
            f"{attack.holder} {ATTACK_IN_WORDS[attack.name]}",
            verdict_chip(id(attack) in good, "refused", "not refused"),
            element("code", attack.reason),
            WHY_REFUSED[attack.name],
            f"{say_bytes(attack.scrubbed_bytes)} scrubbed",
        ]
        for attack in outcome.attacks
    ]
    headings = ["attack", "outcome", "rule", "what holds it", "memory"]
    yield table(headings, rows, numbers_from=4, prose=True)


def _others(outcome: Outcome) -> Iterator[Markup]:
    """Everything else that was refused or failed, from visits and logs."""
    rows = [*_failed_visits(outcome), *_kept_back(outcome), *_skipped(outcome)]
    if rows:
        yield element("h3", "Besides")
        yield table(["what", "rule", "reason"], rows, prose=True)
        return
    yield element("p", "Nothing else was refused, failed or skipped.", class_="small")


def _failed_visits(outcome: Outcome) -> Iterator[list[Child]]:
    attacked = {attack.visit for attack in outcome.attacks}
    for visit in outcome.progress.visits:
        if visit.outcome == "failed" and visit.visit not in attacked:
            what = f"visit {visit.number} of {visit.holder}"
            yield [what, element("code", visit.reason), visit.line]


def _kept_back(outcome: Outcome) -> Iterator[list[Child]]:
    for log in outcome.verdict.logs:
        for entry in log.entries:
            if entry.rule:
                what = f"{log.owner}'s broker: {entry.subject}"
                yield [what, element("code", entry.rule), "written in its log"]


def _skipped(outcome: Outcome) -> Iterator[list[Child]]:
    for line in outcome.progress.skipped:
        yield ["a planned visit was skipped", "", line]
