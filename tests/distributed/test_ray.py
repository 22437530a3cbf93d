"""Ray Train over a sealed group: the example, as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.sim.torchranks import variables

EXAMPLE = Path(__file__).parents[2] / "examples/ray_train.py"


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.distributed
def test_the_example_trains(tmp_path: Path) -> None:
    try:
        ran = subprocess.run(
            [sys.executable, str(EXAMPLE)],
            env=os.environ | variables() | {"HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    finally:  # its sockets' names would be too long below our own folder
        shutil.rmtree(Path(tempfile.gettempdir(), "ray"), ignore_errors=True)
    assert ran.returncode == 0, ran.stderr
    assert "loss 0.86" in ran.stdout + ran.stderr
