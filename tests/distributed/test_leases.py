"""Leases in real processes: revoked, stopped or cut off, an accelerator gets no further."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sealift.crypto.sign import PublicKey
from sealift.errors import SealiftError
from sealift.release.agreement import ReleaseRule
from sealift.release.decision import GRACE_S
from sealift.release.log.heads import read_entries
from tests.sim.live import LiveJob, live_job

pytestmark = pytest.mark.distributed
BEAT_S = 1.5
RULE = ReleaseRule(lease_s=2 * BEAT_S, heartbeat_s=BEAT_S)
SCHEMA = {"fields": [{"name": "x", "dtype": "float64", "shape": [2]}]}
RECIPE = b"""
import torch

class Net(torch.nn.Linear):
    def training_step(self, batch, step):
        return self(batch["x"].float()).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

def build():
    return Net(2, 1)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[LiveJob]:
    with live_job(
        tmp_path,
        lambda name: bytes(16 * 40),
        row_bytes=16,
        schema=SCHEMA,
        recipe=RECIPE,
        rule=RULE,
    ) as started:
        yield started


def instance(job: LiveJob) -> PublicKey:
    return job.control.peer.instance


def rules(folder: Path, owner: str) -> list[str]:
    entries = read_entries(folder / f"{owner}.log")
    return [each.rule for each in entries if each.kind == "revocation"]


def await_rule(folder: Path, owner: str, within_s: float) -> list[str]:
    deadline = time.monotonic() + within_s
    while not rules(folder, owner) and time.monotonic() < deadline:
        time.sleep(0.02)
    return rules(folder, owner)


def test_an_honest_one_goes_on(job: LiveJob, tmp_path: Path) -> None:
    """Control: longer than two heartbeats, and nobody was revoked."""
    time.sleep(2 * BEAT_S + GRACE_S)
    assert job.process.poll() is None
    assert job.provision(job.grant("ada"))
    assert rules(tmp_path, "ada") == rules(tmp_path, "bern") == []


def test_revoked_by_one_owner_it_ends(job: LiveJob, tmp_path: Path) -> None:
    job.brokers["ada"].leases.revoke(instance(job), "ima-not-allowed")
    assert job.process.wait(BEAT_S + 10) == 5
    assert job.process.stderr is not None
    assert "lease-lost" in job.process.stderr.read()
    assert rules(tmp_path, "ada") == ["ima-not-allowed"]


def test_one_that_stands_still_is_revoked(job: LiveJob, tmp_path: Path) -> None:
    os.kill(job.process.pid, signal.SIGSTOP)
    for owner in ("ada", "bern"):
        assert await_rule(tmp_path, owner, BEAT_S + 10) == ["heartbeat-missing"]
    os.kill(job.process.pid, signal.SIGCONT)
    with pytest.raises(SealiftError):
        job.provision(job.grant("ada"))
