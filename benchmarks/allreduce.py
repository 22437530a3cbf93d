"""How long an all-reduce takes: sealed, plain, torch's own, and the published way.

Real processes on this machine, one thread of arithmetic each; beyond two ranks more
processes than cores, and said so. A repeat begins after a barrier, and takes as long as
the slowest rank. Planned is C or D, as the product's planner chooses at that size after it
measured here; ratios are of times with two ranks, the worst of all sizes that the bar is
about (less is better). Crypto bytes and operations are counted at the pipes of rank 0. How many
of them wait for each other follows from the algorithm: a ring opens and seals at each of
2(N-1) hops, one after the other; two phases do so twice.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from secrets import token_bytes
from typing import Final

from benchmarks.harness import Peer, pack
from benchmarks.ranks import RankEnd, slowest
from benchmarks.report import BenchReport, interleaved, start_report
from benchmarks.shipping import make_certificate
from sealift.crypto.keys import KEY_BYTES

KIB: Final = 1 << 10
MIB: Final = 1 << 20
SIZES: Final = (KIB, 64 * KIB, MIB, 4 * MIB, 25 * MIB, 64 * MIB, 256 * MIB)
MOST_ONE_PHASE: Final = 4 * MIB  # the product never takes it above
ARMS: Final = ("C", "D", "plain C", "A", "E", "E 64")
TRANSPORTS: Final = {"memfd": "shm", "tcp": "tcp"}
FROM_BYTES: Final = 4 * MIB  # less is in a cache, and torch's own is never used for it
_TOTAL_BYTES: Final = 256 * MIB  # of the small sizes more repeats


def run(*, quick: bool = False) -> BenchReport:
    """Measure; about 5 minutes, with ``quick`` about one.

    Raises:
        ModuleNotFoundError: for torch, before a process is started that lacks it.
    """
    if find_spec("torch") is None:
        raise ModuleNotFoundError(name="torch")
    report = start_report("allreduce")
    report.real = [
        "AES-256-GCM",
        "processes on this machine",
        "torch's gloo",
        "TLS 1.3",
    ]
    sizes = SIZES[:-2] if quick else SIZES
    for kind in ("memfd", "tcp"):
        for world in (2,) if quick else (2, 3, 4):
            _measure(report, kind, world, sizes, repeats=7 if quick else 15)
    return report


def _measure(
    report: BenchReport, kind: str, world: int, sizes: Sequence[int], repeats: int
) -> None:
    with _ranks(kind, world) as peers:
        planned = _planned(report, kind, peers)
        for size in sizes:
            names = [name for name in (*ARMS, "gloo", "TLS") if _fits(name, size)]
            inner = max(1, min(20, _TOTAL_BYTES // 8 // size))
            arms = {name: partial(_reduce, peers, name, size, inner) for name in names}
            spent = interleaved(arms, repeats if size <= 64 * MIB else 5)
            medians = {name: each.median for name, each in spent.items()}
            medians["planned"] = medians["D" if size <= planned else "C"]
            _tell(report, kind, world, size, medians)
        _tell_counts(report, kind, world, peers)


def _fits(arm: str, size: int) -> bool:
    return arm != "D" or size <= MOST_ONE_PHASE


def _reduce(peers: Sequence[Peer], arm: str, nbytes: int, repeats: int) -> float:
    for peer in peers:
        peer.tell("reduce", arm=arm, nbytes=nbytes, repeats=repeats)
    return slowest([peer.hear() for peer in peers], len(peers))


def _planned(report: BenchReport, kind: str, peers: Sequence[Peer]) -> int:
    """Bytes up to which the planner takes one phase; why, as a row."""
    for peer in peers:
        peer.tell("plan", arm="C", gradient_bytes=256 * MIB)
    found, *_ = [peer.hear() for peer in peers]
    report.rows.append({"where": kind, "ranks": len(peers), "plan": found["why"]})
    return min(int(found["one_phase_bytes"]), MOST_ONE_PHASE)


def _tell(
    report: BenchReport, kind: str, world: int, size: int, medians: dict[str, float]
) -> None:
    spent_ms = {f"{name}_ms": round(s * 1e3, 3) for name, s in medians.items()}
    report.rows.append({"where": kind, "ranks": world, "kib": size // KIB, **spent_ms})
    if world == 3 and size == 25 * MIB:
        report.keep_highest(
            f"sums_only_vs_c_{TRANSPORTS[kind]}", medians["E"] / medians["C"]
        )
    if world != 2:
        return
    planned, gloo = medians["planned"], medians["gloo"]
    if kind == "tcp":
        report.keep_highest("planned_vs_tls_worst", planned / medians["TLS"])
    if size >= FROM_BYTES:
        name = f"planned_vs_gloo_{TRANSPORTS[kind]}_worst"
        report.keep_highest(name, planned / gloo)
        if kind == "tcp":
            report.keep_highest("algorithm_a_vs_gloo", medians["A"] / gloo)
    if size >= 25 * MIB:
        ratio = medians["C"] / medians["plain C"]
        report.keep_highest("sealed_vs_plain_same_transport", ratio)


def _tell_counts(
    report: BenchReport, kind: str, world: int, peers: Sequence[Peer]
) -> None:
    size = 4 * MIB
    for name in ("A", "C", "D"):
        for peer in peers:
            peer.tell("count", arm=name, nbytes=size)
        found, *_ = [peer.hear() for peer in peers]
        waits = {"A": 4 * (world - 1), "C": 4, "D": 2}[name]
        report.rows.append(
            {
                "where": kind,
                "ranks": world,
                "arm": name,
                "crypto_bytes_per_byte": round(found["nbytes"] / size, 2),
                "crypto_operations": found["operations"],
                "one_after_the_other": waits,
            }
        )


@contextmanager
def _ranks(kind: str, world: int) -> Iterator[list[Peer]]:
    """Processes, joined once for each arm."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        peers = [
            stack.enter_context(Peer.start(RankEnd, rank, world))
            for rank in range(world)
        ]
        for name in ARMS:
            join(peers, kind, name)
        _join_ring(peers, make_certificate(folder))
        port = free_port()
        for peer in peers:
            peer.tell("join_gloo", port=port)
        for peer in peers:
            peer.hear()
        yield peers


def join(peers: Sequence[Peer], kind: str, name: str) -> None:
    """A connection for every pair, and the orders to carry an arm over them."""
    world, seed = len(peers), pack(token_bytes(KEY_BYTES))
    ends: list[dict[int, socket.socket]] = [{} for _ in peers]
    for one in range(world):
        for two in range(one + 1, world):
            ends[one][two], ends[two][one] = _pair(kind)
    for peer, socks in zip(peers, ends, strict=True):
        in_order = [socks[other] for other in sorted(socks)]
        peer.tell("join", *in_order, arm=name, kind=kind, seed=seed)
    for peer in peers:
        peer.hear()


def _join_ring(peers: Sequence[Peer], certificate: Path) -> None:
    pairs = [_pair("tcp") for _ in peers]  # pair k: from rank k to the next
    for rank, peer in enumerate(peers):
        onward, back = pairs[rank][0], pairs[rank - 1][1]
        peer.tell("join_ring", onward, back, certificate=str(certificate))
    for peer in peers:
        peer.hear()


def _pair(kind: str) -> tuple[socket.socket, socket.socket]:
    if kind == "memfd":
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return socket.create_connection(listener.getsockname()), listener.accept()[0]


def free_port() -> int:
    """Where torch's ranks can meet."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
