"""Run after run of one meeting, by the units, in organisations with firewalls, while things break.

The short form runs in `make test-all`; `make soak-month RUNS=40` is the long one. What happens
comes from a seed. A unit that ends is started again as systemd would do it.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.test_three_organisations import WHY, Apart
from tests.distributed.test_unit_meeting import OWNERS
from tests.sim.jobrun import WAIT_S
from tests.sim.organisations import Organisations, three_organisations

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(bool(WHY), reason=WHY or "namespaces are permitted"),
]
JOB = """
[training]
epochs = 2
batch_rows = 32
seed = {}

[agreed]
runs = 64
seed = {{ max = 64 }}
"""
NOT_AGAIN = (1, 2, 5, 6, 7)  # RestartPreventExitStatus of the units
EVENTS = (
    "nothing",
    "kill an owner",
    "kill the host",
    "renew the proxy",
    "stall an owner",
)


class Month(Apart):
    """Takes part in run after run; counts what was broken and what it needed."""

    def __init__(self, state: Path, organisations: Organisations, seed: int) -> None:
        super().__init__(state, organisations)
        self._seed = seed
        self.happened: list[str] = []
        self.figures: list[dict[str, Any]] = []
        for name in OWNERS:
            self.settings(name, DATA="table.csv", OPTIONS="--stay")

    def choose(self, number: int) -> None:
        """The settings of the next run, within what was agreed."""
        (self.state / "sealift/host/line/job.toml").write_text(JOB.format(number))

    def run(self, number: int) -> None:
        """One run, in which something happens, until its model is there."""
        model = "model.safetensors" if number == 1 else f"model-{number}.safetensors"
        began_s = time.monotonic()
        self.choose(number)
        if number > 1:
            self.begin("host")
        self.wait_for("host", "STATUS=all parties have signed; the job begins")
        self.harm(EVENTS[self._draw(len(EVENTS))])
        starts = 1
        while code := self.end("host"):
            assert code not in NOT_AGAIN, self.log("host")
            assert starts < 10, self.log("host")
            starts += 1
            self.begin("host")
        assert (self.state / "sealift/host" / model).exists(), self.log("host")
        used = {name: self._used(name) for name in ("host", *OWNERS)}
        took_s = round(time.monotonic() - began_s, 1)
        self.figures.append(
            {
                "run": number,
                "event": self.happened[-1],
                "starts": starts,
                "s": took_s,
                **used,
            }
        )
        for name in OWNERS:
            if self.running[name].poll() is not None:
                assert self.running[name].returncode not in NOT_AGAIN, self.log(name)
                self.begin(name)

    def harm(self, event: str) -> None:
        """Do it now."""
        self.happened.append(event)
        name = OWNERS[self._draw(len(OWNERS))]
        match event:
            case "kill an owner":
                self.restart("join", name)
            case "kill the host":
                self.restart("host", "host")
            case "renew the proxy":
                self._organisations.renew_proxy()
            case "stall an owner":
                group = self.running[name].pid
                os.killpg(group, signal.SIGSTOP)
                time.sleep(self._draw(20) / 10)
                os.killpg(group, signal.SIGCONT)

    def _draw(self, below: int) -> int:
        """A number that the seed and what happened before decide."""
        said = f"{self._seed} {self.happened} {below}".encode()
        return int.from_bytes(hashlib.sha256(said).digest()[:4], "big") % below

    def stop_owners(self) -> None:
        """As `systemctl stop` does."""
        for name in OWNERS:
            self.running[name].terminate()
        for name in OWNERS:
            assert self.end(name) == 128 + signal.SIGTERM, self.log(name)

    def _used(self, name: str) -> dict[str, int]:
        """Memory of its first process, and what its folder takes, in KiB."""
        folder = self.state / "sealift" / name
        sizes = [each.stat().st_size for each in folder.rglob("*") if each.is_file()]
        status = Path(f"/proc/{self.running[name].pid}/status")
        lines = status.read_text().splitlines() if status.exists() else []
        memory = [int(line.split()[1]) for line in lines if line.startswith("VmRSS")]
        return {"memory": sum(memory), "disk": sum(sizes) // 1024}


def sealift(folder: Path, *words: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "sealift", *words], cwd=folder, capture_output=True,
        text=True, check=True, timeout=WAIT_S,
    ).stdout  # fmt: skip


def live(tmp_path: Path, runs: int, seed: int) -> list[dict[str, Any]]:
    """So many runs; what each took, once all that must hold at the end was found to hold."""
    with three_organisations() as organisations:
        month = Month(tmp_path, organisations, seed)
        try:
            month.choose(1)
            month.begin("host")
            month.wait_for("host", "READY=1")
            month.invite()
            month.agree()
            for number in range(1, runs + 1):
                month.run(number)
            month.stop_owners()
        finally:
            month.stop()
    place = tmp_path / "sealift"
    for name in OWNERS:
        found = json.loads(
            sealift(place / name, "audit", "verify", "audit.db", "--json").splitlines()[
                0
            ]
        )
        assert found["refusals"] == 0
        assert runs <= found["releases"] <= 10 * runs
    for number in range(1, runs + 1):
        inner = "" if number == 1 else f"run-{number}/"
        kept = [(place / name / f"{inner}receipt.json") for name in OWNERS]
        told = {each.read_bytes() for each in kept if each.exists()}
        assert len(told) == 1, f"the receipts of run {number} differ, or there is none"
    return month.figures


@pytest.mark.timeout(1200)
def test_two_runs_of_a_month(tmp_path: Path) -> None:
    live(tmp_path, runs=2, seed=int(os.environ.get("SEED", "3")))


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_a_month(tmp_path: Path) -> None:
    """`make soak-month`: writes its figures to build/month.json."""
    figures = live(
        tmp_path, int(os.environ.get("RUNS", "40")), int(os.environ.get("SEED", "1"))
    )
    place = Path("build/month.json")
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps(figures, indent=1))
