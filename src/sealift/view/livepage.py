"""The live page of a run, as fragments that are drawn again when their content has changed.

Fragments keep their identity, so what a person has unfolded stays unfolded. This module only
turns a journal and a party's files into markup; it reads and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from sealift.attest.evidence import Evidence
from sealift.attest.level import Level, protects_nobody
from sealift.attest.verifier import AppraisalCheck
from sealift.release.agreement.explain import KEPT_OUT
from sealift.release.agreement.phrases import count, say_list
from sealift.train.job.journal import FINISHED
from sealift.travel.peers import call_by_person
from sealift.view.charts import LARGEST, BarPart, Curve, legend, plot, stack
from sealift.view.live import WHOSE, LiveRun
from sealift.view.markup import (
    Child,
    Markup,
    code,
    details,
    element,
    facts,
    join,
    page,
    say_bytes,
    say_loudly,
    say_s,
    section,
    table,
    tiles,
    verdict_chip,
)
from sealift.view.report import SeenRun, for_owners, privacy_section

SILENT_S: Final = 30.0
_KNOWN: Final = frozenset({"purpose", "epoch", "owner", "table", "rows"})
_STYLES: Final = 6


@dataclass(frozen=True, slots=True)
class AcceleratorEvidence:
    """Evidence of one accelerator, and what it was compared with."""

    who: str
    evidence: Evidence
    level: str
    checks: tuple[AppraisalCheck, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """What the party keeps of the run, as far as it is there.

    Attributes:
        planned: Units of the plan; 0 if nobody knows.
        before: Of these, done before the run began, or went on.
        level: As evidence proved it.
        seen: What a data officer asks; None without an agreement.
        proofs: Of accelerators.
        papers: Log, receipts: a name, what it says.
        receipt: Lines of the run's receipt that hold.
        refusal: What of it does not.
        people: What people call accelerators, by their names on the relay.
    """

    planned: int = 0
    before: int = 0
    level: str = ""
    seen: SeenRun | None = None
    proofs: tuple[AcceleratorEvidence, ...] = ()
    papers: Mapping[str, str] = field(default_factory=dict)
    receipt: tuple[tuple[str, str], ...] = ()
    refusal: str = ""
    people: Mapping[str, str] = field(default_factory=dict)


def fragments(run: LiveRun, kept: RunFiles, now_s: float) -> dict[str, Markup]:
    """Every fragment by its name, in the order of the page."""
    drawn: dict[str, Callable[[], Markup]] = {
        "banner": lambda: _banner(run, kept),
        "status": lambda: _status(run, kept, now_s),
        "numbers": lambda: _numbers(run),
        "privacy": lambda: privacy_section(kept.seen, run.privacy),
        "inside": lambda: _inside(run, kept.people, now_s),
        "keys": lambda: _keys(run, kept.people),
        "trouble": lambda: _trouble(run, kept.people),
        "evidence": lambda: _evidence(kept),
        "costs": lambda: _costs(run),
        "papers": lambda: _papers(kept),
        "officer": lambda: for_owners(kept.seen) if kept.seen else join(),
    }
    return {name: element("div", draw(), id=name) for name, draw in drawn.items()}


def report(run: LiveRun, kept: RunFiles, now_s: float) -> str:
    """The same as a file of its own, once the run is over."""
    _, *rest = fragments(run, kept, now_s).values()
    return page(f"Sealift run: {run.job}", _loud(run, kept), *rest)


def _banner(run: LiveRun, kept: RunFiles) -> Markup:
    loud = _loud(run, kept)
    return element("div", loud, class_="banner", role="note") if loud else loud


def _loud(run: LiveRun, kept: RunFiles) -> Markup:
    """In red, what no reader shall miss."""
    level = run.level or kept.level
    if not level or not protects_nobody(level):
        return join()
    bare = Level(level.partition(" ")[0])
    return join(element("b", say_loudly(level)), KEPT_OUT[bare])


def _status(run: LiveRun, kept: RunFiles, now_s: float) -> Markup:
    eyebrow = element("p", f"Sealift run · plan {run.plan or '…'}", class_="eyebrow")
    said = element("p", _say_state(run, kept, now_s), class_="state", role="status")
    return join(
        eyebrow, element("h1", run.job or "The run has not started"), said,
        _progress(run, kept), _first_tiles(run),
    )  # fmt: skip


def _first_tiles(run: LiveRun) -> Markup:
    """Outcome, rows and time, for whoever reads no further."""
    if not run.working_s:
        return join()
    own = [row for row in run.rows if row["owner"] not in WHOSE]
    trained = [row for row in own if row["purpose"] == "train"]
    last = max((row["epoch"] or 0 for row in trained), default=0)
    rows = sum(row["rows"] for row in trained if (row["epoch"] or 0) == last)
    outcome = run.outcome or "running"
    found = [
        (outcome, "outcome", ""),
        (_say_left(run.last_s - run.began_s), "time", ""),
    ]
    if rows:
        found.insert(1, (f"{rows:,}", f"rows in epoch {last:,}", ""))
    return tiles(found)


def _say_state(run: LiveRun, kept: RunFiles, now_s: float) -> str:
    if not run.roles:
        return "Waiting for the first process of this run to start."
    who = say_list(sorted(run.roles))
    if run.is_over:
        if run.outcome == FINISHED:
            return f"Finished at {_clock(run.last_s)}, as {who} reported."
        lines = [f"{by}: {line}." for by, line in run.endings.items() if line]
        return f"Ended. {' '.join(lines)} [{run.outcome}]"
    silent = now_s - run.last_s
    quiet = f" No news for {silent:.0f} s." if silent > SILENT_S else ""
    if not run.working_s:
        connected = _present(run, kept.people) or "nobody yet"
        return (
            f"Waiting for the parties. Connected: {connected} (seen by {who}).{quiet}"
        )
    done = kept.before + run.units
    left = run.left_s(kept.planned - done)
    ahead = f", about {_say_left(left)} left" if left is not None else ""
    of = f" of {kept.planned:,}" if kept.planned else ""
    what = "rounds" if run.plan == "ddp" else "visits"
    return f"Training: {done:,}{of} {what} done{ahead}.{quiet}"


def _present(run: LiveRun, people: Mapping[str, str]) -> str:
    return say_list([call_by_person(name, people) for name in run.present if name])


def _progress(run: LiveRun, kept: RunFiles) -> Markup:
    if not kept.planned or not run.working_s:
        return join()
    done = min(kept.before + run.units, kept.planned)
    return element("progress", value=done, max=kept.planned, aria_label="progress")


def _say_left(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds > 180 else f"{seconds:.0f} s"


def _clock(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S UTC")


def _numbers(run: LiveRun) -> Markup:
    """A figure for each number: a line per party, over the epochs; the others folded."""
    names = sorted({name for row in run.rows for name in row} - _KNOWN)
    main = _figures(run, [name for name in names if "." not in name])
    others = _figures(run, [name for name in names if "." in name])
    if not main and not others:
        return section("Numbers", "There are no results yet.")
    folded = (
        details(
            "More numbers, such as those of models of one owner's rows alone",
            _grid(others),
        )
        if others
        else ""
    )
    lead = "Only the results that the agreement allows, rounded."
    return section("Numbers", lead, _grid(main), folded)


def _grid(figures: list[Markup]) -> Markup:
    return element("div", figures, class_="figures")


def _figures(run: LiveRun, names: Sequence[str]) -> list[Markup]:
    drawn = []
    for name in names:
        for purpose, title in (
            ("heldout", "held-out rows"),
            ("train", "training rows"),
        ):
            curves = list(_curves(run.rows, name, purpose))
            if not curves:
                continue
            figure = element("p", ", ".join(_last(curve) for curve in curves))
            if any(len(curve.points) > 1 for curve in curves):
                figure = plot(curves, "epoch")
            drawn.append(element("div", element("h3", f"{name}, {title}"), figure))
    return drawn


def _last(curve: Curve) -> str:
    return f"{curve.name} {curve.points[-1][1]:.4g}"


def _curves(
    rows: Sequence[Mapping[str, Any]], name: str, purpose: str
) -> Iterator[Curve]:
    of = (r for r in rows if r["purpose"] == purpose and r["epoch"] and name in r)
    found = [row for row in of if abs(float(row[name])) < LARGEST]  # so no NaN either
    # An owner's own numbers come before those of all, and of a model of its rows alone.
    owners = sorted(
        {row["owner"] for row in found}, key=lambda each: (each in WHOSE, each)
    )
    for number, owner in enumerate(owners):
        points = list(_means([r for r in found if r["owner"] == owner], name))
        titles = [f"epoch {epoch:g}: {value:.4g}" for epoch, value in points]
        style = f"line-{number % _STYLES} line-{owner}"
        yield Curve(owner or "all", points, style, titles)


def _means(
    rows: Sequence[Mapping[str, Any]], name: str
) -> Iterator[tuple[float, float]]:
    for epoch in sorted({row["epoch"] for row in rows}):
        of = [row for row in rows if row["epoch"] == epoch]
        weights = [row["rows"] or 1 for row in of]
        pairs = zip(of, weights, strict=True)
        total = sum(float(row[name]) * weight for row, weight in pairs)
        yield float(epoch), total / sum(weights)


def _inside(run: LiveRun, people: Mapping[str, str], now_s: float) -> Markup:
    """Whose rows are in the accelerator now."""
    cells: list[list[Child]] = [
        [
            element("b", each.holder),
            f"{each.resource} ({each.purpose})",
            each.phase,
            f"{max(0.0, now_s - each.since_s):.0f} s",
        ]
        for each in run.inside.values()
    ]
    if run.plan == "ddp":
        return section(
            "Rows in use",
            "Rows stay on their machines: each accelerator reads its own part only.",
            element("p", f"Connected: {_present(run, people) or 'only this one'}."),
        )
    if not cells:
        return section("Rows in use", "The accelerator holds no rows now.")
    headings = ["owner", "rows", "phase", "for"]
    lead = "Rows that are in the accelerator's memory now."
    return section("Rows in use", lead, table(headings, cells))


def _keys(run: LiveRun, people: Mapping[str, str]) -> Markup:
    cells: list[list[Child]] = [
        [
            _clock(at),
            verdict_chip(True, "released", ""),
            call_by_person(said, people),
            "",
        ]
        for at, said in run.released
    ]
    cells += [
        [
            _clock(at),
            verdict_chip(False, "", "refused"),
            call_by_person(said, people),
            code(rule),
        ]
        for at, said, rule in run.refused
    ]
    if not cells:
        return section("Keys", "No key release was seen here yet, and no refusal.")
    cells.sort(key=lambda row: str(row[0]))
    lead = "Key releases and refusals; `sealift explain RULE` explains a rule."
    return section("Keys", lead, table(["time", "", "what", "rule"], cells, prose=True))


def _trouble(run: LiveRun, people: Mapping[str, str]) -> Markup:
    if not run.trouble:
        return join()
    cells: list[list[Child]] = [
        [_clock(at), call_by_person(said, people)] for at, said in run.trouble
    ]
    return section("What went wrong", "", table(["time", "what"], cells, prose=True))


def _evidence(kept: RunFiles) -> Markup:
    if not kept.proofs:
        return section("Evidence", "This party has received none yet.")
    return section(
        "Evidence",
        "Attestation evidence of machines, and each comparison with reference values.",
        [_proof(each) for each in kept.proofs],
    )


def _proof(proof: AcceleratorEvidence) -> Markup:
    passed = sum(not each.code for each in proof.checks)
    cells: list[list[Child]] = [
        [
            each.subject,
            each.expected,
            each.found,
            verdict_chip(not each.code, "fits", each.code),
        ]
        for each in proof.checks
    ]
    summary = (
        f"{proof.who}: {proof.evidence.kind}, level {proof.level}; "
        f"{passed} of {count(len(proof.checks), 'comparison')} passed"
    )
    digest = element("p", "evidence ", code(proof.evidence.digest.to_text()))
    rows = table(["what", "expected", "found", ""], cells, prose=True)
    return details(summary, digest, rows)


def _costs(run: LiveRun) -> Markup:
    """Bytes, and where the time of visits went."""
    found = []
    if run.sealed_bytes:
        found.append((say_bytes(run.sealed_bytes), "sent, encrypted", ""))
    if run.scrubbed_bytes:
        found.append((say_bytes(run.scrubbed_bytes), "overwritten and read back", ""))
    if run.receipts:
        found.append((f"{run.receipts:,}", "receipts kept", ""))
    if run.checkpoints:
        found.append((f"{run.checkpoints:,}", "checkpoints", ""))
    phases = {n: s for n, s in run.phases_s.items() if s > 0}
    if not found and not phases:
        return join()
    drawn: list[Child] = [tiles(found)] if found else []
    if phases:
        whole_s, at, parts = sum(phases.values()), 0.0, []
        for name, seconds in phases.items():
            style = f"phase-{name}"
            parts.append(BarPart(at, at + seconds, style, f"{name}: {say_s(seconds)}"))
            at += seconds
        named = [(f"{n} {say_s(s)}", f"phase-{n}") for n, s in phases.items()]
        drawn += [element("h3", "Time of the visits, by phase")]
        drawn += [stack(parts, whole_s), legend(named)]
    return section("Bytes and time", "", *drawn)


def _papers(kept: RunFiles) -> Markup:
    drawn: list[Child] = [facts(kept.papers)] if kept.papers else []
    if kept.refusal:
        said = element("p", verdict_chip(False, "", "not valid"), " ", kept.refusal)
        drawn += [element("h3", "Receipt of the run"), said]
    elif kept.receipt:
        lines = table(["part", "what it says"], kept.receipt, prose=True)
        holds = verdict_chip(True, "consistent", "")
        summary = f"Receipt of the run: {count(len(kept.receipt), 'part')}, consistent in themselves"
        drawn.append(element("p", holds))
        drawn.append(details(summary, lines))
    if not drawn:
        return section("Records", "There is no receipt and no log here yet.")
    return section("Records", "Files that this party keeps and can show later.", *drawn)
