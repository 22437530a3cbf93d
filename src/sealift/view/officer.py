"""What a data officer asks of a run, owner by owner, in words that need no engineer.

Who saw my rows, what left and to whom, what can I still stop, what does this level not
protect. Said from the agreement that everybody signed and from what was seen of the run;
who has seen it stands above (``told_by``), since an orchestrator's word is not a receipt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from sealift.attest.level import Level, protects_nobody
from sealift.release.agreement import Agreement
from sealift.release.agreement.explain import KEPT_OUT, SEEN_BY, count, say_list
from sealift.view.markup import (
    Child,
    Markup,
    code,
    element,
    facts,
    join,
    of_owner,
    section,
)
from sealift.view.words import say_bytes

Reader = Literal["one", "own", "several", "local"]
GLOSSARY: Final = {
    "accelerator": "the program that opens rows, trains on them and forgets them",
    "agreement": "the document that all parties signed: who gives what, who gets what",
    "broker": "an owner's own program that holds its key and releases it, or does not",
    "development": "a level for trying things out: it proves nothing about the machine",
    "evidence": "what a machine says of itself, signed by hardware where there is some",
    "level": "how strong that evidence was, and so whom it keeps out",
    "lease": "leave to go on for some seconds; it is not renewed for whoever misbehaves",
    "log": "what a broker wrote down before a key left; it cannot be rewritten unseen",
    "receipt": "what an owner keeps of a visit, signed by the accelerator",
    "scrub": "overwriting memory, and reading it back; said by the accelerator itself",
    "sealed": "encrypted so that any change is noticed",
    "visit": "one time that the accelerator got some rows of one owner",
}
_READERS: Final[dict[Reader, str]] = {
    "one": "One program, the accelerator that {} runs",
    "own": "Its own accelerator, on its own machine",
    "several": "The accelerators, which share all owners' rows",
    "local": "One process, with everybody's rows and keys",
}
_UNPROTECTED: Final = {
    Level.TEE: "somebody who opens the machine, and faults in the processor itself.",
    Level.GPU_TEE: "somebody who opens the machine, and faults in processor or GPU.",
    Level.ATTESTED_HOST: "somebody with physical access, who can read the memory.",
    Level.UNTRUSTED_GPU: "two of the three servers that talk to each other.",
    Level.DEVELOPMENT: "anything: whoever can enter the machine can read rows, keys and "
    "model. A green tick says that records fit each other, not that rows were kept safe.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRun:
    """One run, as far as somebody saw it.

    Attributes:
        agreement: What was signed.
        level: What the evidence proved, as ``say_level`` writes it.
        visits: Of each owner's rows, by its name; rounds, where rows stay at home.
        numbers: Measured on each owner's rows and let out, by its name.
        opened_bytes: Of each owner's rows; none where nobody counted.
        scrubbed: What is known of the scrubs.
        reader: Who had the rows: one accelerator, each owner's own, several that share
            them, or one process with everybody's keys.
        model_bytes: Of the sealed model; 0 without one.
        told_by: Who says so.
    """

    agreement: Agreement
    level: str
    visits: dict[str, int]
    numbers: dict[str, int]
    opened_bytes: dict[str, int]
    scrubbed: str
    reader: Reader
    model_bytes: int
    told_by: str

    @property
    def times(self) -> str:
        """What ``visits`` counts."""
        return "round" if self.reader in ("own", "several") else "visit"

    @property
    def how_model(self) -> str:
        """How it was handed out."""
        return "not sealed" if self.reader == "local" else "sealed"

    @property
    def bare_level(self) -> Level:
        """Without what it rehearses."""
        return Level(self.level.split(" ", 1)[0])


def for_owners(run: SeenRun) -> Markup:
    """Four answers for each owner."""
    cards = [
        element(
            "div",
            element("h3", of_owner(owner)),
            element("dl", [_answer(*each) for each in _answers(run, owner)]),
            class_="card",
        )
        for owner in run.agreement.data_owners
    ]
    return section(
        "For whoever answers for the data",
        f"As {run.told_by}. Words are explained at the end.",
        element("div", cards, class_="cards"),
    )


def _answer(question: str, lines: Iterable[Child]) -> Markup:
    said = [element("p", line) for line in lines]
    return join(element("dt", question), element("dd", said))


def _answers(run: SeenRun, owner: str) -> Iterator[tuple[str, list[Child]]]:
    yield "Who saw my rows?", list(_who_saw(run, owner))
    yield "What left, and to whom?", list(_what_left(run, owner))
    yield "What can I still stop?", list(_what_stops(run, owner))
    yield "What does this level not protect from?", list(_unprotected(run))


def _who_saw(run: SeenRun, owner: str) -> Iterator[Child]:
    agreement = run.agreement
    tables = [each for each in agreement.resources_of(owner) if each.part != "model"]
    rows = sum(each.rows for each in tables)
    opened = run.opened_bytes.get(owner)
    how_much = f", {say_bytes(opened)} in all" if opened else ""
    seen = count(run.visits.get(owner, 0), run.times)
    who = _READERS[run.reader].format(agreement.operator)
    yield f"{who}, in {seen} to {rows:,} rows{how_much}. {run.scrubbed}"
    others = "The other owners were given none. " if run.reader == "one" else ""
    if run.reader != "own":
        yield f"{others}Level {run.level} {KEPT_OUT[run.bare_level]}."
    if agreement.servers is not None:
        promise = agreement.servers.promise
        yield f"{promise[0].upper()}{promise[1:]}."


def _what_left(run: SeenRun, owner: str) -> Iterator[Child]:
    rule, agreement = run.agreement.output_rule, run.agreement
    told = run.numbers.get(owner, 0)
    if run.reader == "own":
        yield (
            "In each round, what my accelerator learnt from my rows, sealed: to the other "
            "owners' accelerators. Each sees it in the part of the model that it adds up."
        )
    if rule.metrics:
        numbers = count(told, "number") if told else "Numbers"
        yield (
            f"{numbers} measured on my rows ({say_list(rule.metrics)}), rounded "
            f"to {rule.digits} decimal places, each over {rule.metric_rows} rows or more: "
            f"to {SEEN_BY[rule.audience]}."
        )
    if rule.statistics:
        yield f"Totals over all owners' rows ({say_list(rule.statistics)}): to every party."
    to = say_list(agreement.model_to)
    size = f", {say_bytes(run.model_bytes)}," if run.model_bytes else ""
    if run.model_bytes or not rule.statistics:
        yield f"The model{size} {run.how_model}, and what it memorised of rows: to {to}."


def _what_stops(run: SeenRun, owner: str) -> Iterator[Child]:
    agreement = run.agreement
    yield join(
        "Every later run: ",
        code("sealift agreement leave"),
        " destroys my key. A run that is under way ends where the agreement has leases, "
        "else at its end.",
    )
    board = agreement.board
    if board is None or owner in board.veto:
        yield "Every change: no successor of the agreement holds against me."
    if agreement.not_after is not None:
        day = datetime.fromtimestamp(agreement.not_after, UTC).date()
        yield f"No key is released after {day} in any case."
    yield "Not what was learned: a model that was handed out stays handed out."


def _unprotected(run: SeenRun) -> Iterator[Child]:
    yield f"At level {run.level}: {_UNPROTECTED[run.bare_level]}"
    if not protects_nobody(run.level):
        yield "At no level: what the agreed code lets the model keep of the rows."


def who_gave_what(run: SeenRun) -> Markup:
    """A picture: owners, the accelerator, the model's owner, and what went between."""
    agreement = run.agreement
    model = f"model, {say_bytes(run.model_bytes)}" if run.model_bytes else "no model"
    owners = [
        join(
            element("div", of_owner(owner), class_="party"),
            _arrows(_given(run, owner), _got_back(run)),
        )
        for owner in agreement.data_owners
    ]
    others = say_list(agreement.model_to)
    return section(
        "Who gave what to whom",
        _LEGENDS[run.reader == "own"],
        element(
            "div",
            element("div", owners, class_="givers"),
            element("div", _middle(run), class_="party"),
            _arrows(f"{model}, {run.how_model}", ""),
            element("div", element("b", others), class_="party"),
            class_="flow",
        ),
    )


_LEGENDS: Final = (
    "To the right: sealed where it lies, sealed on its way, opened only where it is "
    "used. To the left: rounded numbers, where the agreement lets them out.",
    "Rows stay with their owners. To the right, round by round: what each owner's "
    "accelerator learnt, sealed to the others. To the left: the mean, and rounded numbers.",
)


def _middle(run: SeenRun) -> Markup:
    name = "accelerator" if run.reader == "one" else "accelerators"
    who = f"run by {run.agreement.operator}"
    if run.reader == "own":
        name, who = "the mean", "each accelerator adds up a part"
    elif run.reader == "local":
        name, who = "one process", "with all keys"
    elif run.agreement.servers is not None:
        who += f"; shares at {say_list(list(run.agreement.servers.parties.values()))}"
    small = element("span", f"{who}; level {run.level}", class_="small")
    return join(element("b", name), small)


def _got_back(run: SeenRun) -> str:
    return "the mean, numbers" if run.reader == "own" else "numbers"


def _given(run: SeenRun, owner: str) -> str:
    if run.reader == "own":
        return f"what was learnt, {count(run.visits.get(owner, 0), run.times)}"
    opened = run.opened_bytes.get(owner)
    size = f"{say_bytes(opened)} of " if opened else ""
    return f"{size}rows, {count(run.visits.get(owner, 0), run.times)}"


def _arrows(there: str, back: str) -> Markup:
    """Words above a line to the right and, if there are any, below one to the left."""
    lines = [element("span", there), _arrow("M0 5H97M92 1L98 5L92 9")]
    if back:
        lines += [_arrow("M3 5H100M8 1L2 5L8 9"), element("span", back)]
    return element("div", lines, class_="arrows")


def _arrow(path: str) -> Markup:
    drawn = element("path", d=path)
    return element(
        "svg", drawn, viewBox="0 0 100 10", preserveAspectRatio="none", class_="arrow"
    )


def glossary() -> Markup:
    """What the page's words mean."""
    return section("Words", "", facts(GLOSSARY))
