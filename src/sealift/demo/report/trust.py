"""How far to trust it: what was refused, level, checks, what each promise rests on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sealift.demo.folder import MODEL_OWNER
from sealift.demo.outcome import BOUND_S, Outcome, was_refused
from sealift.demo.texts import (
    ACT_IN_WORDS,
    ATTACK_IN_WORDS,
    WHY_REFUSED,
    level_words,
    say_sandbox,
)
from sealift.release.agreement.explain import cargo_promise
from sealift.view.markup import (
    Child,
    Markup,
    bullets,
    code,
    element,
    facts,
    join,
    section,
    table,
    verdict_chip,
)
from sealift.view.words import say_bytes

CRYPTOGRAPHY: Final = "cryptography"  # whoever runs the machine
RECORDS: Final = "checked from records"  # that the parties keep
EVIDENCE: Final = ""  # as good as the level
NOTHING_SEEN: Final = (
    (
        "A server that multiplies sees sizes and random numbers, and no wrong product counts.",
        "A fresh mask for every tensor, exactly uniform, and a check of every product. It "
        "holds as long as no two of the three servers talk to each other.",
        CRYPTOGRAPHY,
    ),
)
HOLDER_ATTACKED: Final = (
    "One holder attacked in its first three visits, with its real identity and its real "
    "data, then behaved. Each attack ended its visit: the memory was scrubbed, no row of "
    "it was used, and another visit was granted."
)
SERVER_CHEATED: Final = (
    "One share server began to cheat half way, with its real identity, in three steps. "
    "Each wrong product was found before a weight had changed, its server was named, and "
    "the step was made again under new masks. The accelerator keeps a note of it."
)
PROMISED: Final = (
    (
        "Rows lie on disks and cross networks sealed, unaltered and in order.",
        "AES-256-GCM records under the owner's data key, a keyed commitment in the "
        "agreement, and frames under the visit's own key.",
        CRYPTOGRAPHY,
    ),
    (
        "A key of one visit opens nothing of another.",
        "A whole hybrid handshake for each visit: X25519 and ML-KEM-768.",
        CRYPTOGRAPHY,
    ),
    (
        f"Only {MODEL_OWNER} opens the model.",
        "Its key went by HPKE to the key that the agreement names.",
        CRYPTOGRAPHY,
    ),
    (
        "No key is released that its owner did not agree to, nor unseen.",
        "Each owner's own broker, the agreement that it signed, and a Merkle log whose "
        "heads the other owners keep.",
        RECORDS,
    ),
    (
        "A holder writes its leased range once, and reads nothing.",
        "A signed lease, one state machine per visit, no message that reads memory; "
        "attacked above.",
        EVIDENCE,
    ),
)


def refused(outcome: Outcome) -> Markup:
    """What was refused: attacks, keys that a broker kept back, visits that failed."""
    told = SERVER_CHEATED if outcome.plan == "outsource" else HOLDER_ATTACKED
    lead = join(
        f"{told} Each rule has a name; ", code("sealift explain NAME"), " says more."
    )
    attacks = [
        [
            f"{attack.holder} {ATTACK_IN_WORDS[attack.name]}",
            verdict_chip(was_refused(attack), "refused", "not refused"),
            code(attack.reason),
            WHY_REFUSED[attack.name],
            f"{say_bytes(attack.scrubbed_bytes)} scrubbed"
            if attack.scrubbed_bytes
            else attack.visit,
        ]
        for attack in outcome.attacks
    ]
    headings = ["attack", "outcome", "rule", "what holds it", ""]
    others = list(_others(outcome))
    return section(
        "What was refused",
        lead if attacks else "Nobody attacked.",
        table(headings, attacks, numbers_from=4, prose=True) if attacks else "",
        element("h3", "Besides") if others else "",
        table(["what", "rule", "reason"], others, prose=True)
        if others
        else element(
            "p", "Nothing else was refused, failed or skipped.", class_="small"
        ),
    )


def _others(outcome: Outcome) -> Iterator[list[Child]]:
    """Everything else that was refused or failed, from visits and logs."""
    attacked = {attack.visit for attack in outcome.attacks}
    for visit in outcome.progress.visits:
        if visit.outcome == "failed" and visit.visit not in attacked:
            what = f"visit {visit.number} of {visit.holder}"
            yield [what, code(visit.reason), visit.line]
    for log in outcome.verdict.logs:
        for entry in log.entries:
            if entry.rule:
                what = f"{log.owner}'s broker: {entry.subject}"
                yield [what, code(entry.rule), "written in its log"]
    for line in outcome.progress.skipped:
        yield ["a planned visit was skipped", "", line]


def revoked(outcome: Outcome) -> Markup:
    """The second act of a rehearsal: what a bad act in the host led to."""
    found = outcome.revocation
    if found is None:
        return join()
    rows: list[list[Child]] = []
    stopped = f"{found.say_stop()} (bar: {BOUND_S:g} s)"
    rows.append(
        ["the flow of rows", stopped, verdict_chip(found.held, "stopped", "late")]
    )
    for owner, rule in found.rules.items():
        rows.append([f"{owner}'s broker revoked the lease", code(rule), ""])
    scrubbed = "the accelerator forgot the keys, stopped and scrubbed"
    rows.append([scrubbed, say_bytes(found.scrubbed_bytes), ""])
    rows.append(["its process had ended after", f"{found.ended_s:.2f} s", ""])
    return section(
        "A bad act while rows flowed",
        join(
            f"A second job ran under the same agreement. Then the host {ACT_IN_WORDS}: ",
            code(found.path),
            ". Its kernel had measured that before it ran, and the evidence of the next "
            "renewal showed it.",
        ),
        table(["what", "found", ""], rows, prose=True),
    )


def trust(outcome: Outcome) -> Iterator[Markup]:
    """Level, checks, promises."""
    yield _level(outcome)
    yield _checked(outcome)
    travel = outcome.travel
    sandbox = say_sandbox(outcome.sandbox)
    promised = (
        *PROMISED,
        (
            f"{cargo_promise(travel.buffers, travel.mixed).capitalize()}.",
            "The accelerator's scrub and its report, in every receipt.",
            EVIDENCE,
        ),
        (
            "What runs is the code that everybody signed, and it carries no rows out.",
            "The bundle's digest in the evidence, the output rule, and what keeps it in: "
            f"{sandbox}.",
            EVIDENCE,
        ),
        *(NOTHING_SEEN if outcome.plan == "outsource" else ()),
        (
            "Whoever runs the machine sees neither rows nor keys nor model.",
            "Memory that the hardware encrypts, proved by evidence.",
            EVIDENCE,
        ),
    )
    rehearsal = element("span", "○ a rehearsal", class_="chip")
    rows = [
        [said, rests_on, verdict_chip(True, ground, "") if ground else rehearsal]
        for said, rests_on, ground in promised
    ]
    yield section(
        "What each promise rests on",
        "Cryptography holds whoever runs the machine; records were checked above; the "
        "rest is as good as the evidence, and development evidence is good for nothing.",
        table(["promise", "rests on", "so here"], rows, prose=True),
    )


def _level(outcome: Outcome) -> Markup:
    level, verdict, progress = outcome.level, outcome.verdict, outcome.progress
    words = level_words(level)
    accepted = verdict.agreement.accept if verdict.agreement else (level,)
    kinds = sorted({receipt.evidence.kind for receipt in verdict.receipts})
    why = f" ({progress.buffer_why})" if progress.buffer_why else ""
    buffer = say_bytes(progress.buffer_bytes) + why if progress.buffer_bytes else ""
    found = {
        "level": level,
        "accepted by the agreement": ", ".join(accepted),
        "what verified": words.evidence
        + (f" (evidence: {', '.join(kinds)})" if kinds else ""),
        "keeps out": "nobody",
        "left open": words.not_out,
        "sandbox of the recipe": say_sandbox(outcome.sandbox),
        "one visit brings at most": buffer,
    }
    return section(
        "Which level, and why",
        "The level is what the accelerator's evidence proved to every broker before a key "
        "was released, and it stands in every log, receipt and result.",
        facts(found),
    )


def _checked(outcome: Outcome) -> Markup:
    verdict = outcome.verdict
    items: list[Child] = [
        [verdict_chip(good, "verified", "failed"), element("span", words)]
        for good, words in verdict.checks
    ]
    items += [element("span", line, class_="bad") for line in verdict.failures]
    return section(
        "Records, verified afterwards",
        "From the files that the parties kept and the agreement that all of them "
        "signed, without believing any process that ran. A tick says that records fit "
        f"each other; that rows were kept from whoever runs the machine, at level "
        f"{outcome.level}, nothing says.",
        bullets(items, class_="checks"),
    )
