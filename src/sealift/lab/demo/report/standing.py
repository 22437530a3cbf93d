"""How far to trust it: level, sandbox, checks, and what each promise rests on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from sealift.attest.level import protects_nobody
from sealift.lab.demo.outcome import Outcome
from sealift.lab.demo.report.markup import Markup, element, section, table, verdict_chip
from sealift.lab.demo.words import (
    LEVEL_IN_WORDS,
    REHEARSED,
    rehearses,
    say_bytes,
    say_sandbox,
)
from sealift.lab.worlds.folder import MODEL_OWNER
from sealift.release.receipt import cargo_promise

Ground = Literal["cryptography", "records", "evidence"]


@dataclass(frozen=True, slots=True)
class Promise:
    """Something that the parties rely on.

    Attributes:
        promise: In one sentence.
        rests_on: What makes it so.
        ground: ``cryptography``: whoever runs the machine; ``records``: was checked
            from what the parties keep; ``evidence``: as good as the level.
    """

    promise: str
    rests_on: str
    ground: Ground


GROUND_IN_WORDS: Final[dict[Ground, str]] = {
    "cryptography": "cryptography",
    "records": "checked from records",
    "evidence": "the level",
}
PROMISED_ALWAYS: Final = (
    Promise(
        "Rows lie on disks and cross networks sealed, unaltered and in order.",
        "AES-256-GCM records under the owner's data key, a keyed commitment in the "
        "agreement, and frames under the visit's own key.",
        "cryptography",
    ),
    Promise(
        "A key of one visit opens nothing of another.",
        "A whole hybrid handshake for each visit: X25519 and ML-KEM-768.",
        "cryptography",
    ),
    Promise(
        f"Only {MODEL_OWNER} opens the model.",
        "Its key went by HPKE to the key that the agreement names.",
        "cryptography",
    ),
    Promise(
        "No key is released that its owner did not agree to, nor unseen.",
        "Each owner's own broker, the agreement that it signed, and a Merkle log whose "
        "heads the other owners keep.",
        "records",
    ),
    Promise(
        "A holder writes its leased range once, and reads nothing.",
        "A signed lease, one state machine per visit, no message that reads memory; "
        "attacked above.",
        "evidence",
    ),
)
MACHINE_SEES_NOTHING: Final = Promise(
    "Whoever runs the machine sees neither rows nor keys nor model.",
    "Memory that the hardware encrypts, proved by evidence.",
    "evidence",
)


def standing(outcome: Outcome) -> Iterator[Markup]:
    """The sections about trust."""
    yield _level(outcome)
    yield _checked(outcome)
    yield _promises(outcome)


def _level(outcome: Outcome) -> Markup:
    level, verdict = outcome.level, outcome.verdict
    words = REHEARSED if rehearses(level) else LEVEL_IN_WORDS[level.partition(" ")[0]]
    accepted = verdict.agreement.accept if verdict.agreement else (level,)
    kinds = sorted({receipt.evidence.kind for receipt in verdict.receipts})
    facts = {
        "level": level,
        "accepted by the agreement": ", ".join(accepted),
        "what verified": words.evidence
        + (f" (evidence: {', '.join(kinds)})" if kinds else ""),
        "keeps out": words.keeps_out,
        "left open": words.not_out,
        "sandbox of the recipe": say_sandbox(outcome.sandbox),
        "one visit brings at most": _buffer(outcome),
    }
    items = [
        part
        for name, words_ in facts.items()
        if words_
        for part in (element("dt", name), element("dd", words_))
    ]
    return section(
        "Which level, and why",
        "The level is what the accelerator's evidence proved to every broker before a key "
        "was released, and it stands in every log, receipt and result.",
        element("dl", items),
    )


def _buffer(outcome: Outcome) -> str:
    progress = outcome.progress
    if not progress.buffer_bytes:
        return ""
    why = f" ({progress.buffer_why})" if progress.buffer_why else ""
    return say_bytes(progress.buffer_bytes) + why


def _checked(outcome: Outcome) -> Markup:
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
        element("li", verdict_chip(good, "verified", "failed"), element("span", words))
        for good, words in checks
    ]
    failures = [element("li", line, class_="bad") for line in verdict.failures]
    return section(
        "Verified afterwards",
        "From the files that the parties kept and the agreement that all of them "
        "signed, without believing any process that ran.",
        element("ul", items, failures, class_="checks"),
    )


def _promises(outcome: Outcome) -> Markup:
    rows = [
        [each.promise, each.rests_on, _ground(each.ground, outcome)]
        for each in _promised(outcome)
    ]
    return section(
        "What each promise rests on",
        "Cryptography holds whoever runs the machine; records were checked above; the "
        "rest is as good as the evidence, and development evidence is good for nothing.",
        table(["promise", "rests on", "so here"], rows, prose=True),
    )


def _ground(ground: Ground, outcome: Outcome) -> Markup:
    if ground == "evidence" and protects_nobody(outcome.level):
        return element("span", "○ a rehearsal", class_="chip")
    return element("span", f"✓ {GROUND_IN_WORDS[ground]}", class_="chip good")


def _promised(outcome: Outcome) -> Iterator[Promise]:
    travel = outcome.travel
    yield from PROMISED_ALWAYS
    yield Promise(
        f"{cargo_promise(travel.buffers, travel.mixed).capitalize()}.",
        "The accelerator's scrub and its report, in every receipt.",
        "evidence",
    )
    yield Promise(
        "What runs is the code that everybody signed, and it carries no rows out.",
        "The bundle's digest in the evidence, the output rule, and what keeps it in: "
        f"{say_sandbox(outcome.sandbox)}.",
        "evidence",
    )
    yield MACHINE_SEES_NOTHING
