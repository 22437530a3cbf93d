"""Between visits and training: what a recipe says of a party's rows is not believed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sealift.errors import JobError, MalformedError, SealiftError
from sealift.train.job.runningjob import Workbench
from sealift.train.loop.faults import bad_row
from sealift.travel.accelerator.setup import LoadedCargo
from tests.unit.train.joints import resource


def worked(error: SealiftError) -> SealiftError:
    """What a group ends with whose task ended so."""
    bench = Workbench.__new__(Workbench)

    def fail(*_parts: object) -> None:
        raise error

    bench.training = cast("Any", SimpleNamespace(work=fail))
    offer = cast("Any", SimpleNamespace(epoch=0, first_row=0, rows=8, purpose="train"))
    cargo = LoadedCargo(offer, resource("north", 8), memoryview(b""), -1)
    with pytest.raises(SealiftError) as caught:
        bench.work([cargo])
    return caught.value


def test_rows_that_were_checked_are_not_to_blame() -> None:
    """Else a recipe could leave a party out, one visit after another."""
    found = worked(bad_row("x", "not finite"))
    assert isinstance(found, JobError)
    assert found.code == "recipe-garbled"
    other = MalformedError("a file hides a module", code="bundle-hides-module")
    assert worked(other) is other  # control
