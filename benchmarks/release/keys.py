"""What it takes to get a key: with a real TPM's protocol, in numbers, and over time.

Broker, relay and accelerators are processes of their own, vault and log are on the disk
and synced, every release has a session of its own but where a row says otherwise. Evidence is a
software TPM's quote with the whole list of measurements, or a development attester's.
Arms are interleaved in rounds; rows give the distribution, ratios the median of rounds.
Bars: a release within 50 ms, 150 at the 99th percentile; 250 a second; 400,000 IMA entries
a second; revoked within a heartbeat and a second.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.harness import Answer, Peers
from benchmarks.release.costs import (
    measure_deploy,
    measure_ima,
    measure_reports,
)
from benchmarks.release.ends import (
    HEARTBEAT_S,
    BrokerEnd,
    ClientEnd,
    RelayEnd,
)
from benchmarks.report import BenchReport, Row, distribution, start_report
from sealift.demo.holders import PACE_S
from sealift.demo.job import HEARTBEAT_S as REHEARSED_HEARTBEAT_S
from sealift.demo.job import make_world, second_act
from sealift.demo.outcome import BOUND_S
from sealift.demo.tasks import DIGITS
from sealift.errors import IntegrityError, SealiftError
from tests.guest.rehearsal import RehearsedHost

NEW_SESSION: Final = "development evidence, a new session each"
STANDING: Final = "development evidence, sessions that stand"
_EARLIEST_S: Final = 0.5
_SPREAD_MS: Final = 1000
LONG_S: Final = 600.0  # of leases that are renewed by hand
# Perun's settings (arXiv 2103.16898): this machine has two of them.
ELSEWHERE: Final = (
    "everything in an SGX enclave",
    "trusted OS with a TPM chip",
    "TDX guest",
    "SEV-SNP guest",
    "CPU TEE with a GPU's confidential mode",
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        rounds: Interleaved repeats of every arm.
        quoted: Releases with a quote, in a round.
        clients: Accelerators that ask at the same time.
        together: Releases of each of them, in a round.
        entries: Length of the quoting host's list of measurements.
        lengths: Lengths of lists between which renewals are compared.
        renewals: Renewals at each length.
        ima: Entries of the list that is parsed alone.
        losses: How often a lease is lost.
        guest: Whether a guest is booted, too, and does something bad.
    """

    rounds: int = 5
    quoted: int = 60
    clients: int = 16
    together: int = 25
    entries: int = 200
    lengths: tuple[int, ...] = (200, 2000, 10_000)
    renewals: int = 30
    ima: int = 200_000
    losses: int = 9
    guest: bool = True


USUAL: Final = Sizes()
QUICK: Final = Sizes(
    rounds=2,
    quoted=25,
    together=6,
    lengths=(50, 500, 2000),
    renewals=8,
    guest=False,
    ima=40_000,
    losses=4,
)


class ReleasePeers(Peers):
    """One broker and its accelerators, joined.

    Args:
        folder: Is made; gets vault and log.
        clients: How many accelerators.
        entries: Length of the list of measurements of a rehearsed host; 0 for
            development evidence.
        heartbeat_s: Of the resource's lease; None for a release without one.
    """

    def __init__(
        self,
        folder: Path,
        *,
        clients: int = 1,
        entries: int = 0,
        heartbeat_s: float | None = None,
    ) -> None:
        super().__init__()
        with self._open as undone:
            self.relay, self.broker = self.start(RelayEnd), self.start(BrokerEnd)
            self.clients = [self.start(ClientEnd) for _ in range(clients)]
            self._join(folder, entries, heartbeat_s)
            self._open = undone.pop_all()

    def _join(self, folder: Path, entries: int, heartbeat_s: float | None) -> None:
        """Everybody, under one agreement."""
        first = self.clients[0]
        tpm = first.ask("host", entries=entries)["references"] if entries else ""
        attesters = [each.ask("attester")["key"] for each in self.clients]
        terms = {"attesters": attesters, "tpm": tpm, "heartbeat_s": heartbeat_s}
        where = {**self.broker.ask("agree", **terms), **self.relay.ask("start")}
        folder.mkdir()
        self.broker.ask(
            "join",
            address=where["address"],
            folder=str(folder),
            clients=len(self.clients),
        )
        for number, client in enumerate(self.clients):
            client.tell("join", name=f"accelerator-{number}", **where)
        for client in self.clients:
            client.hear()

    def release_together(self, times: int, order: str = "release") -> list[Answer]:
        """Every client collects so many keys, all at the same time."""
        for client in self.clients:
            client.tell(order, times=times)
        return [client.hear() for client in self.clients]

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds so far: the broker's, the relay's, all clients'."""
        ends = {"broker": [self.broker], "relay": [self.relay], "clients": self.clients}
        return {
            who: sum(float(each.ask("spent")["cpu_s"]) for each in those)
            for who, those in ends.items()
        }


def run(*, quick: bool = False) -> BenchReport:
    """Measure everything; about 90 s on two idle cores, quick about 30."""
    return measure(QUICK if quick else USUAL)


def measure(sizes: Sizes) -> BenchReport:
    """Measure with these sizes."""
    report = start_report("release")
    report.real = [
        "broker, relay and accelerators in processes of their own",
        "vault and log on this machine's disk, synced before a key leaves",
        "quotes of a software TPM (swtpm); the kernel's list is played",
    ]
    with tempfile.TemporaryDirectory(prefix="release-") as folder, ExitStack() as stack:
        place = Path(folder)
        quoting = stack.enter_context(ReleasePeers(place / "q", entries=sizes.entries))
        crowd = stack.enter_context(ReleasePeers(place / "c", clients=sizes.clients))
        _measure_releases(report, sizes, quoting, crowd)
        report.rows += measure_deploy(place / "deploy", sizes.rounds)
    report.rows += _measure_renewals(sizes)
    _measure_loss(report, sizes)
    rate, row = measure_ima(sizes.ima, sizes.rounds)
    report.ratios["ima_entries_per_s"] = rate
    report.rows.append(row)
    report.rows += measure_reports()
    report.rows += [{"perun": name, "is": "not on this machine"} for name in ELSEWHERE]
    report.machine["load_1min_after"] = round(os.getloadavg()[0], 2)
    return report


def _measure_releases(
    report: BenchReport, sizes: Sizes, quoting: ReleasePeers, crowd: ReleasePeers
) -> None:
    client = quoting.clients[0]
    client.ask("release", times=3)
    crowd.release_together(2)
    quoted: list[list[float]] = []
    sessions: list[float] = []
    alone: list[float] = []
    rates: list[Row] = []
    standing: list[Row] = []
    for _ in range(sizes.rounds):
        answer = client.ask("release", times=sizes.quoted)
        quoted.append(answer["ms"])
        sessions += answer["session_ms"]
        alone += crowd.clients[0].ask("release", times=sizes.quoted)["ms"]
        rates.append(_measure_rate(crowd, sizes, "release", NEW_SESSION))
        standing.append(_measure_rate(crowd, sizes, "release_again", STANDING))
    whole = [spent for each in quoted for spent in each]
    report.rows += [
        _row("release, TPM quote", whole, list_entries=sizes.entries),
        _row("its session alone", sessions),
        _row("release, development evidence", alone, perun="everything in one process"),
        *rates,
        *standing,
        _row("collecting a quote", client.ask("attest", times=sizes.quoted)["ms"]),
    ]
    by_round = [distribution(each) for each in quoted]
    for name in ("p50_ms", "p99_ms"):
        found = median(each[name] for each in by_round)
        report.ratios[f"release_{name}"] = found
    for name, rows in (("", rates), ("standing_", standing)):
        rate = median(float(row["releases_per_s"]) for row in rows)
        report.ratios[f"{name}releases_per_s"] = rate


def _row(what: str, spent_ms: Sequence[float], **more: str | float) -> Row:
    return {"what": what, **distribution(spent_ms), "repeats": len(spent_ms), **more}


def _measure_rate(crowd: ReleasePeers, sizes: Sizes, order: str, what: str) -> Row:
    before, started = crowd.cpu_s(), time.perf_counter()
    answers = crowd.release_together(sizes.together, order)
    spent_s = time.perf_counter() - started
    releases = sizes.together * sizes.clients
    cpu_s = {who: spent - before[who] for who, spent in crowd.cpu_s().items()}
    waited = [spent for answer in answers for spent in answer["ms"]]
    return {
        "what": f"{sizes.clients} accelerators at once, {what}",
        "releases_per_s": round(releases / spent_s, 1),
        # What two idle cores could give: the machine's other work takes its share.
        "releases_per_cpu_s": round(releases / sum(cpu_s.values()), 1),
        **{f"{who}_cpu_ms": round(s * 1000 / releases, 2) for who, s in cpu_s.items()},
        **distribution(waited),
        "load_1min": round(os.getloadavg()[0], 1),
    }


def _measure_renewals(sizes: Sizes) -> list[Row]:
    """Lists of several lengths side by side: whole at first, then continued."""
    with tempfile.TemporaryDirectory(prefix="renewal-") as folder, ExitStack() as stack:
        groups = {
            length: stack.enter_context(
                ReleasePeers(
                    Path(folder) / str(length), entries=length, heartbeat_s=LONG_S
                )
            )
            for length in sizes.lengths
        }
        clients = {length: peers.clients[0] for length, peers in groups.items()}
        first: dict[int, list[float]] = {length: [] for length in clients}
        for _ in range(max(3, sizes.rounds)):
            for length, client in clients.items():
                first[length] += client.ask("release", times=1)["ms"]
        for client in clients.values():
            client.ask("hold")
        spent: dict[int, list[float]] = {length: [] for length in clients}
        for _ in range(sizes.renewals):
            for length, client in clients.items():
                spent[length] += client.ask("renew", times=1, grow=2)["ms"]
    return [
        _row("renewal with two new entries", spent[length], list_entries=length,
             first_release_p50_ms=round(median(first[length]), 2))
        for length in sizes.lengths
    ]  # fmt: skip


def _measure_loss(report: BenchReport, sizes: Sizes) -> None:
    """By evidence that turns, and by what a booted guest does where one can be had."""
    with (
        tempfile.TemporaryDirectory(prefix="loss-") as folder,
        ReleasePeers(Path(folder) / "l", heartbeat_s=HEARTBEAT_S) as peers,
    ):
        spent_s = sorted(_lose_once(peers) for _ in range(sizes.losses))
    report.rows.append(
        {
            "what": "from a refused renewal's cause to the last byte, "
            "development evidence",
            "heartbeat_s": HEARTBEAT_S,
            "median_s": round(median(spent_s), 3),
            "worst_s": round(spent_s[-1], 3),
            "repeats": sizes.losses,
        }
    )
    report.ratios |= {"revocation_s": spent_s[-1], "heartbeat_s": HEARTBEAT_S}
    if not sizes.guest:
        return
    what = "from an unlisted program in a booted guest to the last byte"
    try:
        found = _measure_revocation()
    except SealiftError as error:
        report.rows.append({"what": what, "is": f"not on this machine: {error.code}"})
        return
    report.rows.append({"what": what, **{k: round(v, 3) for k, v in found.items()}})
    for name in ("revocation_s", "heartbeat_s"):
        report.ratios[name] = found[name]


def _measure_revocation() -> dict[str, float]:
    """How long rows still flow after a bad act: real roles, a real kernel that measured it.

    A guest boots, all roles run as processes on this machine, holders' lines are slow so
    that a cargo is always under way, and the guest executes a program that nobody agreed
    on.

    Returns:
        ``revocation_s``: from the act to the last frame of any holder; ``ended_s``: to
        the end of the accelerator's process; ``frames_after``: frames in that time;
        ``pace_s``: seconds between two frames of one holder; ``heartbeat_s``,
        ``bar_s``: what was agreed, and that plus one second; ``ready_s``: to boot the
        guest and make the world.

    Raises:
        UnavailableError: if this machine cannot run the guest.
        IntegrityError: ``not-revoked``: no broker saw it, so something else was measured.
    """
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, RehearsedHost(lambda _: None) as host:
        world = second_act(
            make_world(Path(folder) / "world", DIGITS, host=host.references)
        )
        ready_s = time.monotonic() - began_s
        found = host.run_second_act(world, time.monotonic)
    if "ima-entry-unlisted" not in found.rules.values():
        raise IntegrityError(
            "no broker revoked the lease for the bad act",
            why=str(found.rules or "no lease was revoked"),
            code="not-revoked",
        )
    return {
        "revocation_s": found.last_byte_s,
        "ended_s": found.ended_s,
        "frames_after": float(found.frames_after),
        "pace_s": PACE_S,
        "heartbeat_s": REHEARSED_HEARTBEAT_S,
        "bar_s": BOUND_S,
        "ready_s": ready_s,
    }


def _lose_once(peers: ReleasePeers) -> float:
    """Seconds from a fall to the last byte that still flowed.

    A fresh instance, rows that flow to it, and its evidence turns into a stranger's at any
    time of a heartbeat; lease, broker and holder's watch are those of a job.
    """
    (client,) = peers.clients
    kept = client.ask("keep")
    client.tell("fall", after_s=_EARLIEST_S + secrets.randbelow(_SPREAD_MS) / 1000)
    peers.broker.ask("give", **kept)
    return max(0.0, float(client.hear()["seconds"]))
