"""A run's report: answers for data officers first, then results, then all details.

Each run leaves one beside its history: what its orchestrator observed. Who saw my rows,
what left and to whom, what can I still stop, what does this level not protect from: the
answers follow from the signed agreement and from what was observed of the run. The page
says who observed it (``told_by``): an orchestrator's report is not a receipt.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from sealift.attest.level import Level, protects_nobody
from sealift.release.agreement import Agreement
from sealift.release.agreement.explain import KEPT_OUT, SEEN_BY
from sealift.release.agreement.phrases import count, say_list, say_surest
from sealift.train.job.settings import JobTable
from sealift.train.output.history import numbers_over, shown_row
from sealift.train.output.privateterms import private_terms
from sealift.view.charts import Curve, plot
from sealift.view.markup import (
    Child,
    Markup,
    bullets,
    code,
    element,
    facts,
    fold,
    join,
    of_owner,
    opening,
    page,
    say_bytes,
    say_loudly,
    section,
    table,
    tiles,
)

REPORT_NAME: Final = "report.html"
_TOLD_BY: Final = (
    "the run's operator observed it. The owners' receipts, which the accelerator signed, "
    "can be compared with it: `sealift receipt verify`"
)
_SCRUBBED: Final = (
    "My receipts have the accelerator's report of how the memory was scrubbed."
)


Row = Mapping[str, Any]


def run_page(
    job: str,
    run: SeenRun,
    rows: Sequence[Row],
    metrics: Mapping[str, float],
    found: Mapping[str, str],
) -> bytes:
    """The whole page.

    Args:
        job: Its name.
        run: What its owners ask about.
        rows: Its history.
        metrics: Names of numbers, and their values over all held-out rows.
        found: What else is known of it, for a list.
    """
    level = run.level
    banner = ""
    if protects_nobody(level):
        banner = join(element("b", say_loudly(level)), KEPT_OUT[run.bare_level])
    agreement = run.agreement
    owners = count(len(agreement.data_owners), "owner") + "' rows"
    agreed = (
        f"{say_list(agreement.data_owners)} encrypted their rows and signed one agreement, "
        f"{agreement.name} number {agreement.number}, on who may use them for what."
    )
    numbers = [
        (f"{value:.4g}", f"{name}, held-out rows", "")
        for name, value in metrics.items()
    ]
    text = page(
        f"Sealift run: {job}",
        banner,
        opening(f"Sealift run · {job}", f"One model of {owners}", [agreed]),
        tiles(numbers) if numbers else "",
        for_owners(run),
        who_gave_what(run),
        privacy_section(run, {}),
        _learnt(rows, sorted(metrics)),
        fold(
            "Details: every visit, and the run's facts",
            section(
                "History", "The same as history.csv.", _history([*map(shown_row, rows)])
            ),
            section("Run", "", facts(found)),
        ),
        glossary(),
    )
    return text.encode()


def _learnt(rows: Sequence[Row], metrics: Sequence[str]) -> Markup:
    """A figure for each held-out number, over the epochs that measured it."""
    heldout = [row for row in rows if row["purpose"] == "heldout" and row["epoch"]]
    epochs = sorted({row["epoch"] for row in heldout})
    by_epoch = [
        (float(epoch), numbers_over([row for row in heldout if row["epoch"] == epoch]))
        for epoch in epochs
    ]
    drawn = []
    for name in metrics:
        points = [(epoch, each[name]) for epoch, each in by_epoch if name in each]
        titles = [f"epoch {epoch:g}: {value:.4g}" for epoch, value in points]
        if len(points) > 1:
            curve = Curve("all owners", points, "line-joint", titles)
            drawn += [element("h3", name), plot([curve], "epoch")]
    if not drawn:
        return join()
    return section("Results by epoch", "Over all held-out rows.", *drawn)


def _history(rows: Sequence[Row]) -> Markup:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    kept = [each for each in columns if each not in ("visit", "first_row")]
    return table(kept, [[_cell(row.get(name)) for name in kept] for row in rows])


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def make_report(
    job: JobTable,
    agreement: Agreement,
    rows: Sequence[Mapping[str, Any]],
    result: Mapping[str, Any],
    model_bytes: int,
) -> bytes:
    """The page.

    Args:
        job: What was asked for.
        agreement: What was signed.
        rows: The run's history.
        result: Its summary: ``level``, ``metrics``, and what it was made of.
        model_bytes: Of the model as it left; 0 without one.
    """
    metrics: Mapping[str, float] = result["metrics"]
    level, shown = str(result["level"]), [shown_row(row) for row in rows]
    run = see_run(
        job, agreement, shown, level, metrics=tuple(metrics), model_bytes=model_bytes
    )
    plain = {key: str(value) for key, value in result.items() if key != "metrics"}
    return run_page(job.name, run, rows, metrics, {"plan": job.plan, **plain})


def see_run(
    job: JobTable,
    agreement: Agreement,
    rows: Sequence[Mapping[str, Any]],
    level: str,
    *,
    metrics: Collection[str],
    model_bytes: int = 0,
) -> SeenRun:
    """What its owners ask about, from its history so far."""
    reader: Reader = "local" if job.plan == "local" else "one"
    if job.plan == "ddp":
        reader = "own" if job.slices.rows == "owner" else "several"
    numbers: Counter[str] = Counter()
    for row in rows:
        numbers[str(row["owner"])] += len(row.keys() & set(metrics))
    return SeenRun(
        agreement=agreement,
        level=level,
        visits=_visits(agreement, rows, together=job.plan == "ddp"),
        numbers=dict(numbers),
        opened_bytes=_opened(agreement, rows),
        scrubbed="" if job.plan == "local" else _SCRUBBED,
        reader=reader,
        model_bytes=model_bytes,
        told_by=_TOLD_BY,
        trained=_trained(agreement, rows, together=job.plan == "ddp"),
    )


def _trained(
    agreement: Agreement, rows: Sequence[Mapping[str, Any]], *, together: bool
) -> dict[str, int]:
    """Uses of tables to train on, by owner, as a run's manifest counts them."""
    trained = [row for row in rows if row["purpose"] == "train"]
    if not together:
        return dict(Counter(str(row["owner"]) for row in trained))
    # A run that goes on from another used the rows since epoch 1, as its receipt says.
    rounds = max((row["epoch"] for row in trained), default=0)
    tables = Counter(e.owner for e in agreement.resources if e.part == "train")
    return {owner: rounds * held for owner, held in tables.items()}


def _visits(
    agreement: Agreement, rows: Sequence[Mapping[str, Any]], *, together: bool
) -> dict[str, int]:
    """By owner; rounds of all ranks are everybody's, whoever's rows were told of."""
    visits = Counter(str(row["owner"]) for row in rows)
    rounds = len({(row["purpose"], row["epoch"]) for row in rows})
    return {
        owner: rounds if together else visits[owner] for owner in agreement.data_owners
    }


def _opened(agreement: Agreement, rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    row_bytes = {each.name: each.row_bytes for each in agreement.resources}
    opened: Counter[str] = Counter()
    for row in rows:
        opened[str(row["owner"])] += row["rows"] * row_bytes.get(row["table"], 0)
    return dict(opened)


Reader = Literal["one", "own", "several", "local"]
GLOSSARY: Final = {
    "accelerator": "the program that decrypts rows, trains on them and deletes them",
    "agreement": "the document that all parties signed: who brings what, who gets what",
    "broker": "an owner's own program that holds its key, and releases it or refuses",
    "development": "a level for tests: it proves nothing about the machine",
    "evidence": "a machine's description of itself, signed by its hardware if it can",
    "level": "how strong the evidence is, and so against whom it protects",
    "lease": "permission to continue for some seconds; it ends if a machine misbehaves",
    "log": "a broker's record of key releases; changes to it are detected",
    "receipt": "the accelerator's signed statement of a visit, which the owner keeps",
    "scrub": "overwriting memory and reading it back, as the accelerator reports it",
    "sealed": "encrypted, so that any change is detected",
    "visit": "one use of some rows of one owner by the accelerator",
}
_READERS: Final[dict[Reader, str]] = {
    "one": "One program: the accelerator, which {} runs",
    "own": "Only its own accelerator, on its own machine",
    "several": "The accelerators, which share the rows of all owners",
    "local": "One process, which has the rows and keys of all owners",
}
_UNPROTECTED: Final = {
    Level.TEE: "attacks on the opened machine, and flaws of the processor.",
    Level.GPU_TEE: "attacks on the opened machine, and flaws of processor or GPU.",
    Level.ATTESTED_HOST: "somebody with physical access, who can read the memory.",
    Level.UNTRUSTED_GPU: "two of the three servers that collude.",
    Level.DEVELOPMENT: "anything: whoever controls the machine can read rows, keys and "
    "model. A green tick shows that records match, not that rows were protected.",
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
        own: The owner whose page this is, who stands first; empty if it is nobody's.
        trained: Uses of each owner's tables to train on, by its name.
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
    own: str = ""
    trained: Mapping[str, int] = field(default_factory=dict)

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
            element(
                "dl",
                _answer("Who saw my rows?", _who_saw(run, owner)),
                _answer("What left, and to whom?", _what_left(run, owner)),
                _answer("What can I still stop?", _what_stops(run, owner)),
                _answer("What does this level not protect from?", _unprotected(run)),
            ),
            class_="card",
        )
        for owner in sorted(run.agreement.data_owners, key=lambda each: each != run.own)
    ]
    return section(
        "For the owners' data officers",
        f"As {run.told_by}. The terms are explained at the end.",
        element("div", cards, class_="cards"),
    )


def _answer(question: str, lines: Iterable[Child]) -> Markup:
    said = [element("p", line) for line in lines]
    return join(element("dt", question), element("dd", said))


def _who_saw(run: SeenRun, owner: str) -> Iterator[Child]:
    agreement = run.agreement
    tables = [each for each in agreement.resources_of(owner) if each.part != "model"]
    rows = sum(each.rows for each in tables)
    opened = run.opened_bytes.get(owner)
    how_much = f", {say_bytes(opened)} in all" if opened else ""
    seen = count(run.visits.get(owner, 0), run.times)
    who = _READERS[run.reader].format(agreement.operator)
    yield f"{who}, in {seen} to {rows:,} rows{how_much}. {run.scrubbed}"
    others = "The other owners received none. " if run.reader == "one" else ""
    if run.reader != "own":
        yield f"{others}Level {run.level} {KEPT_OUT[run.bare_level]}."
    if agreement.servers is not None:
        promise = agreement.servers.promise
        yield f"{promise[0].upper()}{promise[1:]}."


def _what_left(run: SeenRun, owner: str) -> Iterator[Child]:
    rule, agreement = run.agreement.output_rule, run.agreement
    # What one's own accelerator shows its owner is more than what others are told.
    told = 0 if run.reader == "own" else run.numbers.get(owner, 0)
    only_sums = agreement.training_rule.sums == ("only",)
    if run.reader == "own":
        reads = "Each can read my update in the part of the model that it adds up."
        if only_sums:
            reads = "Each learns the sum of all updates; only all others together learn mine."
        yield (
            "In each round, my accelerator's update, encrypted, to the other owners' "
            f"accelerators. {reads}"
        )
    if rule.metrics and agreement.training_rule.privacy is None:
        numbers = count(told, "number") if told else "Numbers"
        whose = "all owners' rows together" if only_sums else "my rows"
        yield (
            f"{numbers} measured on {whose} ({say_list(rule.metrics)}), rounded to "
            f"{rule.digits} decimal places, each over at least {rule.metric_rows} rows: "
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
        " destroys my key. A run that has started ends within a lease, or at its normal "
        "end if the agreement has no leases.",
    )
    board = agreement.board
    if board is None or owner in board.veto:
        yield "Every change: nobody can change the agreement without my signature."
    if agreement.not_after is not None:
        day = datetime.fromtimestamp(agreement.not_after, UTC).date()
        yield f"No key is released after {day} in any case."
    yield "What was learned cannot be taken back: recipients keep the model."


def _unprotected(run: SeenRun) -> Iterator[Child]:
    yield f"At level {run.level}: {_UNPROTECTED[run.bare_level]}"
    if not protects_nobody(run.level):
        yield "At any level: the model may contain what the agreed code learns of the rows."


def privacy_section(
    run: SeenRun | None, spent: Mapping[str, tuple[str, str, str]]
) -> Markup:
    """What private steps bound so far; what this machine's broker counted of budgets.

    Args:
        run: As far as somebody saw it; None if nobody did.
        spent: By table: what is spent, left, and the budget.
    """
    terms = private_terms(run.agreement, run.trained) if run else None
    if terms is None and not spent:
        return join()
    drawn: list[Child] = []
    if spent:
        cells: list[list[Child]] = [
            [element("b", name), said, left, _share(said, left), budget]
            for name, (said, left, budget) in spent.items()
        ]
        headings = ["table", "epsilon spent", "left", "", "budget, over all jobs"]
        drawn.append(table(headings, cells))
    if terms is not None:
        drawn.append(bullets(terms.say(), "told"))
    budgets = [each.budget for each in terms.tables if each.budget] if terms else []
    drawn += [
        element("p", say_surest(e.epsilon, e.delta)) for e in dict.fromkeys(budgets)
    ]
    lead = "What can be learned of a single row. Spent and left are from the owner's own broker, after each round."
    return section("Privacy", lead, *drawn)


def _share(spent: str, left: str) -> Markup:
    """A picture of what is spent; none where a number is no number."""
    try:
        part, whole = float(spent), float(spent) + float(left)
    except ValueError:
        return join()
    drawable = math.isfinite(whole) and whole > 0
    return (
        element("progress", value=part, max=whole, aria_label="spent")
        if drawable
        else join()
    )


def who_gave_what(run: SeenRun) -> Markup:
    """A picture: owners, the accelerator, the model's owner, and what went between."""
    agreement = run.agreement
    model = f"model, {say_bytes(run.model_bytes)}" if run.model_bytes else "no model"
    received = "the mean, results" if run.reader == "own" else "results"
    owners = [
        join(
            element("div", of_owner(owner), class_="party"),
            _arrows(_given(run, owner), received),
        )
        for owner in agreement.data_owners
    ]
    others = say_list(agreement.model_to)
    return section(
        "What was sent to whom",
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
    "To the right: rows, encrypted in storage and on the way, and decrypted only where "
    "they are used. To the left: rounded results, if the agreement allows them.",
    "Rows stay with their owners. To the right, in each round: each accelerator's update, "
    "encrypted for the others. To the left: the mean, and rounded results.",
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


def _given(run: SeenRun, owner: str) -> str:
    if run.reader == "own":
        return f"updates, {count(run.visits.get(owner, 0), run.times)}"
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
    return section("Terms", "", facts(GLOSSARY))
