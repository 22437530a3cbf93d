"""The travelling accelerator beside what it is compared with: the paper's table, fairly.

Rows are caps of the network between holder and accelerator. ``same host``: the holder is
on the accelerator's machine, no cap applies, the cargo is always the whole one.
``remote``: the holder is behind the cap, and so is our cargo. Baselines: the data set
shipped over TLS and copied into the buffer; the model shipped to the holder and back.
Low caps are measured at two small cargoes and scaled by a straight line, and say so;
``full`` measures all of them whole (about an hour). The paper's own numbers stand beside
ours as recorded ones (``RECORDED``: GPT-2 in llm.c, 512 MiB, TDX and H100, as decoded in
the field notes).
Bars: behind a cap at most 1.05 of shipping; 0.6 of a plain copy's rate; shipping takes 7.5
times as long as a visit on the same host; less than 0.001 of the time exposed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from secrets import token_bytes
from statistics import median
from typing import Any, Final

from benchmarks.harness import Answer, Peers, pack
from benchmarks.report import (
    Arm,
    BenchReport,
    Row,
    interleaved,
    start_report,
)
from benchmarks.travel.ends import ROW_BYTES, AcceleratorEnd, HolderEnd
from benchmarks.travel.network import Link, capped_link, unlimited
from benchmarks.travel.overlap import measure_digest, measure_overlap
from sealift.crypto.keys import KEY_BYTES
from sealift.session.relay.server import Relay

CARGO_BYTES: Final = 512 << 20
PAPER_TRAIN_S: Final = 1230.0


@dataclass(frozen=True, slots=True)
class RecordedRow:
    """One row of the paper's table.

    Attributes:
        cap: Mbit/s; 0 is uncapped.
        ship_s: Transfer when the data set is shipped.
        travel_s: Transfer when the accelerator travels.
    """

    cap: int
    ship_s: float
    travel_s: float

    @property
    def ratio(self) -> float:
        """How much longer shipping takes."""
        return self.ship_s / self.travel_s


RECORDED: Final = (
    RecordedRow(4, 1115.88, 1.01),
    RecordedRow(20, 230.84, 1.03),
    RecordedRow(100, 60.36, 1.02),
    RecordedRow(500, 15.86, 0.98),
    RecordedRow(0, 7.34, 0.98),
)


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds of a cargo: a fixed part, and seconds per byte."""

    fixed_s: float
    s_per_byte: float

    def at(self, cargo_bytes: int) -> float:
        """Seconds of a cargo of this size."""
        return self.fixed_s + self.s_per_byte * cargo_bytes


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of the whole cargo, measured or scaled from smaller ones."""

    seconds: float
    scaled: bool


def fit_line(points: Mapping[int, Sequence[float]]) -> Line:
    """The straight line through the medians at two cargo sizes.

    Args:
        points: Seconds by cargo bytes, two sizes.
    """
    (low, low_s), (high, high_s) = sorted(
        (size, median(seconds)) for size, seconds in points.items()
    )
    slope = (high_s - low_s) / (high - low)
    return Line(low_s - slope * low, slope)


def whole_cargo(points: Mapping[int, Sequence[float]], cargo_bytes: int) -> Timed:
    """Seconds of the whole cargo: its median if it was measured, else by the line."""
    if cargo_bytes in points:
        return Timed(median(points[cargo_bytes]), scaled=False)
    return Timed(fit_line(points).at(cargo_bytes), scaled=True)


def share(transfer_s: float, train_s: float) -> float:
    """The paper's column: transfer / (train + transfer), per cent."""
    return 100 * transfer_s / (train_s + transfer_s)


def cap_name(cap: int) -> str:
    """``4 Mbit/s``, ``uncapped``."""
    return f"{cap} Mbit/s" if cap else "uncapped"


HAS_FULL: Final = True
MODEL_BYTES: Final = 124_439_808 * 4  # GPT-2 small in fp32, the paper's model
MIB: Final = 1 << 20
PHASES: Final = ("offer", "lease", "handshake", "load", "read", "scrub", "return")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        cargo_bytes: The whole cargo.
        repeats: Of the whole cargo on the same host.
        small: Two cargoes in MiB by cap, where the whole one is scaled; of whole records,
            which is what crosses.
        small_models: The same for the model.
        capped_repeats: Of each cargo behind a cap, which gives the same seconds anyway.
        recorded: The caps, each with the paper's numbers.
    """

    cargo_bytes: int = CARGO_BYTES
    model_bytes: int = MODEL_BYTES
    repeats: int = 15
    small: Mapping[int, tuple[int, int]] = field(
        default_factory=lambda: {4: (2, 4), 20: (4, 12), 100: (16, 48)}
    )
    small_models: Mapping[int, tuple[int, int]] = field(
        default_factory=lambda: {4: (2, 4), 20: (4, 12), 100: (16, 48)}
    )
    capped_repeats: int = 2
    recorded: tuple[RecordedRow, ...] = RECORDED


USUAL: Final = Sizes()
QUICK: Final = Sizes(
    cargo_bytes=64 * MIB,
    model_bytes=64 * MIB,
    repeats=3,
    small={4: (2, 4), 20: (2, 4), 100: (2, 6), 500: (4, 12)},
    small_models={4: (2, 4), 20: (2, 4), 100: (2, 6), 500: (4, 12)},
    capped_repeats=1,
)
FULL: Final = Sizes(small={}, capped_repeats=1)  # two models at 4 Mbit/s: 33 minutes


def run(*, quick: bool = False, full: bool = False) -> BenchReport:
    """Measure the table; about 4 minutes, quick about one, full about an hour."""
    report = measure(QUICK if quick else FULL if full else USUAL)
    measure_overlap(report, quick=quick)
    return report


def measure(sizes: Sizes) -> BenchReport:
    """Measure the table with these sizes."""
    report = start_report("travel")
    report.recorded = ["the paper's table (GPT-2 in llm.c, 512 MiB, TDX, H100)"]
    report.real = ["three processes, real handshakes, sealed files, scrub, receipts"]
    with tempfile.TemporaryDirectory(prefix="sealift-bench-") as folder:
        here = _same_host(report, sizes, Path(folder) / "here")
        why_not = unlimited()
        if why_not:
            modelled = f"caps by a token bucket in this process: {why_not}"
            report.modelled.append(modelled)
        else:
            report.real.append("caps by veth and tc-tbf between two namespaces")
        with capped_link(why_not) as link:
            _remote(report, sizes, Path(folder) / "there", link, here)
    report.rows.append(measure_digest(sizes.model_bytes))
    return report


class TravelPeers(Peers):
    """Holder and accelerator as processes, and the relay in this one.

    Each arm is one transfer of the first bytes of the same cargo.

    Args:
        folder: Is made; gets the data set, in plaintext and sealed.
        total_bytes: Of the data set.
        link: The holder lives at its far end.
    """

    def __init__(self, folder: Path, total_bytes: int, link: Link) -> None:
        super().__init__()
        folder.mkdir()
        with self._open as undone:
            self._join(folder, total_bytes, link)
            self._open = undone.pop_all()

    def _join(self, folder: Path, total_bytes: int, link: Link) -> None:
        self.holder = self.start(HolderEnd, link.inside())
        self.accelerator = self.start(AcceleratorEnd)
        made = self.accelerator.ask("make", folder=str(folder), total_bytes=total_bytes)
        relay = self._open.enter_context(Relay.listen(link.here)).address
        self.holder.ask("join", address=link.through(relay), **made)
        listening = self.accelerator.ask("listen", host=link.here)
        self._certificate = listening["certificate"]
        self._places = {
            name: link.through((str(host), int(port)))
            for name, (host, port) in listening["places"].items()
        }
        self._direct = "{}:{}".format(*self._places["direct"])
        self.accelerator.ask("join", address=relay, direct=self._direct)

    def travel(self, cargo_bytes: int, kind: str) -> Answer:
        """Ours: the accelerator visits the holder. Seconds by phase, and ``seconds``."""
        offered = self.accelerator.ask("offer", rows=cargo_bytes // ROW_BYTES)
        terms = {"lease": offered["lease"], "kinds": [kind], "places": [self._direct]}
        self.accelerator.tell("visit")
        self.holder.tell("visit", **terms)
        there, here = self.holder.hear(), self.accelerator.hear()
        found = {**here, **there, "lease_s": offered["lease_s"]}
        found["return_s"] = found.pop("receipt_s")
        parts = ("lease", "handshake", "load", "return")
        return {**found, "seconds": sum(found[f"{name}_s"] for name in parts)}

    def plain(self, cargo_bytes: int) -> float:
        """A copy of the same records over the same transport; seconds."""
        opened = self.accelerator.ask("open_plain", total_bytes=cargo_bytes)
        return self._both("plain", {}, "plain", {**opened, "total_bytes": cargo_bytes})

    def ship(self, cargo_bytes: int) -> float:
        """The data set over TLS; seconds."""
        size = {"total_bytes": cargo_bytes}
        place = {"address": self._places["shipping"], "certificate": self._certificate}
        return self._both("take_shipped", size, "ship", size | place)

    def ship_model(self, model_bytes: int) -> float:
        """The model to the holder and back, sealed; seconds."""
        terms = {"key": pack(token_bytes(KEY_BYTES)), "total_bytes": model_bytes}
        place = {"address": self._places["models"]}
        return self._both("lend_model", terms, "train_here", terms | place)

    def _both(
        self, here: str, terms: dict[str, Any], there: str, others: dict[str, Any]
    ) -> float:
        """An order for each, at the same time; the holder's seconds."""
        self.accelerator.tell(here, **terms)
        told = self.holder.ask(there, **others)
        self.accelerator.hear()
        return float(told["seconds"])


@dataclass(slots=True)
class SameHost:
    """Medians of the whole cargo on the same host, in seconds."""

    travel_s: float
    ship_s: float


def _same_host(report: BenchReport, sizes: Sizes, folder: Path) -> SameHost:
    size, visits = sizes.cargo_bytes, list[Answer]()
    with TravelPeers(folder, size, Link()) as peers:
        arms: dict[str, Arm] = {
            "travel": lambda: visits.append(peers.travel(size, "memfd")),
            "plain": lambda: peers.plain(size),
            "ship": lambda: peers.ship(size),
        }
        spent = interleaved(arms, sizes.repeats)
    del visits[0]  # it warmed up
    medians = {
        f"{name}_s": round(median(each[f"{name}_s"] for each in visits), 5)
        for name in PHASES
    }
    medians["travel_s"] = median(each["seconds"] for each in visits)
    report.rows.append({"where": "same host", "mib": size // MIB, **medians})
    load_s, copy_s = medians["load_s"], spent["plain"].median
    report.ratios["rate_vs_plain_copy"] = copy_s / load_s
    report.rows.append(
        {
            "where": "same host",
            "load_gb_per_s": round(size / load_s / 1e9, 2),
            "plain_copy_gb_per_s": spent["plain"].gb_per_s(size),
            "plain_copy_s": round(copy_s, 4),
        }
    )
    return SameHost(medians["travel_s"], spent["ship"].median)


def _remote(
    report: BenchReport, sizes: Sizes, folder: Path, link: Link, here: SameHost
) -> None:
    worst = 0.0
    with TravelPeers(folder, sizes.cargo_bytes, link) as peers:
        for recorded in sizes.recorded:
            cap = recorded.cap
            link.cap(cap)
            arms = _measure_cap(peers, sizes, cap)
            worst = max(worst, arms["travel"].seconds / arms["ship"].seconds)
            # Without a cap nothing lies between the two: both are on one machine.
            same_ship_s = arms["ship"].seconds if cap else here.ship_s
            report.rows.append(_row(recorded, arms, here, same_ship_s))
            name = f"ship_vs_same_host{f'_{cap}' if cap else ''}"
            report.ratios[name] = same_ship_s / here.travel_s
    report.ratios["remote_vs_ship"] = worst


def _measure_cap(peers: TravelPeers, sizes: Sizes, cap: int) -> dict[str, Timed]:
    """Seconds of the whole cargo by arm, at one cap: measured, or scaled from smaller ones.

    Behind a cap nothing warms up: it gives the same seconds anyway.
    """
    cargo, model = sizes.cargo_bytes, sizes.model_bytes
    kinds: dict[str, tuple[Mapping[int, tuple[int, int]], int, Callable[[int], float]]]
    kinds = {
        "travel": (sizes.small, cargo, lambda n: peers.travel(n, "tcp")["seconds"]),
        "ship": (sizes.small, cargo, peers.ship),
        "model": (sizes.small_models, model, peers.ship_model),
    }
    arms = {
        (name, size): partial(arm, size)
        for name, (small, whole, arm) in kinds.items()
        for size in ([mib * MIB for mib in small[cap]] if cap in small else [whole])
    }
    repeats = sizes.capped_repeats if cap else max(2, sizes.repeats // 3)
    spent = interleaved(arms, repeats, warm_up=0 if cap else 1)
    return {
        name: whole_cargo(
            {size: each.seconds for (arm, size), each in spent.items() if arm == name},
            whole,
        )
        for name, (_, whole, _) in kinds.items()
    }


def _row(
    recorded: RecordedRow,
    arms: Mapping[str, Timed],
    here: SameHost,
    same_ship_s: float,
) -> Row:
    row: Row = {"cap": cap_name(recorded.cap)}
    for name, timed in arms.items():
        row[f"{name}_remote_s" if name == "travel" else f"{name}_s"] = round(
            timed.seconds, 3
        )
    row["scaled"] = arms["travel"].scaled or arms["ship"].scaled
    row["model_scaled"] = arms["model"].scaled
    row["travel_same_host_s"] = round(here.travel_s, 4)
    row["ship_share_pct"] = round(share(same_ship_s, PAPER_TRAIN_S), 3)
    row["travel_share_pct"] = round(share(here.travel_s, PAPER_TRAIN_S), 4)
    row["ship_vs_same_host"] = round(same_ship_s / here.travel_s, 1)
    row["recorded_ship_s"] = recorded.ship_s
    row["recorded_travel_s"] = recorded.travel_s
    row["recorded_ratio"] = round(recorded.ratio, 1)
    return row
