"""The report's details: where the time went, what was sealed, and what the parties keep.

Every instant is counted once. Visits may overlap: with two buffers one holder's rows load
while another's are trained on. An instant belongs to the most useful thing that goes on
in it, so loading counts only where nothing was trained meanwhile: that is the exposed
part of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sealift.demo.folder import MODEL_OWNER, OWNERS
from sealift.demo.job import ONE_BUFFER
from sealift.demo.outcome import CheckedLog, Outcome, phase_table
from sealift.demo.progress import (
    PHASES,
    TRANSFER_PHASES,
    Progress,
    Span,
    VisitSeen,
    timed_phases,
)
from sealift.release.agreement import Agreement
from sealift.release.agreement.phrases import say_list
from sealift.release.log.entries import CheckpointEntry, Entry
from sealift.release.receipt import Receipt
from sealift.view.charts import BarPart, Lane, lanes, legend, stack
from sealift.view.markup import (
    Child,
    Markup,
    code,
    details,
    element,
    join,
    of_owner,
    say_bytes,
    say_s,
    section,
    table,
)

CHECKPOINT: Final = "checkpoint"
IDLE: Final = "idle"
# What counts where several things go on, most useful first.
RANK: Final = (
    "train", CHECKPOINT, "scrub", "load", "check", "handshake", "receipt", "offer", "wait",
)  # fmt: skip
CLOSER_LOOK: Final = 9  # visits
MOST_DRAWN: Final = 900  # visits; of a longer run the first ones


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """The accelerator's time from its first visit to the end of its last.

    Attributes:
        segments: What it was used for, in order, without gap or overlap.
        transfer_s: Seconds of handshake, load and check, all visits added up.
    """

    segments: tuple[Span, ...]
    transfer_s: float

    @property
    def whole_s(self) -> float:
        """From first to last, in seconds."""
        return sum(self.seconds.values())

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by what the time was used for; they add up to the whole."""
        found: dict[str, float] = {}
        for each in self.segments:
            found[each.phase] = found.get(each.phase, 0.0) + each.seconds
        return found

    @property
    def exposed_s(self) -> float:
        """Seconds of bringing cargo in which nothing else was done."""
        return sum(self.seconds.get(phase, 0.0) for phase in TRANSFER_PHASES)


def spend(progress: Progress) -> TimeSpent:
    """Account for the time of every visit that has ended, and of every checkpoint."""
    spans = [span for visit in progress.visits for span in visit.spans]
    transfer_s = sum(each.seconds for each in spans if each.phase in TRANSFER_PHASES)
    end_s = max((span.ended_s for span in spans), default=0.0)
    spans += [
        Span(CHECKPOINT, each.at_s - each.seconds, each.at_s)
        for each in progress.checkpoints
        if not each.missed and each.at_s <= end_s
    ]
    return TimeSpent(tuple(_sweep(spans)), transfer_s)


def _sweep(spans: Iterable[Span]) -> Iterator[Span]:
    """Stretches between any two ends, each with what counts in it, like ones merged."""
    turns = [(each.began_s, 1, each.phase) for each in spans]
    turns += [(each.ended_s, -1, each.phase) for each in spans]
    under_way: Counter[str] = Counter()
    current: Span | None = None
    last_s: float | None = None
    for at_s, change, phase in sorted(turns):
        if last_s is not None and at_s > last_s:
            counts = next((each for each in RANK if under_way[each] > 0), IDLE)
            if current is not None and current.phase == counts:
                current = Span(counts, current.began_s, at_s)
            else:
                if current is not None:
                    yield current
                current = Span(counts, last_s, at_s)
        under_way[phase] += change
        last_s = at_s
    if current is not None:
        yield current


def timeline(outcome: Outcome, spending: TimeSpent) -> Markup:
    """Who is inside when: all visits, then the first ones by phase."""
    visits = [visit for visit in outcome.progress.visits if not visit.under_way]
    visits = visits[:MOST_DRAWN]
    start, end = min(v.began_s for v in visits), max(v.ended_s for v in visits)
    colours = [(owner, f"fill-{owner}") for owner in OWNERS]
    colours += [
        ("pale: held-out rows", "fill-joint pale"),
        ("refused", "fill-refused"),
    ]
    return section(
        "Whose rows are in memory",
        _lead(outcome),
        lanes(_lanes(visits, _whole), start, end),
        legend(colours),
        element("h3", f"The first {min(CLOSER_LOOK, len(visits))} visits, by phase"),
        _closer(visits[:CLOSER_LOOK], spending, mixed=outcome.travel.mixed),
    )


def _lead(outcome: Outcome) -> str:
    if outcome.travel.mixed:
        return (
            "Mixed rows: one slice of each owner is in memory at a time, and batches "
            "contain rows of all of them. Marked times are visits that were trained "
            "on together. No visit can read another visit's rows."
        )
    if outcome.travel.buffers == 2:
        return (
            "Two buffers: the next owner's rows are loaded while one owner's are in use, so "
            "bars of different owners overlap. No visit can read another visit's rows."
        )
    return (
        "One buffer: an owner's rows are overwritten and read back before the next owner's "
        "are loaded, so no two bars overlap."
    )


def _lanes(
    visits: Sequence[VisitSeen], draw: Callable[[VisitSeen, int], Iterable[BarPart]]
) -> list[Lane]:
    """One per owner; visits of one owner that overlap stand below each other."""
    rows = []
    for owner in OWNERS:
        free_from: list[float] = []  # by track
        parts: list[BarPart] = []
        own = [visit for visit in visits if visit.holder == owner]
        for visit in sorted(own, key=lambda each: each.began_s):
            free = [i for i, at in enumerate(free_from) if at <= visit.began_s]
            track = free[0] if free else len(free_from)
            free_from[track : track + 1] = [visit.ended_s]
            parts += draw(visit, track)
        rows.append(Lane(owner, parts, max(1, len(free_from)), f"ink-{owner}"))
    return rows


def _whole(visit: VisitSeen, track: int) -> Iterator[BarPart]:
    style = f"fill-{visit.holder}" if visit.verified else "fill-refused"
    if visit.verified and visit.purpose == "heldout":
        style += " pale"
    yield BarPart(visit.began_s, visit.ended_s, style, _say(visit), track)


def _phases(visit: VisitSeen, track: int) -> Iterator[BarPart]:
    """One part per phase; a refused visit is red until its scrub."""
    for span in visit.spans:
        failed = not visit.verified and span.phase in ("load", "check", "wait")
        style = "fill-refused" if failed else f"phase-{span.phase}"
        title = f"{_say(visit)} · {span.phase} {say_s(span.seconds)}"
        yield BarPart(span.began_s, span.ended_s, style, title, track)


def _say(visit: VisitSeen) -> str:
    purposes = {"heldout": "held-out rows", "prepare": "sums"}
    what = purposes.get(visit.purpose, "training")
    end = "" if visit.verified else f", refused [{visit.reason}]"
    return f"visit {visit.number}, {visit.holder}, {what}, {visit.rows} rows{end}"


def _closer(visits: Sequence[VisitSeen], spending: TimeSpent, *, mixed: bool) -> Markup:
    start, end = min(v.began_s for v in visits), max(v.ended_s for v in visits)
    used = [
        BarPart(
            max(start, each.began_s),
            min(end, each.ended_s),
            f"phase-{each.phase}",
            f"accelerator: {each.phase} {say_s(each.seconds)}",
        )
        for each in spending.segments
        if each.began_s < end and each.ended_s > start
    ]
    rows = [Lane("accelerator", used), *_lanes(visits, _phases)]
    seen = {part.style for row in rows for part in row.parts}
    colours = [("refused", "fill-refused")]
    named = ((name, f"phase-{name}") for name in (*PHASES, CHECKPOINT))
    colours += [each for each in named if each[1] in seen]
    colours += [("trained on together", "band")] if mixed else []
    bands = list(_groups(visits)) if mixed else []
    return join(lanes(rows, start, end, bands), legend(colours))


def _groups(visits: Sequence[VisitSeen]) -> Iterator[BarPart]:
    """Stretches in which several visits were trained on together."""
    for position in sorted({visit.position for visit in visits}):
        group = [visit for visit in visits if visit.position == position]
        spans = [s for visit in group for s in visit.spans if s.phase == "train"]
        if len({visit.holder for visit in group if visit.verified}) > 1 and spans:
            began, ended = min(s.began_s for s in spans), max(s.ended_s for s in spans)
            yield BarPart(began, ended, "band", f"visit batch {position}")


def where_time_went(outcome: Outcome, spending: TimeSpent) -> Markup:
    """Two bars and a table."""
    progress, used, whole_s = outcome.progress, spending.seconds, spending.whole_s
    starting = max(0.0, outcome.roles_up_s - outcome.world_s)
    releasing = max(0.0, progress.ready_s - progress.gathered_s)
    rest = outcome.seconds - outcome.world_s - starting - releasing - whole_s
    stages = {
        "keys and sealed data": (outcome.world_s, "tone-1"),
        "start of eight processes": (starting, "tone-2"),
        "evidence and release of keys": (releasing, "tone-3"),
        "visits": (whole_s, "tone-4"),
        "output and verification": (max(0.0, rest), "tone-5"),
    }
    uses = (name for name in (*PHASES, CHECKPOINT, IDLE) if name in used)
    overlapping = "Visits overlap, so their sum is longer than the accelerator's time."
    return section(
        "Where the time went",
        f"Of the accelerator's {say_s(whole_s)} between its first and its last "
        f"visit, {_share(used.get('train', 0.0), whole_s)} was training. Transfers of rows "
        f"took {say_s(spending.transfer_s)}; during {say_s(spending.exposed_s)} of that, "
        f"{_share(spending.exposed_s, whole_s)} of the time, nothing else was done.",
        element("h3", f"The command, {outcome.seconds:.1f} s"),
        _stacked(stages),
        element("h3", f"The accelerator, {say_s(whole_s)}"),
        _stacked({name: (used[name], f"phase-{name}") for name in uses}),
        element("h3", "A visit, by holder"),
        _phase_table(progress),
        element("p", overlapping, class_="small")
        if outcome.travel != ONE_BUFFER
        else "",
    )


def _share(seconds: float, whole_s: float) -> str:
    return f"{seconds / whole_s:.0%}" if whole_s else "0%"


def _stacked(stages: dict[str, tuple[float, str]]) -> Markup:
    whole = sum(seconds for seconds, _ in stages.values()) or 1.0
    parts, words = [], []
    for name, (seconds, style) in stages.items():
        parts.append(BarPart(0.0, seconds, style, f"{name}: {say_s(seconds)}"))
        words.append((f"{name} {say_s(seconds)}, {seconds / whole:.0%}", style))
    return join(stack(parts, whole), legend(words))


def _phase_table(progress: Progress) -> Markup:
    headings, rows = phase_table(progress)
    named = [
        [of_owner(name) if name in OWNERS else element("b", name), *cells]
        for name, *cells in rows
    ]
    return table(headings, named, numbers_from=1)


PARTS: Final = {"train": "training", "heldout": "measuring"}


def sealed(outcome: Outcome) -> Markup:
    """Tables at home, keys, checkpoints, and what left."""
    agreement = outcome.verdict.agreement
    return section(
        "What was encrypted, and with which keys",
        "Rows leave their owner's disk only encrypted, and are decrypted only in the "
        "accelerator. Each visit has its own key from a fresh handshake, which authenticates "
        "the frames around the records.",
        _at_home(agreement) if agreement else "",
        _keys(outcome),
        _checkpoints(outcome) if outcome.progress.checkpoints else "",
        _left(outcome, agreement) if agreement else "",
    )


def _at_home(agreement: Agreement) -> Markup:
    rows = [
        [
            of_owner(each.owner),
            PARTS[each.part],
            str(each.rows),
            say_bytes(each.total_bytes),
            str(each.num_records),
            code(each.content.short),
        ]
        for each in agreement.resources
    ]
    headings = ["table of", "for", "rows", "size", "records", "commitment"]
    return join(
        element("h3", "Tables of the owners"), table(headings, rows, numbers_from=2)
    )


def _keys(outcome: Outcome) -> Markup:
    progress, verdict = outcome.progress, outcome.verdict
    made = sum(not each.missed for each in progress.checkpoints)
    kinds = [
        (
            f"{progress.keys} data keys",
            "for the tables; each owner's broker released its own, after an entry in its log",
        ),
        (
            f"{len(progress.visits)} visit keys",
            "one for each visit, also refused ones; "
            f"{say_bytes(progress.sealed_bytes)} of frames were sent with them",
        ),
        (
            f"{made} checkpoint keys",
            f"one per checkpoint, split among {say_list(OWNERS)}: no owner can open one "
            "without the others",
        ),
        (
            f"{int(verdict.model_bytes > 0)} output key",
            f"for the model, {say_bytes(verdict.model_bytes)}; encrypted (HPKE) for the key of "
            f"{MODEL_OWNER} in the agreement",
        ),
    ]
    found = table(["how many", "what for"], kinds, prose=True)
    return join(element("h3", "Keys"), found)


def _checkpoints(outcome: Outcome) -> Markup:
    """Each with the digest of its file, as the owners' logs name it."""
    digests = {
        entry.number: entry.sealed.short
        for log in outcome.verdict.logs
        for entry in log.entries
        if isinstance(entry, CheckpointEntry) and entry.sealed is not None
    }
    rows = [
        [
            str(each.number),
            say_bytes(each.sealed_bytes),
            say_s(each.seconds),
            code(digests.get(each.number, "")),
            each.missed or "counts: recorded by every owner's broker",
        ]
        for each in outcome.progress.checkpoints
    ]
    headings = ["number", "sealed", "took", "digest in the logs", ""]
    return join(element("h3", "Checkpoints"), table(headings, rows))


def _left(outcome: Outcome, agreement: Agreement) -> Iterator[Markup]:
    """What left the accelerator, by name: metrics, sums of ``prepare``, the model."""
    rule, manifest = agreement.output_rule, outcome.verdict.manifest
    yield element("h3", "What left the accelerator")
    yield element(
        "p",
        f"Under the output rule of the agreement: {say_list(rule.metrics)}, rounded to "
        f"{rule.digits} decimal places, each over at least {rule.metric_rows} rows; and "
        f"the model, encrypted for {MODEL_OWNER}, after each owner had been visited. "
        "Owners' own models, prints and errors of the recipe stayed inside.",
    )
    if manifest is not None and manifest.statistics:
        rows = [
            [name, ", ".join(f"{value:g}" for value in each.values[:8])]
            for name, each in sorted(manifest.statistics.items())
        ]
        sums = f"sums over at least {rule.statistics_rows} rows left too"
        yield element("p", f"Before training, {sums}:")
        yield table(["statistic", "values over all owners (the first eight)"], rows)


def records(outcome: Outcome) -> Markup:
    """What the parties keep, folded away: every log entry, every receipt, every visit."""
    visits = outcome.progress.visits
    return section(
        "The records",
        "Each owner's broker logged each key before its release, and the other owners keep "
        "signed heads of that log. Each holder keeps a receipt of each visit, signed by the "
        "accelerator's instance key, which is part of its evidence. The scrub report in it "
        "is a statement of that accelerator, not a proof.",
        _logs(outcome.verdict.logs),
        _receipts(outcome.verdict.receipts),
        details(f"All {len(visits)} visits", _visits(visits)),
    )


def kept_records(outcome: Outcome) -> Markup:
    """Logs and receipts, of a run without visits."""
    return join(_logs(outcome.verdict.logs), _receipts(outcome.verdict.receipts))


def _logs(logs: Sequence[CheckedLog]) -> Markup:
    rows = [
        [
            of_owner(log.owner),
            str(log.size),
            str(log.releases),
            str(log.refusals),
            " and ".join(log.kept_by),
        ]
        for log in logs
    ]
    headings = ["audit log of", "entries", "releases", "refusals", "heads kept by"]
    columns = ["", "what", "of what", "to", "level", "under agreement"]
    whole: list[Child] = [
        [
            element("h3", element("span", log.owner, class_=f"ink-{log.owner}")),
            table(columns, map(_entry, range(log.size), log.entries)),
            element("p", "root ", code(log.root), class_="small"),
        ]
        for log in logs
    ]
    return join(table(headings, rows), details("Every entry of every log", *whole))


def _entry(index: int, entry: Entry) -> list[str]:
    peer = " ".join(dict.fromkeys(filter(None, (entry.role, entry.peer))))
    kind = f"{entry.kind} [{entry.rule}]" if entry.rule else entry.kind
    under = entry.agreement.short
    return [str(index), kind, entry.subject, peer, entry.level, under]


def _receipts(receipts: Sequence[Receipt]) -> Markup:
    rows = []
    for owner in OWNERS:
        own = [receipt for receipt in receipts if receipt.holder == owner]
        scrubs = [receipt.scrub for receipt in own]
        rows.append(
            [
                of_owner(owner),
                str(len(own)),
                say_bytes(sum(receipt.cargo_bytes for receipt in own)),
                say_bytes(sum(scrub.scrubbed_bytes for scrub in scrubs)),
                str(sum(scrub.nonzero_bytes for scrub in scrubs)),
            ]
        )
    each = [
        [
            receipt.visit.to_text()[:12],
            receipt.holder,
            f"{receipt.resource} {receipt.first_row} to "
            f"{receipt.first_row + receipt.rows - 1}",
            receipt.content.short,
            say_bytes(receipt.scrub.scrubbed_bytes),
            str(receipt.scrub.nonzero_bytes),
        ]
        for receipt in receipts
    ]
    headings = ["receipts of", "number", "opened", "scrubbed", "bytes not zero"]
    columns = ["visit", "holder", "rows", "content", "scrubbed", "not zero"]
    return join(
        table(headings, rows, numbers_from=1),
        details(f"All {len(receipts)} receipts", table(columns, each, numbers_from=4)),
    )


def _visits(visits: Sequence[VisitSeen]) -> Markup:
    names = timed_phases(visits)
    rows = []
    for visit in visits:
        loss = visit.metrics.get("loss")
        reason = f" [{visit.reason}]" if visit.reason else ""
        rows.append(
            [
                str(visit.number),
                visit.holder,
                visit.purpose,
                visit.outcome + reason,
                *(say_s(visit.phases_s.get(name, 0.0)) for name in names),
                say_bytes(visit.sealed_bytes),
                "" if loss is None else f"{loss:.3f}",
            ]
        )
    headings = ["key epoch", "holder", "rows for", "outcome", *names, "sealed", "loss"]
    return table(headings, rows, numbers_from=4)
