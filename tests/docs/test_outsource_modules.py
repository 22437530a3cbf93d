"""The how-to: its file names three servers, and its script trains on them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sealift.crypto.identity import save_identity
from tests.sim.ownservers import OwnWorld

ROOT = Path(__file__).parents[2]
HOWTO = (ROOT / "docs" / "howto" / "outsource-modules.md").read_text()
EXAMPLE = ROOT / "examples" / "outsource_digits.py"

pytestmark = pytest.mark.distributed


def test_the_script_trains_on_the_servers_that_the_page_names(tmp_path: Path) -> None:
    (file,) = re.findall(r"(?s)```toml\n(.*?)```", HOWTO)
    (passphrase,) = re.findall(r"export SEALIFT_PASSPHRASE=(\S+)", HOWTO)
    with OwnWorld.serving(tmp_path, file) as world:
        save_identity(world.client, tmp_path / "lab.key", passphrase)
        done = subprocess.run(
            [sys.executable, EXAMPLE],
            cwd=tmp_path,
            env={**os.environ, "SEALIFT_PASSPHRASE": passphrase},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    *modules, steps, result = done.stdout.splitlines()
    places = [line.split(";")[0].split("%")[1].strip() for line in modules]
    assert [each.split(":")[0] for each in places] == [
        "servers", "on this machine", "servers",
    ]  # fmt: skip
    assert "product" in places[1], "why it stays"
    costs = [re.search(r"each of ([\d,]+) exchanges", line) for line in modules]
    assert [bool(each) for each in costs] == [True, False, True]
    assert steps == "226 steps on servers, 3 on this machine"
    assert float(result.split("%")[0]) > 90
