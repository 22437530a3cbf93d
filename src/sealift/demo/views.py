"""What the terminal shows: progress while it is made, and a summary at the end.

Progress is redrawn on a terminal, or printed as lines for a file or a pipe.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import fmean
from typing import Final, Protocol, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sealift.attest.level import Level, say_level
from sealift.demo import cheating
from sealift.demo.cheating import OLD_ANSWER, ONE_NUMBER, ZEROS
from sealift.demo.folder import OWNERS
from sealift.demo.holders import BEYOND_LEASE, PREVIOUS_KEY, REPLAY
from sealift.demo.outcome import BOUND_S, TOGETHER, Outcome, was_refused
from sealift.demo.progress import AttackSeen, Progress, RoundSeen, VisitSeen
from sealift.demo.tasks import Metric, Sample, ShownTask
from sealift.release.agreement.phrases import say_list
from sealift.train.job.roleprocesses import RoleEvent
from sealift.train.sandbox.confine import Confinement
from sealift.view.markup import say_bytes, say_loudly

PHASES: Final = ("handshake", "load", "train", "scrub", "receipt")  # as dots
COLOUR_OF: Final = dict(zip(OWNERS, ("cyan", "magenta", "yellow"), strict=True))
SPARKS: Final = "▁▂▃▄▅▆▇█"
REFRESHES_PER_S: Final = 10
LINE_EVERY: Final = 12  # training visits


class View(AbstractContextManager["View"], Protocol):
    """Where progress goes."""

    def say(self, line: str) -> None:
        """Tell people what begins now."""
        ...

    def watch(self, progress: Progress, event: RoleEvent) -> None:
        """Show the state after an event."""
        ...


def open_view(task: ShownTask, rehearse: Level | None) -> View:
    """The view that suits stderr, which begins with the level that the demo will show."""
    level = say_level(Level.DEVELOPMENT, rehearse)
    talk = Console(stderr=True)
    if talk.is_terminal:
        return Screen(talk, level)
    return Lines(sys.stderr, task.headline, level)


class Screen:
    """Redraws itself in place: who is visited, in which phase, what has been refused.

    Args:
        console: A terminal.
        level: That the demo will show.
    """

    def __init__(self, console: Console, level: str) -> None:
        self._level = level
        self._console = console
        self._said: list[str] = []
        self._progress: Progress | None = None
        self._live = Live(
            console=console,
            refresh_per_second=REFRESHES_PER_S,
            get_renderable=self._draw,
            transient=True,
        )

    def __enter__(self) -> Self:
        banner = Panel(
            Text(say_banner(self._level)),
            title=say_loudly(self._level),
            style="bold white on red",
            expand=False,
        )
        self._console.print(banner)
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def say(self, line: str) -> None:
        """Show a line below the banner."""
        self._said = [*self._said[-2:], line]

    def watch(self, progress: Progress, _event: RoleEvent) -> None:
        """Remember the state; the next refresh draws it."""
        self._progress = progress

    def _draw(self) -> RenderableType:
        progress, said = self._progress, Text("\n".join(self._said), style="dim")
        if progress is None:
            return said
        up = [name for name in progress.on_relay if name != "orchestrator"]
        roles = Text(f"{1 + len(up)} processes up: ", style="dim")
        roles.append("orchestrator " + " ".join(up))
        if progress.keys:
            roles.append(f"  ·  {progress.keys} data keys released", style="dim")
        if progress.rounds:
            return Group(said, roles, _rounds(progress))
        return Group(
            said, roles, _parties(progress), _bar(progress), _attacks(progress)
        )


def _parties(progress: Progress) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("holder", "phase", "key epoch", "loss", "loss over visits"):
        table.add_column(heading, header_style="dim")
    for owner in OWNERS:
        visits = [v for v in progress.trained if v.holder == owner]
        losses = [v.metrics.get("loss", 0.0) for v in visits]
        last = progress.last_of(owner)
        here = last if last is not None and last.under_way else None
        table.add_row(
            Text(owner, style=f"bold {COLOUR_OF[owner]}"),
            _phase(here),
            str(here.number) if here else "",
            f"{losses[-1]:.3f}" if losses else "",
            Text(_spark(losses), style=COLOUR_OF[owner]),
        )
    return table


def _rounds(progress: Progress) -> Table:
    """What all ranks' rounds came to so far."""
    trained = [each for each in progress.rounds if each.purpose == "train"]
    losses = [each.metrics.get("loss", 0.0) for each in trained]
    grid = Table.grid(padding=(0, 2, 0, 0))
    seconds = f"{trained[-1].seconds:.2f} s the last one" if trained else ""
    loss = f"loss {losses[-1]:.3f}" if losses else ""
    grid.add_row(f"{len(trained)} rounds", loss, _spark(losses), seconds)
    return grid


def _phase(visit: VisitSeen | None) -> Text:
    """Five dots, the phases that were reached filled in."""
    if visit is None:
        return Text("· · · · ·          ", style="dim")
    now = visit.marks[-1][0] if visit.marks else ""
    reached = sum(phase in dict(visit.marks) for phase in PHASES)
    dots = " ".join("●" if index < reached else "·" for index in range(len(PHASES)))
    style = "red" if visit.reason else "green"
    return Text(f"{dots} {'refused' if visit.reason else now:<9}", style=style)


def _spark(losses: list[float]) -> str:
    shown = losses[-24:]
    top = max(shown, default=0.0) or 1.0
    return "".join(SPARKS[min(7, int(loss / top * 7.99))] for loss in shown)


def _bar(progress: Progress) -> Table:
    done = len(progress.verified)
    grid = Table.grid(padding=(0, 2, 0, 0))
    recent = [v.metrics.get("loss", 0.0) for v in progress.trained[-6:]]
    grid.add_row(
        ProgressBar(total=progress.planned, completed=done, width=30),
        f"{done} of {progress.planned} visits",
        f"loss {fmean(recent):.3f}" if recent else "",
        f"{say_bytes(progress.sealed_bytes)} sealed",
        f"{progress.transfer_s:.2f} s in transfer",
    )
    return grid


def _attacks(progress: Progress) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for attack in progress.attacks:
        verdict = f"REFUSED [{attack.reason}]" if attack.reason else "…"
        grid.add_row(
            Text("attack", style="bold red"),
            f"{attack.holder} {ATTACK_IN_WORDS[attack.name]}",
            Text(verdict, style="bold green"),
        )
    return grid


class Lines:
    """Prints a line when something worth one has happened.

    Args:
        stream: Usually stderr.
        headline: What is told of a visit to held-out rows.
        level: That the demo will show.
    """

    def __init__(self, stream: TextIO, headline: Metric, level: str) -> None:
        self._stream = stream
        self._headline = headline
        self.say(f"{say_loudly(level)}: {say_banner(level)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing is left open."""

    def say(self, line: str) -> None:
        """Print a line."""
        print(f"sealift: {line}", file=self._stream, flush=True)

    def watch(self, progress: Progress, event: RoleEvent) -> None:
        """Print what this event is worth."""
        visit = progress.visit(event.text("visit"))
        if event.kind == "relay.registered":
            self.say(f"{event.text('name')} has connected")
        elif event.kind == "job.ready":
            self.say(
                f"accelerator ready at level {progress.level}, {progress.keys} keys "
                f"released, sandbox: {progress.sandbox or 'none'}"
            )
        elif event.kind == "round.ended":
            self._round(progress.rounds[-1])
        elif event.kind == "visit.ended" and visit is not None:
            self._visit(progress, visit)
        elif event.kind == "shares.wrong":
            self.say(f"REFUSED [{event.text('code')}]: {event.text('line')}")
        elif event.kind == "checkpoint.missed":
            self.say(
                f"checkpoint {event.text('number')} was not saved: {event.text('line')}"
            )

    def _round(self, seen: RoundSeen) -> None:
        if seen.purpose == "heldout":
            found = self._headline.say(seen.metrics.get(self._headline.name, 0.0))
            self.say(
                f"held-out rows of all owners: {self._headline.title}, {found}, "
                f"after round {seen.epoch + 1}"
            )
        else:
            self.say(
                f"round {seen.epoch + 1}: loss {seen.metrics.get('loss', 0.0):.3f} over "
                f"{seen.rows} rows, {seen.seconds:.2f} s"
            )

    def _visit(self, progress: Progress, visit: VisitSeen) -> None:
        done, headline = len(progress.verified), self._headline
        if not visit.verified:
            self.say(
                f"visit {visit.number} of {visit.holder} REFUSED [{visit.reason}]: "
                f"{visit.line}; revoked, {say_bytes(visit.scrubbed_bytes)} scrubbed"
            )
        elif visit.purpose == "heldout":
            found = headline.say(visit.metrics.get(headline.name, 0.0))
            self.say(
                f"held-out rows of {visit.holder}: {headline.title}, {found}, "
                f"after epoch {visit.epoch + 1}"
            )
        elif done % LINE_EVERY == 0:
            self.say(
                f"{done} of {progress.planned} visits, key epoch {visit.number}, "
                f"loss {visit.metrics.get('loss', 0.0):.3f} at {visit.holder}, "
                f"{say_bytes(progress.sealed_bytes)} sealed, "
                f"{progress.transfer_s:.2f} s in transfer"
            )


ACT_IN_WORDS: Final = "executed a program that is not in the agreement"
ATTACK_IN_WORDS: Final[Mapping[str, str]] = {
    REPLAY: "sends a record a second time",
    BEYOND_LEASE: "writes outside of its lease",
    PREVIOUS_KEY: "uses the key of its previous visit",
    ONE_NUMBER: "changes one number of a product",
    OLD_ANSWER: "sends an old product again",
    ZEROS: "sends zeros",
}
WHY_REFUSED: Final[Mapping[str, str]] = {
    REPLAY: "frames of a visit are numbered; only the next number is accepted",
    BEYOND_LEASE: "the signed lease says which bytes of which buffer may be written",
    PREVIOUS_KEY: "every visit has a fresh key from its own handshake",
    **dict.fromkeys(
        (ONE_NUMBER, OLD_ANSWER, ZEROS),
        "each product is verified before it is used, with random numbers that are drawn "
        "afterwards; one row, computed again, identifies the server",
    ),
}
REAL: Final = (
    "eight operating-system processes with keys of their own, over TCP",
    "hybrid key exchange (X25519 and ML-KEM-768) in every session",
    "AES-256-GCM records, encrypted by their owner, decrypted only in the accelerator",
    "one agreement that every party signed; one broker per owner releases its keys",
    "audit logs as Merkle trees, receipts signed by the accelerator's instance key",
    "memory overwritten and read back after every visit",
)
REAL_AT_HOME: Final = (
    "seven operating-system processes with keys of their own",
    "an attested session for every pair of accelerators (X25519 and ML-KEM-768)",
    "AES-256-GCM records for stored rows and for all messages between accelerators",
    "one agreement that every party signed; each broker releases to its owner's own "
    "accelerator alone",
    "audit logs as Merkle trees, receipts signed by each accelerator's instance key",
    "memory overwritten and read back after every use of rows",
)
REAL_SERVERS: Final = (
    "three share servers, processes with keys of their own: each multiplies random-looking "
    "numbers, and signs its results",
)
TOGETHER_THEY_SEE: Final = "the three servers run on one machine; if two of them collude, they can read everything"
SOFTWARE_KEY: Final = (
    "evidence comes from a software key: it proves nothing about the machine"
)
REAL_REHEARSED: Final = (
    "a guest with Debian's kernel: measured boot, IMA, quotes, each owner's enrolment",
    "leases, renewed by fresh evidence every second or so, revoked by each owner's own broker",
)
ONLY_REHEARSED: Final = (
    "the guest attests, but the accelerator's process runs outside of it on this machine: "
    "this tests the steps, and gives no protection",
    "the guest's TPM is software, and whoever runs this machine can change the guest",
)
DEVELOPMENT_ONLY: Final = (
    "whoever runs this machine can read everything on it",
    "all parties' keys and passphrases lie in one folder",
    "the accelerator is a CPU process that stands in for a GPU",
)


@dataclass(frozen=True, slots=True)
class LevelWords:
    """What a level means to a reader; the demo never has one that protects.

    Attributes:
        banner: Why nobody is kept out.
        evidence: What had to verify.
        not_out: Who can still read, or what is not covered.
    """

    banner: str
    evidence: str
    not_out: str


ONLY_DEVELOPMENT: Final = LevelWords(
    "software keys prove nothing about this machine, so nothing here is protected",
    "a statement signed with a software key that the agreement names",
    "Whoever runs this machine, and every program on it, can read rows, keys and "
    "model. All other steps are real.",
)
REHEARSED: Final = LevelWords(
    "a guest with a software TPM attests, but the accelerator's process runs outside of it "
    "on this machine, so nothing here is protected",
    "a quote of a software TPM, with the whole measurement log of a guest",
    "The guest attests, but the accelerator's process, with rows, keys and model, runs "
    "outside of it, and whoever runs this machine can read all of it.",
)


def level_words(level: str) -> LevelWords:
    """What a level means, as ``say_level`` writes it."""
    return REHEARSED if rehearses(level) else ONLY_DEVELOPMENT


def rehearses(level: str) -> bool:
    """Whether a level, as ``say_level`` writes it, is only rehearsed."""
    return "rehearsing" in level


def say_banner(level: str) -> str:
    """Who is kept out at a level that protects nobody: nobody, and why."""
    return level_words(level).banner


def say_sandbox(word: str) -> str:
    """What kept the recipe in, from the word that manifest and receipts carry."""
    return Confinement.parse(word).say("ran")


BAR_WIDTH: Final = 24
ROLES_BAR_S: Final = 8.0
GUEST_BAR_S: Final = 30.0
SAMPLE_LINES: Final = 4


def print_summary(outcome: Outcome, console: Console) -> None:
    """Print how it ended: 24 lines of 100 characters at most, for who has read nothing."""
    console.print(Text(_story(outcome), style="bold"))
    console.print(_results(outcome))
    if outcome.sample is not None:
        console.print(_sample(outcome.sample))
    if outcome.plan != "local":
        lines = [*_summed_attacks(outcome), *_checks(outcome), *_revocation(outcome)]
        for line in lines:
            line.truncate(console.width, overflow="ellipsis")
            console.print(line)
    for line in _ending(outcome):
        console.print(line, soft_wrap=True, highlight=False)


def _story(outcome: Outcome) -> str:
    """What it was about, in two lines."""
    who, words = say_list(OWNERS).capitalize(), outcome.task.words
    visits = len(outcome.progress.verified)
    if outcome.plan == "local":
        return (
            f"One process read the {words.rows} of {say_list(OWNERS)}, with all keys."
        )
    if not visits:
        return (
            f"{who} kept their {words.rows} on machines of their own,\n"
            "and trained one model by exchanging encrypted updates."
        )
    return (
        f"{who} trained one model without showing each other their {words.rows}:\n"
        f"in {visits} visits {say_bytes(outcome.progress.sealed_bytes)} were sent encrypted, "
        "and the memory was overwritten after each visit."
    )


def _sample(sample: Sample) -> Text:
    """The first lines of what the model writes."""
    text = Text(sample.begun, style="bold")
    text.append(sample.made, style="not bold")
    lines = text.split("\n")[:SAMPLE_LINES]
    return Text("\n").join([Text("It writes:"), *lines])


def _results(outcome: Outcome) -> Table:
    metrics = outcome.task.metrics
    table = _table()
    table.add_column("", min_width=12)
    table.add_column("on held-out rows")
    for metric in metrics:
        less = ", less is better" if metric.lower_is_better else ""
        table.add_column(f"{metric.title}{less}", justify="right")
    for model in outcome.models:
        style = "green" if model.name == TOGETHER else "red"
        bar = Text("█" * round(model.share * BAR_WIDTH), style=style)
        said = [metric.say(model.metrics[metric.name]) for metric in metrics]
        table.add_row(model.name, bar, *said)
    return table


def _summed_attacks(outcome: Outcome) -> Iterator[Text]:
    for attack in outcome.attacks:
        good = was_refused(attack)
        line = _mark(good)
        line.append(f"{attack.holder} {ATTACK_IN_WORDS[attack.name]}: ")
        line.append("refused" if good else "NOT REFUSED", style="bold")
        line.append(f" [{attack.reason}], {_after(attack)}")
        yield line


def _after(attack: AttackSeen) -> str:
    if attack.name in cheating.TRIES:
        return f"{attack.visit} was repeated"
    scrubbed = say_bytes(attack.scrubbed_bytes)
    return f"{scrubbed} scrubbed"


def _checks(outcome: Outcome) -> Iterator[Text]:
    for good, words in outcome.verdict.checks:
        yield _mark(good).append(words)
    for failure in outcome.verdict.failures:
        yield _mark(False).append(failure, style="red")


def _revocation(outcome: Outcome) -> Iterator[Text]:
    found = outcome.revocation
    if found is None:
        return
    rules = ", ".join(f"{owner} [{rule}]" for owner, rule in found.rules.items())
    yield _mark(found.held).append(
        f"then the host {ACT_IN_WORDS}; lease revoked by {rules or 'nobody'}; "
        f"{found.say_stop()} (bar: {BOUND_S:g} s), "
        f"{say_bytes(found.scrubbed_bytes)} scrubbed"
    )


def _ending(outcome: Outcome) -> Iterator[Text]:
    yield Text(f"report   {outcome.world.report}")
    yield Text(f"model    {outcome.world.model}")
    line = Text("time     ")
    line.append(_against("in all", outcome.seconds, outcome.bar_s))
    if outcome.plan in ("travel", "outsource"):
        line.append(
            _against(
                ", all processes ready after", outcome.roles_up_s, _result_bar(outcome)
            )
        )
    yield line
    if outcome.plan != "local":
        yield Text(
            f"code     {say_sandbox(outcome.sandbox).removeprefix('the recipe ')}"
        )
    loud = f"{say_loudly(outcome.level)}: {say_banner(outcome.level)}"
    yield Text(loud, style="bold red")


def _result_bar(outcome: Outcome) -> float:
    """Before the roles start, a guest boots or a server compiles, where there is one."""
    plain = outcome.revocation is None and outcome.plan != "outsource"
    return ROLES_BAR_S if plain else GUEST_BAR_S


def _against(what: str, seconds: float, bar_s: float) -> str:
    return f"{what} {seconds:.1f} s (bar: {bar_s:g} s)"


def _mark(good: bool) -> Text:
    return Text("✓ ", style="bold green") if good else Text("✗ ", style="bold red")


def _table() -> Table:
    return Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=True,
        header_style="dim",
    )  # fmt: skip
