"""A worker's heap: what a step frees the next one takes, and the kernel clears no page twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from sealift.train.loop.trainer import Trainer
from sealift.train.worker import executor as module
from sealift.train.worker.executor import RecipeExecutor
from sealift.travel.settings import TrainingSettings

pytestmark = pytest.mark.distributed

MIB_TAKEN, ROUNDS = 40, 20  # glibc maps what has more than 32 by itself
RECIPE = f"""
import torch
from torch import nn


def build():
    for _ in range({ROUNDS}):
        torch.ones({MIB_TAKEN} << 18)
    return nn.Linear(4, 2)


def configure_optimizers(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)
"""
PAGES = MIB_TAKEN * 256
HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def faults() -> int:
    """Pages that the kernel gave to all processes of one task."""
    with RecipeExecutor({"recipe.py": RECIPE.encode()}, "recipe.py") as executor:
        assert executor.sandbox
        first = Path("/proc", str(executor._process.pid))
        children = Path(first, "task", first.name, "children").read_text().split()
        of = [first, *(Path("/proc", child) for child in children)]
        before = sum(map(_given_to_children, of))
        Trainer(executor, TrainingSettings(seed=1, batch_rows=2)).build()
        return sum(map(_given_to_children, of)) - before


def _given_to_children(process: Path) -> int:
    """``cminflt`` of proc(5): of children that were waited for."""
    return int(Path(process, "stat").read_text().rpartition(")")[2].split()[8])


def test_what_is_freed_is_taken_again() -> None:
    assert faults() < 4 * PAGES


@pytest.mark.cold
@pytest.mark.skipif("[always]" in HUGE.read_text(), reason="all memory is huge pages")
def test_without_the_setting_it_comes_from_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control: glibc's own way."""
    monkeypatch.setattr(module, "_KEEP_HEAP", "")
    assert faults() > ROUNDS * PAGES // 2
