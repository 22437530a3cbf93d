"""The training benchmark's ranks compute one thing over every way, in DDP's own buckets."""

from __future__ import annotations

import pytest

from benchmarks.ddp import iterations
from benchmarks.ddp.models import BATCH, MIB, MODELS, buckets, gradient_bytes
from benchmarks.report import start_report

pytestmark = pytest.mark.long

CAPS = (25, 100, 250, 500, 1000)


@pytest.mark.parametrize(
    ("model", "millions", "counts"),
    [
        ("resnet18", 11.7, (3, 2, 2, 2, 2)),
        ("bert", 108.9, (13, 5, 3, 2, 2)),  # theirs has a pooler, and one more
        ("gpt2", 124.4, (13, 5, 3, 2, 2)),
        ("gpt2-xl", 1557.6, (145, 49, 22, 13, 7)),
    ],
)
def test_gradients_go_in_as_many_buckets_as_the_published_models(
    model: str, millions: float, counts: tuple[int, ...]
) -> None:
    """The counts are those of field/fastrack_ddp.md section 2.2."""
    sizes = gradient_bytes(model)
    assert sum(sizes) / 4e6 == pytest.approx(millions, abs=0.05)
    found = [buckets(sizes, cap * MIB, MIB) for cap in CAPS]
    assert tuple(map(len, found)) == counts
    assert all(sum(each) == sum(sizes) for each in found)


def test_a_rank_has_a_batch_of_its_own() -> None:
    (mine, _), (theirs, targets) = (MODELS["gpt2"].batch(rank) for rank in (0, 1))
    assert mine.shape == theirs.shape == (BATCH, 128)
    assert (mine != theirs).any()
    assert targets.tolist()[:127] == theirs[0, 1:].tolist()


@pytest.mark.distributed
def test_every_way_trains_the_same() -> None:
    """Each has one iteration from the same weights: sums of two ranks have one order."""
    with iterations._ranks(2, iterations.KINDS) as ranks:
        ways = iterations._ways(ranks, sum(gradient_bytes("resnet18")))
        assert set(ways) == {"A, 25 MiB", "A, largest", "memfd", "tcp", "gloo"}
        sums = set()
        for way in ways:  # loading begins with the same weights
            iterations._ask(ranks, "load", model="resnet18", ways={way: ways[way]})
            for _ in range(2):
                found = iterations._ask(ranks, "iterate", way=way)
                assert found["seconds"] > 0
            sums.add(found["loss"])
        assert len(sums) == 1
        sent = iterations._ask(ranks, "replay", arm="tcp", sizes=[8 * MIB, 4096])
        assert sent["seconds"] > 0


@pytest.mark.distributed
def test_a_round_of_three_owners_is_measured() -> None:
    report = start_report("ddp")
    iterations._measure_round(report, repeats=2)
    assert set(report.ratios) == {"round_s"}
    assert report.rows[0]["owners"] == 3
