"""Between visits and training: what a recipe says of a party's rows is not believed."""

from __future__ import annotations

from contextlib import closing
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest

from sealift.data.schedule.memory import SharedBuffer
from sealift.data.schedule.visits import Stop
from sealift.errors import JobError, MalformedError, SealiftError
from sealift.train.job.runningjob import Restarts, RunningJob
from sealift.train.loop.faults import bad_row
from sealift.travel.accelerator.setup import LoadedCargo
from tests.unit.train.joints import resource

_GIVEN = ("training", "restarts", "position")
_UNUSED: dict[str, Any] = {
    each.name: None for each in fields(RunningJob) if each.name not in _GIVEN
}


def worked(error: SealiftError) -> SealiftError:
    """What a group ends with whose task ended so."""

    def fail(*_parts: object) -> None:
        raise error

    training = SimpleNamespace(work=fail, statistics=b"")
    job = RunningJob(**_UNUSED, training=training, restarts=Restarts())
    stop = Stop(0, "north", "north-train", "train", 0, 8)
    cargo = LoadedCargo(stop, resource("north", 8), SharedBuffer(8))
    with closing(cargo.memory), pytest.raises(SealiftError) as caught:
        job.work([cargo])
    return caught.value


def test_rows_that_were_checked_are_not_to_blame() -> None:
    """Else a recipe could leave a party out, one visit after another."""
    found = worked(bad_row("x", "not finite"))
    assert isinstance(found, JobError)
    assert found.code == "recipe-garbled"
    other = MalformedError("a file hides a module", code="bundle-hides-module")
    assert worked(other) is other  # control
