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
from sealift.release.agreement.phrases import cargo_promise
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
        "A server sees sizes and random numbers, and no wrong product is used.",
        "A fresh mask for every tensor, exactly uniform, and a check of every product. It "
        "holds as long as no two of the three servers collude.",
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
    "the step was repeated with new masks. The accelerator keeps a record of it."
)
PROMISED: Final = (
    (
        "Rows are encrypted on disks and networks, and arrive unaltered and in order.",
        "AES-256-GCM records under the owner's data key, a keyed commitment in the "
        "agreement, and frames under the visit's own key.",
        CRYPTOGRAPHY,
    ),
    (
        "A key of one visit opens nothing of another.",
        "A full hybrid handshake for each visit: X25519 and ML-KEM-768.",
        CRYPTOGRAPHY,
    ),
    (
        f"Only {MODEL_OWNER} opens the model.",
        "Its key was encrypted (HPKE) for the key in the agreement.",
        CRYPTOGRAPHY,
    ),
    (
        "No key is released without its owner's consent and a log entry.",
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


def _heading(outcome: Outcome) -> str:
    """These were staged, so that they are refused is how it has to be."""
    if all(map(was_refused, outcome.attacks)):
        return "Attacks, refused as they must be"
    return "Attacks, some of which were not refused"


def refused(outcome: Outcome) -> Markup:
    """What was refused: attacks, keys that a broker kept back, visits that failed."""
    told = SERVER_CHEATED if outcome.plan == "outsource" else HOLDER_ATTACKED
    lead = join(f"{told} To explain a rule: ", code("sealift explain NAME"), ".")
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
    headings = ["attack", "outcome", "rule", "why it fails", ""]
    others = list(_others(outcome))
    return section(
        "What was refused",
        lead if attacks else "Nobody attacked.",
        element("h3", _heading(outcome)) if attacks else "",
        table(headings, attacks, numbers_from=4, prose=True) if attacks else "",
        element("h3", "Other refusals") if others else "",
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
                yield [what, code(entry.rule), "see its log"]
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
        "A host that misbehaved during a visit",
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
            "Only the code in the agreement runs, and it cannot send rows out.",
            "The code's digest in the evidence, the output rule, and the sandbox: "
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
        "Cryptography works whoever runs the machine, and records were verified above. All "
        "else depends on the evidence, and development evidence proves nothing.",
        table(["promise", "based on", "in this run"], rows, prose=True),
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
        "Before a key was released, the accelerator's evidence proved this level to each "
        "broker. It is in every log, receipt and result.",
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
        "Verified from the parties' files and the signed agreement only, not from what "
        "processes reported. A tick shows that records match. At level "
        f"{outcome.level} nothing shows that rows were protected.",
        bullets(items, class_="checks"),
    )
