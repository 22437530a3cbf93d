"""`python -m benchmarks ddp`: what sealing costs a data-parallel iteration, and a federated round.

Two processes, one thread of arithmetic each, on models of true gradient size (batch 4,
sequence 128). The published line is a ring sealed at every hop over TCP in buckets of 25
MiB, its mitigation the largest buckets; ours goes in the buckets that the planner chooses,
over shared memory and over TCP; torch's own is DDP over gloo, which has loopback TCP
alone here. The ways take turns. Ratios are of medians, less is better. Exposed is what an
iteration takes beyond computing alone; communication alone is the same buckets one after
the other, as is the sequence of GPT-2-XL, which is larger than this machine could train.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

from benchmarks.allreduce import MIB, free_port, join
from benchmarks.ddp.ends import TrainingEnd
from benchmarks.ddp.models import (
    DEFAULT_CAP_MIB,
    FIRST_BUCKET_BYTES,
    MODELS,
    buckets,
    gradient_bytes,
)
from benchmarks.harness import Peer
from benchmarks.report import BenchReport, Spent, interleaved, start_report

REPLAYED: Final = "gpt2-xl"
QUICK: Final = ("gpt2",)
KINDS: Final = {"memfd": "memfd", "tcp": "tcp", "A": "tcp"}  # a group, its carrier
LARGEST_MIB: Final = 1000.0  # the published mitigation's
OWNERS: Final = 3
FLOWER: Final = (
    "a round of Flower 1.41 on this task: 0.12 to 0.22 s, without encryption"
)
_REBUILDS: Final = 1  # iterations until DDP's buckets are in the order of gradients
Ways = Mapping[str, tuple[str, float]]  # a name: the group, MiB of a bucket


def run(*, quick: bool = False) -> BenchReport:
    """Measure; about 15 minutes, with ``quick`` about one and a half."""
    report = start_report("ddp")
    report.real = [
        "AES-256-GCM",
        "processes on this machine",
        "torch's DDP and gloo",
        "computing and gradient sizes of the models that are named",
    ]
    report.modelled = [f"{REPLAYED}: its buckets by DDP's rule, without computing"]
    report.recorded = [f"{FLOWER} (field/competitors.md, another machine of two cores)"]
    _measure_round(report, repeats=7 if quick else 31)
    with _ranks(2, KINDS) as ranks:
        for model in QUICK if quick else tuple(MODELS):
            _measure_model(report, ranks, model, repeats=2 if quick else 7)
        ways = _ways(ranks, sum(gradient_bytes(REPLAYED)))
        sending = _replay(ranks, ways, REPLAYED, repeats=1 if quick else 3)
    for way, spent in sending.items():
        report.rows.append({"model": REPLAYED, "way": way, **_sent(ways, way, spent)})
    return report


def _measure_model(
    report: BenchReport, ranks: Sequence[Peer], model: str, repeats: int
) -> None:
    ways = _ways(ranks, sum(gradient_bytes(model)))
    size = _ask(ranks, "load", model=model, ways=ways)["millions"]
    arms = {way: partial(_seconds, ranks, "iterate", way=way) for way in ways}
    arms["alone"] = partial(_seconds, ranks, "iterate", way="alone")
    spent = interleaved(arms, repeats, warm_up=_REBUILDS)
    sending = _replay(ranks, ways, model, repeats=1 if repeats < 5 else 5)
    alone, gloo = spent["alone"].median, spent["gloo"].median
    for way in ways:
        took = spent[way].median
        report.rows.append(
            {
                "model": model,
                "million_parameters": size,
                "way": way,
                "iteration_s": round(took, 3),
                "vs_gloo": round(took / gloo, 3),
                "exposed_s": round(took - alone, 3),
                **_sent(ways, way, sending[way]),
            }
        )
    for way, transport in (("memfd", "shm"), ("tcp", "tcp")):
        name = f"{model}_{transport}_vs_gloo"
        if model in ("bert", "gpt2"):
            report.ratios[name] = round(spent[way].median / gloo, 3)
    if model == "gpt2":
        ratio = spent["A, 25 MiB"].median / gloo
        report.ratios["algorithm_a_vs_plain_gpt2"] = round(ratio, 3)


def _ways(ranks: Sequence[Peer], nbytes: int) -> dict[str, tuple[str, float]]:
    """The published line, its mitigation, ours as planned, torch's own."""
    planned = {
        arm: _ask(ranks, "plan", arm=arm, gradient_bytes=nbytes)["bucket_bytes"] / MIB
        for arm in ("memfd", "tcp")
    }
    return {
        "A, 25 MiB": ("A", float(DEFAULT_CAP_MIB)),
        "A, largest": ("A", LARGEST_MIB),
        **{arm: (arm, round(mib, 1)) for arm, mib in planned.items()},
        "gloo": ("gloo", float(DEFAULT_CAP_MIB)),
    }


def _replay(
    ranks: Sequence[Peer], ways: Ways, model: str, repeats: int
) -> dict[str, Spent]:
    sizes = gradient_bytes(model)
    arms = {
        way: partial(_seconds, ranks, "replay", arm=arm, sizes=_buckets(sizes, cap_mib))
        for way, (arm, cap_mib) in ways.items()
    }
    return interleaved(arms, repeats, warm_up=0)


def _buckets(sizes: Sequence[int], cap_mib: float) -> list[int]:
    cap = int(cap_mib * MIB)
    default = cap_mib == DEFAULT_CAP_MIB
    return buckets(sizes, cap, FIRST_BUCKET_BYTES if default else cap)


def _sent(ways: Ways, way: str, spent: Spent) -> dict[str, str | int | float | bool]:
    return {"bucket_mib": ways[way][1], "communication_alone_s": round(spent.median, 3)}


def _measure_round(report: BenchReport, repeats: int) -> None:
    with _ranks(OWNERS, {"tcp": "tcp"}) as ranks:
        arms = {"round": partial(_seconds, ranks, "round", arm="tcp")}
        spent = interleaved(arms, repeats)["round"]
    report.rows.append(
        {"round": "digits", "owners": OWNERS, "seconds": round(spent.median, 4)}
    )
    report.ratios["round_s"] = round(spent.median, 4)


@contextmanager
def _ranks(world: int, kinds: Mapping[str, str]) -> Iterator[list[Peer]]:
    with ExitStack() as stack:
        port = free_port()
        ranks = [
            stack.enter_context(Peer.start(TrainingEnd, rank, world, port))
            for rank in range(world)
        ]
        for arm, kind in kinds.items():
            join(ranks, kind, arm)
        yield ranks


def _ask(ranks: Sequence[Peer], order: str, **arguments: Any) -> dict[str, Any]:
    """What rank 0 answers, once all have."""
    for rank in ranks:
        rank.tell(order, **arguments)
    first, *_ = [rank.hear() for rank in ranks]
    return first


def _seconds(ranks: Sequence[Peer], order: str, **arguments: Any) -> float:
    """Of the slowest rank."""
    for rank in ranks:
        rank.tell(order, **arguments)
    return max(float(rank.hear()["seconds"]) for rank in ranks)
