"""Start and stop the accelerator process of `victim`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from sealift.crypto.keys import TOKEN, SecretKey

ROOT = Path(__file__).parents[2]


def start(
    port: int,
    folder: Path,
    mutant: str,
    attester: SecretKey,
    environment: Mapping[str, str],
) -> subprocess.Popen[str]:
    """The accelerator, with its attester's seed on stdin."""
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.sim.victim", str(port), str(folder), mutant],
        env={**environment, "PYTHONPATH": path},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(attester.reveal(TOKEN).hex() + "\n")
    process.stdin.flush()
    return process


def stop(process: subprocess.Popen[str]) -> None:
    """End it and take what it wrote."""
    process.kill()
    process.communicate()
