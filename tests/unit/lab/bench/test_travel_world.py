"""The world of the overlap measurement: made by commands, as its owners would."""

from __future__ import annotations

from pathlib import Path

import pytest

from sealift.lab.bench.travel.overlap import OverlapWorld
from sealift.release.agreement.signed import load_verified
from sealift.train.job.settings import read_job


@pytest.mark.long
@pytest.mark.distributed
def test_everybody_signed_the_agreement_of_the_overlap_world(tmp_path: Path) -> None:
    world = OverlapWorld(tmp_path / "world", rows=32, visits=2)

    verified = load_verified(world.path / "agreement.json")

    assert verified.agreement.travel.buffers == 2
    assert read_job(world.job(2, 0)).travel.buffers == 2
