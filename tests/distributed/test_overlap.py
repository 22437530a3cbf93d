"""Two visits in a real accelerator: what a stop leaves, what is refused before any key."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.sim.jobrun import JobRun, job_run
from tests.sim.jobworld import Wishes, fresh_world

pytestmark = pytest.mark.distributed

UNAVAILABLE, PEER = 3, 4
STOPPED = 128 + signal.SIGTERM
TWO = Wishes(epochs=50, step_s=0.1, buffers=2, rule={"buffers": "2"})


def until_two_are_here(run: JobRun) -> None:
    """One visit is worked on, the next one's cargo waits."""
    run.everybody("north", "east")
    told = run["orchestrator"]
    trains = told.wait_event("visit.phase", phase="train")
    after = told.events.index(trains)
    told.wait_event("visit.phase", after=after, phase="wait")


def test_a_stop_scrubs_what_is_worked_on_and_what_waits(tmp_path: Path) -> None:
    with job_run(fresh_world(tmp_path, TWO)) as run:
        until_two_are_here(run)
        accelerator = run["accelerator"]
        accelerator.signal(signal.SIGTERM)
        assert accelerator.end() == STOPPED
        told = accelerator.events[-1]
        assert told.kind == "visit.abandoned"
        assert told.fields["visits"] == 2
        assert told.fields["verified"] is True
        assert told.fields["scrubbed_bytes"] > 0
        assert run["orchestrator"].end() == PEER


@pytest.mark.long
def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """What its last act overwrites is in tests/unit/travel/test_memory.py."""
    with job_run(fresh_world(tmp_path, TWO)) as run:
        until_two_are_here(run)
        accelerator = run["accelerator"]
        accelerator.signal(signal.SIGTERM)
        accelerator.signal(signal.SIGTERM)
        assert accelerator.end() == STOPPED


def test_buffers_that_do_not_fit_are_refused_before_any_key(tmp_path: Path) -> None:
    with job_run(fresh_world(tmp_path, Wishes(buffer_bytes=1 << 40))) as run:
        run.everybody("north", "east")
        orchestrator, accelerator = run["orchestrator"], run["accelerator"]
        assert orchestrator.end() == UNAVAILABLE, orchestrator.errors
        assert orchestrator.error().endswith("[buffer-too-large]")
        assert "1.0 TiB are needed" in orchestrator.error()
        assert accelerator.end() == UNAVAILABLE
        kinds = {event.kind for event in accelerator.events}
        assert "release.collected" not in kinds
