"""Plan ``outsource``: every role a process of its own, and three servers of shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from sealift.demo.run import run_travel
from sealift.outsource.masked import SHARES
from sealift.outsource.plain import PlainProducts
from sealift.train.loop.products import Outsourcing
from tests.sim.jobrun import job_run
from tests.sim.jobworld import OWNERS, Wishes, train_here
from tests.sim.outsourceworld import outsourced_world, start_servers
from tests.sim.quickkernels import quick_kernels

pytestmark = [pytest.mark.distributed, pytest.mark.plan]
WISHES = Wishes(epochs=1, owners=OWNERS, gather_s=600.0)  # all of them come


def test_a_run_with_servers_equals_its_reference_bit_for_bit(tmp_path: Path) -> None:
    world = outsourced_world(tmp_path / "world", WISHES)
    with job_run(world) as servers:
        start_servers(servers, WISHES, dict.fromkeys(SHARES, ("sealift",)))
        run = run_travel(world, lambda _process, _event: None, behaviour={})
    products = Outsourcing(lambda _: PlainProducts(), quick_kernels(), WISHES.seed)
    reference = train_here(world, products=products)
    assert reference.weights is not None
    assert run.result["weights"] == reference.weights.to_text()
