"""Sealed transfers from an owner's memory to a device's, every mode beside the plain copy.

Two processes with a core each; the arms of one size run in turn, again and again, and a
ratio is that of the medians; default beside plain is measured once more, in pairs
(``linkpairs.py``). The plain copy goes through the same ring, in the same slots, with
the same announcement and the same verdict.
"""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sealift.channel.link.mode import DEFAULT_MODE
from sealift.channel.link.send import suggested_record_bytes
from sealift.lab.bench import linkinference, linktraining
from sealift.lab.bench.linkarms import (
    APART_SLOTS,
    DEFAULT_SLOTS,
    HOME,
    NAIVE,
    Arm,
    make_arm,
    make_arms,
    timed,
    touched_memory,
)
from sealift.lab.bench.linkfailure import count_needles, failure_row
from sealift.lab.bench.linkpairs import MIN_BYTES as PAIRS_FROM_BYTES
from sealift.lab.bench.linkpairs import UNDISTURBED, CoreGauge, measure_pairs
from sealift.lab.bench.linkpeer import DevicePeer, device_process, two_cores
from sealift.lab.bench.linkprofiles import modelled_rows, sources
from sealift.lab.bench.linkshapes import ALL, Shape
from sealift.lab.bench.report import BenchReport, Row, start_report

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
Times = dict[str, list[float]]


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
    report.modelled = sources()
    cores = two_cores()
    with device_process(cores) as peer, _on_core(cores[0]):
        report.real.insert(0, opened_by(peer.ask("engine")))
        for size in QUICK_SIZES_BYTES if quick else SIZES_BYTES:
            _measure_size(report, peer, size, REPEATS)
        _measure_pairs(report, peer, cores, quick=quick)
        if not quick:
            for size in SWEEP_SIZES_BYTES:
                _sweep(report, peer, size)
        _measure_failures(report, peer)
    _measure_models(report, quick=quick)
    report.real += linkinference.left_out(report.rows)
    report.rows += modelled_rows(QUICK_SIZES_BYTES if quick else SIZES_BYTES)
    return report


def opened_by(engine: dict[str, str]) -> str:
    """Who opened what the rows of modes and failures are about."""
    said = f"transfers were opened by engine {engine['reason']}"
    return said if engine["engine"] == "host" else f"{said}; models ran on the host"


def _measure_models(report: BenchReport, *, quick: bool) -> None:
    """Whole questions and whole training steps, sealed beside plain."""
    for part in (linkinference, linktraining):
        found = part.rows(quick=quick)
        report.rows += found
        report.ratios |= part.ratios(found)


def _measure_size(
    report: BenchReport, peer: DevicePeer, size: int, repeats: int
) -> None:
    source = touched_memory(size)
    peer.ask("memory", nbytes=size)
    engine = peer.ask("engine")["engine"]
    arms = make_arms(peer, list(ARMS), source, _slots(peer))
    repeats *= 4 if size <= SMALL_BYTES else 1
    times = _interleave(peer, arms, repeats)
    device_cpu_s = peer.ask("cpu")
    for arm in arms:
        row = {**_row(arm, size, times), "engine": engine}
        busy_s = arm.cpu_s + device_cpu_s[arm.link]
        row["cpu_s_per_gb"] = round(busy_s / (repeats + 1) / size * 1e9, 3)
        report.rows.append(row)
    if STEPS[0] in times:
        report.rows.append(_ablation(size, times))
    _close(peer, arms)
    _keep_times(report, size, times)


def _measure_pairs(
    report: BenchReport, peer: DevicePeer, cores: list[int], *, quick: bool
) -> None:
    """Default beside plain, for the bars' sizes."""
    gauge = CoreGauge(cores)
    slots = _slots(peer)
    sizes = QUICK_SIZES_BYTES if quick else SIZES_BYTES
    found = [
        measure_pairs(peer, size, gauge, slots)
        for size in sizes
        if size >= PAIRS_FROM_BYTES
    ]
    for pairs in found:
        row = pairs.row(gauge)
        report.rows.append(row)
        _keep_goodput(report, pairs.size, row["vs_plain"], "")
        _keep_goodput(report, pairs.size, row["vs_plain_undisturbed"], "_undisturbed")


def _slots(peer: DevicePeer) -> int:
    return DEFAULT_SLOTS if peer.ask("engine")["engine"] == "host" else APART_SLOTS


def _interleave(peer: DevicePeer, arms: list[Arm], repeats: int) -> Times:
    """Seconds of every arm, one of each in turn, after one turn to warm up."""
    times: Times = {arm.link: [] for arm in arms}
    for repeat in range(repeats + 1):
        for arm in arms:
            taken = timed(peer, arm)
            if repeat:
                times[arm.link].append(taken)
    return times


def _row(arm: Arm, size: int, times: Times) -> Row:
    taken = statistics.median(times[arm.link])
    quartiles = statistics.quantiles(times[arm.link], n=4)
    return {
        "mode": arm.link,
        "memory": "private memfd",
        "kib": size >> 10,
        "record_kib": suggested_record_bytes(size) >> 10,
        "pairs": len(times[arm.link]),
        "gb_per_s": round(size / taken / 1e9, 3),
        "us": round(taken * 1e6, 1),
        "quartiles_us": f"{quartiles[0] * 1e6:.0f}-{quartiles[2] * 1e6:.0f}",
        "vs_plain": round(statistics.median(times[PLAIN]) / taken, 3),
    }


def _ablation(size: int, times: Times) -> Row:
    """Share of the vendor shape's time that each step saves."""
    row: Row = {"ablation": "share of reencrypt saved by each step", "kib": size >> 10}
    found = [name for name in STEPS if name in times]
    whole = statistics.median(times[found[0]])
    for before, name in itertools.pairwise(found):
        saved = statistics.median(times[before]) - statistics.median(times[name])
        row[name] = round(saved / whole, 3)
    return row


def _keep_times(report: BenchReport, size: int, times: Times) -> None:
    """The worst over the sizes that the ratio is about."""
    if size < PAIRS_FROM_BYTES:
        return
    default = statistics.median(times[DEFAULT])
    for arm in (str(Shape.REENCRYPT), NAIVE):
        if arm in times:
            ratio = statistics.median(times[arm]) / default
            _keep(report, f"{arm}_vs_default_time", ratio)


def _keep_goodput(report: BenchReport, size: int, found: object, which: str) -> None:
    if not isinstance(found, float):  # no pair of that kind
        return
    name = "from_64_mib" if size >= 64 * MIB else "at_16_mib"
    _keep(report, f"default_vs_plain_goodput{which}", found)
    _keep(report, f"default_vs_plain_goodput_{name}{which}", found)


def _keep(report: BenchReport, name: str, ratio: float) -> None:
    report.ratios[name] = round(min(ratio, report.ratios.get(name, ratio)), 3)


def _sweep(report: BenchReport, peer: DevicePeer, size: int) -> None:
    """Other records and rings, so that the default's choice can be judged."""
    source = touched_memory(size)
    peer.ask("memory", nbytes=size)
    shapes = {f"{kib}x{slots}": (kib, slots) for kib, slots in SWEEP}
    arms = [
        make_arm(
            peer,
            name,
            source,
            slots=slots,
            record_bytes=record,
            label=f"{name} {label}",
        )
        for label, (record, slots) in shapes.items()
        for name in (PLAIN, DEFAULT)
    ]
    times = _interleave(peer, arms, REPEATS)
    for label, (record, slots) in shapes.items():
        plain, default = (
            statistics.median(times[f"{name} {label}"]) for name in (PLAIN, DEFAULT)
        )
        report.rows.append(
            {
                "sweep": f"{record >> 10} KiB x {slots} slots",
                "kib": size >> 10,
                "plain_gb_per_s": round(size / plain / 1e9, 3),
                "default_gb_per_s": round(size / default / 1e9, 3),
                "vs_plain": round(plain / default, 3),
            }
        )
    report.ratios[f"default_vs_best_plain_goodput_at_{size // MIB}_mib"] = round(
        best_plain_goodput(times, _shape_of_default(size)), 3
    )
    _close(peer, arms)


def best_plain_goodput(times: Times, shape: str) -> float:
    """The default at its own shape beside the plain copy at whichever suits that best.

    The lowest of several medians flatters the plain copy, never the default.
    """
    plain = [
        statistics.median(taken)
        for label, taken in times.items()
        if label.startswith(f"{PLAIN} ")
    ]
    return min(plain) / statistics.median(times[f"{DEFAULT} {shape}"])


def _shape_of_default(size: int) -> str:
    return f"{suggested_record_bytes(size)}x{DEFAULT_SLOTS}"


def _measure_failures(report: BenchReport, peer: DevicePeer) -> None:
    size, record = FAILURE_BYTES, FAILURE_BYTES // 16
    source = touched_memory(size)
    for mode in (DEFAULT_MODE, Shape.DIRECT_PARALLEL, Shape.DIRECT):
        peer.ask("memory", nbytes=size)
        report.rows.append(failure_row(peer, mode, source, record))
    peer.ask("memory", nbytes=size)
    arm = make_arm(peer, DEFAULT, source)
    timed(peer, arm)
    report.rows.append(
        {
            "failure": "none (the control: a transfer that verified)",
            "kib": size >> 10,
            "bytes_not_zero": peer.ask("left")["nonzero"],
            "plaintext_found": count_needles(peer.process, source, record),
        }
    )
    _close(peer, [arm])


def _close(peer: DevicePeer, arms: list[Arm]) -> None:
    for arm in arms:
        arm.close()
        peer.ask("drop", link=arm.link)


@contextmanager
def _on_core(core: int) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
