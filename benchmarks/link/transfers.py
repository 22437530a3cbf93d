"""Sealed transfers from an owner's memory to a device's, every mode beside the plain copy.

Two processes with a core each; the arms of one size run in turn, again and again, and a
ratio is that of the medians; default beside plain is measured once more, in pairs
(``pairs.py``). The plain copy goes through the same ring, in the same slots, with
the same announcement and the same verdict.

What bounce buffers of GPU TEEs would add is computed from published figures; nothing of it
was measured on this machine or by us. Those rows are marked ``modelled``, carry their
profile's name, and never mix with measured ones. They answer one question: what a
transfer costs when every crossing has a toll, and what packing it into one crossing saves.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from typing import Final

from benchmarks.link import inference, training
from benchmarks.link.arms import (
    APART_SLOTS,
    DEFAULT_SLOTS,
    HOME,
    LinkArm,
    arms_over,
    close_all,
    failure_row,
    make_arm,
    touched_memory,
    what_is_left,
)
from benchmarks.link.device import NAIVE, DevicePeer, two_cores
from benchmarks.link.pairs import MIN_BYTES as PAIRS_FROM_BYTES
from benchmarks.link.pairs import (
    UNDISTURBED,
    CoreGauge,
    measure_pairs,
    pairs_row,
)
from benchmarks.link.shapes import ALL, Shape
from benchmarks.report import BenchReport, Row, Spent, interleaved, start_report
from sealift.channel.link.announcement import DEFAULT_MODE
from sealift.channel.link.send import suggested_record_bytes

PLAIN_GB_PER_S: Final = 55.0
PLAIN_SOURCE: Final = "plain host-to-device 55 GB/s: assumed for PCIe 5.0 x16"
MIB: Final = 1 << 20
SIZES_BYTES: Final = tuple(
    kib << 10 for kib in (64, 1024, 4096, 16384, 65536, 262144, 1048576)
)
QUICK_SIZES_BYTES: Final = (64 << 10, 16 * MIB, 64 * MIB)
REPEATS: Final = 15
FAILURE_BYTES: Final = 16 * MIB
SMALL_BYTES: Final = 64 * MIB  # up to here more repeats: so few take seconds only
PLAIN: Final = str(Shape.PLAIN)
DEFAULT: Final = str(DEFAULT_MODE)
ARMS: Final = (*map(str, ALL), HOME, NAIVE)
# What each step saves: from the vendor's shape to the default, and beyond.
STEPS: Final = tuple(map(str, ALL[1:]))
SWEEP_SIZES_BYTES: Final = (16 * MIB, 64 * MIB)
SWEEP: Final = tuple((kib << 10, slots) for kib in (256, 512, 1024) for slots in (4, 8))


def run(*, quick: bool = False) -> BenchReport:
    """Measure everything; a quarter of an hour, with ``quick`` some two minutes."""
    report = start_report("link")
    report.real = [
        "both ciphers, every copy, two processes on this machine, a core each",
        "reencrypt*, sealed at home: begin with records that were sealed before",
        "seal-ahead: the sealing is not in its time, it happens during compute; it is in "
        "its CPU seconds",
        "inference: one server loop and sandboxed worker for all arms; tls: a TLS server "
        "that opens and seals again",
        "training: batches over a private memory file, sealed ahead or as they are",
        f"undisturbed: pairs before which both cores sealed at {UNDISTURBED} of their "
        "best rate of this run",
        "CPU seconds: those of waiting ends are in them, they look for a moment",
    ]
    named = (f"{each.name}: {each.source}" for each in PROFILES)
    report.modelled = [PLAIN_SOURCE, *named]
    cores, sizes = two_cores(), QUICK_SIZES_BYTES if quick else SIZES_BYTES
    with DevicePeer.on(cores) as peer, _on_core(cores[0]):
        engine = peer.ask("engine")
        report.real.insert(0, opened_by(engine))
        slots = DEFAULT_SLOTS if engine["engine"] == "host" else APART_SLOTS
        for size in sizes:
            with arms_over(peer, ARMS, size, slots) as arms:
                _measure_size(report, peer, size, arms, engine["engine"])
        _measure_pairs(report, peer, cores, sizes, slots)
        for size in () if quick else SWEEP_SIZES_BYTES:
            _sweep(report, peer, size)
        _measure_failures(report, peer)
    for part in (inference, training):  # whole questions, whole training steps
        found = part.rows(quick=quick)
        report.rows += found
        report.ratios |= part.ratios(found)
    report.real += inference.left_out(report.rows)
    report.rows += _modelled_rows(sizes)
    return report


def opened_by(engine: Mapping[str, str]) -> str:
    """Who opened what the rows of modes and failures are about."""
    said = f"transfers were opened by engine {engine['reason']}"
    return said if engine["engine"] == "host" else f"{said}; models ran on the host"


def _in_turn(
    peer: DevicePeer, arms: Sequence[LinkArm], repeats: int
) -> dict[str, Spent]:
    return interleaved({arm.link: partial(arm.timed, peer) for arm in arms}, repeats)


def _measure_size(
    report: BenchReport,
    peer: DevicePeer,
    size: int,
    arms: Sequence[LinkArm],
    engine: str,
) -> None:
    repeats = REPEATS * (4 if size <= SMALL_BYTES else 1)
    spent = _in_turn(peer, arms, repeats)
    device_cpu_s = peer.ask("cpu")
    for arm in arms:
        taken = spent[arm.link]
        low, _, high = quantiles(taken.seconds, n=4)
        busy_s = arm.cpu_s + device_cpu_s[arm.link]
        report.rows.append(
            {
                "mode": arm.link,
                "memory": "private memfd",
                "kib": size >> 10,
                "record_kib": suggested_record_bytes(size) >> 10,
                "pairs": repeats,
                "gb_per_s": taken.gb_per_s(size, 3),
                "us": round(taken.median * 1e6, 1),
                "quartiles_us": f"{low * 1e6:.0f}-{high * 1e6:.0f}",
                "vs_plain": round(spent[PLAIN].median / taken.median, 3),
                "engine": engine,
                "cpu_s_per_gb": round(busy_s / (repeats + 1) / size * 1e9, 3),
            }
        )
    steps = [name for name in STEPS if name in spent]
    if STEPS[0] in spent:
        whole_s = spent[steps[0]].median
        row: Row = {
            "ablation": "share of reencrypt saved by each step",
            "kib": size >> 10,
        }
        for before, name in itertools.pairwise(steps):
            row[name] = round((spent[before].median - spent[name].median) / whole_s, 3)
        report.rows.append(row)
    for name in (str(Shape.REENCRYPT), NAIVE):
        if size >= PAIRS_FROM_BYTES and name in spent:
            ratio = spent[name].median / spent[DEFAULT].median
            report.keep_worst(f"{name}_vs_default_time", ratio)


def _measure_pairs(
    report: BenchReport,
    peer: DevicePeer,
    cores: list[int],
    sizes: Sequence[int],
    slots: int,
) -> None:
    """Default beside plain, for the bars' sizes."""
    gauge = CoreGauge(cores)
    judged = [size for size in sizes if size >= PAIRS_FROM_BYTES]
    measured = {size: measure_pairs(peer, size, gauge, slots) for size in judged}
    for size, pairs in measured.items():
        row = pairs_row(size, pairs, gauge)
        report.rows.append(row)
        at = "from_64_mib" if size >= 64 * MIB else "at_16_mib"
        for which in ("", "_undisturbed"):
            found = row[f"vs_plain{which}"]
            if isinstance(found, float):  # or there was no such pair
                report.keep_worst(f"default_vs_plain_goodput{which}", found)
                report.keep_worst(f"default_vs_plain_goodput_{at}{which}", found)


def _sweep(report: BenchReport, peer: DevicePeer, size: int) -> None:
    """Other records and rings, so that the default's choice can be judged."""
    source = touched_memory(size)
    peer.ask("memory", nbytes=size)
    arms = [
        make_arm(peer, name, source, slots=slots, record_bytes=record,
                 label=f"{name} {record}x{slots}")
        for record, slots in SWEEP
        for name in (PLAIN, DEFAULT)
    ]  # fmt: skip
    spent = _in_turn(peer, arms, REPEATS)
    for record, slots in SWEEP:
        plain, default = (spent[f"{n} {record}x{slots}"] for n in (PLAIN, DEFAULT))
        report.rows.append(
            {
                "sweep": f"{record >> 10} KiB x {slots} slots",
                "kib": size >> 10,
                "plain_gb_per_s": plain.gb_per_s(size, 3),
                "default_gb_per_s": default.gb_per_s(size, 3),
                "vs_plain": round(plain.median / default.median, 3),
            }
        )
    shape = f"{suggested_record_bytes(size)}x{DEFAULT_SLOTS}"
    times = {label: taken.seconds for label, taken in spent.items()}
    ratio = best_plain_goodput(times, shape)
    report.ratios[f"default_vs_best_plain_goodput_at_{size // MIB}_mib"] = round(
        ratio, 3
    )
    close_all(peer, arms)


def best_plain_goodput(times: Mapping[str, Sequence[float]], shape: str) -> float:
    """The default at its own shape beside the plain copy at whichever suits that best.

    The lowest of several medians flatters the plain copy, never the default.
    """
    plain = [
        median(taken) for label, taken in times.items() if label.startswith(f"{PLAIN} ")
    ]
    return min(plain) / median(times[f"{DEFAULT} {shape}"])


def _measure_failures(report: BenchReport, peer: DevicePeer) -> None:
    size, record = FAILURE_BYTES, FAILURE_BYTES // 16
    source = touched_memory(size)
    for mode in (DEFAULT_MODE, Shape.DIRECT_PARALLEL, Shape.DIRECT):
        peer.ask("memory", nbytes=size)
        report.rows.append(failure_row(peer, mode, source, record))
    peer.ask("memory", nbytes=size)
    arm = make_arm(peer, DEFAULT, source)
    arm.timed(peer)
    row: Row = {
        "failure": "none (the control: a transfer that verified)",
        "kib": size >> 10,
    }
    report.rows.append(row | what_is_left(peer, source, record))
    close_all(peer, [arm])


@contextmanager
def _on_core(core: int) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True, slots=True)
class Profile:
    """One machine's toll.

    Attributes:
        gb_per_s: Host to device with the toll, one context.
        crossing_s: Added by every crossing.
        source: Where both figures were published.
    """

    name: str
    gb_per_s: float
    crossing_s: float
    source: str

    def seconds(self, nbytes: int, crossings: int) -> float:
        """Time for ``nbytes`` in so many crossings, one after the other."""
        return nbytes / (self.gb_per_s * 1e9) + crossings * self.crossing_s


PROFILES: Final = (
    Profile(
        "h100-cc",
        5.3,
        0.0,
        "4.9 GiB/s through the bounce buffer of an H200 with CC on (vLLM issue 55428); "
        "messages of at most 1 MiB, one after the other (PipeLLM, arXiv 2411.03357)",
    ),
    Profile(
        "b300-cc",
        PLAIN_GB_PER_S * 0.203,
        330e-6,
        "host to device at 0.203 of CC off in one context, about 330 us a small "
        "crossing (Serialized Bridge, arXiv 2606.23969)",
    ),
)


def _modelled_rows(sizes_bytes: Sequence[int]) -> list[Row]:
    """One row a profile and size: a crossing for each MiB, and all packed into one."""
    return [
        {
            "modelled": True,
            "profile": profile.name,
            "kib": size >> 10,
            "crossing_per_mib_ms": round(
                profile.seconds(size, -(-size // MIB)) * 1e3, 3
            ),
            "one_crossing_ms": round(profile.seconds(size, 1) * 1e3, 3),
            "plain_ms": round(size / (PLAIN_GB_PER_S * 1e9) * 1e3, 3),
        }
        for profile in PROFILES
        for size in sizes_bytes
    ]
