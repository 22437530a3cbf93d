"""The rehearsal as its users start it: a guest attests, and misbehaves at last."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.guest import folder

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.guest,
    pytest.mark.soak,
]
LEVEL = "development (rehearsing attested-host)"


def run_module(module: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"SEALIFT_GUEST": str(folder())},
    )


def test_the_whole_path_and_what_stands_afterwards(tmp_path: Path) -> None:
    world = tmp_path / "world"
    words = ("--keep", "--json", "--output", world)
    run = run_module("tests.guest.rehearsal", *words)
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert told["level"] == LEVEL
    assert told["log_verified"] is told["scrub_verified"] is True
    assert told["attacks_refused"] == 3
    assert "ima-entry-unlisted" in told["revocation_rules"].values()
    assert LEVEL in (world / "report.html").read_text()
    agreed = ("--agreement", world / "agreement.json")
    logs = ("--with-log", world / "north" / "audit.db")
    whole = world / "run" / "receipt.json"
    proved = run_module("sealift", "receipt", "verify", whole, *agreed, *logs, "--json")
    assert proved.returncode == 0, proved.stderr
    found = json.loads(proved.stdout)
    assert f"level {LEVEL}" in found["evidence"]
    assert "north-train" in found["verified"]
    receipt = min((world / "east" / "receipts").iterdir())
    assert run_module("sealift", "receipt", "verify", receipt, *agreed).returncode == 0
    early = run_module(
        "sealift", "receipt", "verify", whole, *agreed, "--at", "2020-01-01"
    )
    assert early.returncode == 5
    assert "chain-expired" in early.stderr
    assert run.stderr.count("rehearsing attested-host") >= 2
