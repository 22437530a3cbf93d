"""The second act of a rehearsal: what a bad act in the host led to."""

from __future__ import annotations

from collections.abc import Iterator

from sealift.lab.demo.outcome import Outcome
from sealift.lab.demo.report.markup import (
    Markup,
    element,
    join,
    section,
    table,
    verdict_chip,
)
from sealift.lab.demo.secondact import BOUND_S, Revocation
from sealift.lab.demo.words import ACT_IN_WORDS, say_bytes


def revoked(outcome: Outcome) -> Iterator[Markup]:
    """The section, where there was a second act."""
    revocation = outcome.revocation
    if revocation is None:
        return
    yield section(
        "A bad act while rows flowed",
        join(
            f"A second job ran under the same agreement. Then the host {ACT_IN_WORDS}: ",
            element("code", revocation.path),
            ". Its kernel had measured that before it ran, and the evidence of the next "
            "renewal showed it.",
        ),
        table(["what", "found", ""], list(_rows(revocation)), prose=True),
    )


def _rows(revocation: Revocation) -> Iterator[list[str | Markup]]:
    yield [
        "the flow of rows",
        f"{revocation.say_stop()} (bar: {BOUND_S:g} s)",
        verdict_chip(revocation.held, "stopped", "late"),
    ]
    for owner, rule in revocation.rules.items():
        yield [f"{owner}'s broker revoked the lease", element("code", rule), ""]
    yield [
        "the accelerator forgot the keys, stopped and scrubbed",
        say_bytes(revocation.scrubbed_bytes),
        "",
    ]
    yield ["its process had ended after", f"{revocation.ended_s:.2f} s", ""]
