"""A recipe whose process takes the CPU for a GPU: what is said of it can be tried without one.

The lines go before a recipe of its own; its process then computes on a device of torch's
that allocates nothing, and its placement does what the lines say.
"""

from __future__ import annotations

from dataclasses import replace

from sealift.release.receipt import ScrubbedPart, ScrubSummary
from sealift.train.worker.executor import RecipeExecutor

DEVICE = "meta"
CLEAN = "return DeviceScrub(4096, 0)"
FAILS = "raise RuntimeError('CUDA error: unspecified launch failure')"
HOST = ScrubSummary((ScrubbedPart("buffer", 640, 0),), True, True)
PART = ScrubbedPart(DEVICE, 4096, 0)


def lines(scrub: str = CLEAN, wait: str = "pass") -> str:
    """What stands in for a GPU: how its scrub ends, and a wait for what was begun."""
    return f"""
from sealift.train.sandboxed.placement import DevicePlacement
from sealift.train.loop.tasks import DeviceScrub

def _scrub(self):
    {scrub}

def _wait(self):
    {wait}

DevicePlacement.scrub, DevicePlacement.wait = _scrub, _wait
DevicePlacement.put = lambda self, model, guard: None
DevicePlacement.batch = lambda self, batch: batch
"""


def compute_there(executor: RecipeExecutor) -> None:
    """All tasks that follow."""
    assert executor.sandbox
    executor._equipment = replace(executor._equipment, device=DEVICE)
