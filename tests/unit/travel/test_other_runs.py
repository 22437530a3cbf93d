"""A holder and an accelerator that are sent other settings than all parties signed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sealift.codec import encode
from sealift.crypto.sign import sign_document
from sealift.errors import PolicyError
from sealift.train.job.accelerator import Accelerator
from sealift.travel.settings import JobSettings, TrainingSettings
from sealift.travel.visit.messages import StartJob
from tests.sim.doors import World, holding, leased
from tests.worlds.consortium import RUN, make_consortium


def test_a_holder_sends_nothing_for_other_settings(tmp_path: Path) -> None:
    world = World(tmp_path)
    holder = holding(world, SimpleNamespace())
    peer: Any = world.session().other.peer
    lease = leased(world).body
    holder._require_allowed(lease, peer, "")  # control
    for change in ({"batch_rows": 4097}, {"sync": "step"}, {"plan": "ddp"}):
        other = replace(lease, run=replace(RUN, **change))  # type: ignore[arg-type]
        signed = sign_document(other, world.consortium.identities["cleo"])
        with pytest.raises(PolicyError) as refused:
            holder._require_allowed(signed.body, peer, "")
        assert refused.value.code == "settings-differ"
    world.box.close()


@pytest.mark.parametrize(("plan", "rows"), [("travel", 4097), ("ddp", 32)])
def test_an_accelerator_opens_nothing_for_other_settings(plan: str, rows: int) -> None:
    verified = make_consortium().verified()
    own: Any = SimpleNamespace(_agreement=verified, _plan=plan)  # nothing else is there
    settings = JobSettings(training=TrainingSettings(batch_rows=rows))
    start = StartJob("job", encode(settings))
    with pytest.raises(PolicyError) as refused:
        Accelerator._open(own, start, own, print)
    assert refused.value.code == "settings-differ"
