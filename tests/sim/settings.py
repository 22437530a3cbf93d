"""A job's settings from a flat list of wishes, whatever table each stands in."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sealift.travel.settings import (
    JobSettings,
    RunSettings,
    Timeouts,
    TrainingSettings,
    TravelSettings,
)


def job_settings(**wishes: Any) -> JobSettings:
    """The settings of a job that wishes this; everything else as it is by default."""
    own = {
        kind: {f.name: wishes.pop(f.name) for f in fields(kind) if f.name in wishes}
        for kind in (TrainingSettings, TravelSettings, Timeouts, RunSettings)
    }
    assert not wishes, wishes
    run = RunSettings(advanced=Timeouts(**own[Timeouts]), **own[RunSettings])
    return JobSettings(
        training=TrainingSettings(**own[TrainingSettings]),
        travel=TravelSettings(**own[TravelSettings]),
        run=run,
    )
