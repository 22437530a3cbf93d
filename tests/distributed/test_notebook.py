"""The notebooks: their cells, in order, in a fresh process, train what they say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.distributed, pytest.mark.long]
ROOT = Path(__file__).parents[2]
# By notebook: the number that its last cell prints, and the least that it may be.
PRINTED = {
    "together": (r"accuracy on 300 held-out rows .*: ([\d.]+)\n", 0.9),
    "hospitals": (r"AUC on 89 new patients: ([\d.]+)\n", 0.9),
}


def code_of(name: str) -> list[dict[str, Any]]:
    """The cells with code."""
    path = ROOT / "examples" / f"{name}.ipynb"
    found = json.loads(path.read_text("utf-8"))["cells"]
    return [each for each in found if each["cell_type"] == "code"]


@pytest.mark.parametrize("name", PRINTED)
def test_its_cells_train_a_model(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    cells = ["".join(each["source"]) for each in code_of(name)]
    done = subprocess.run(
        [sys.executable, "-c", "\n\n".join(cells)],
        cwd=tmp_path,
        env={**environment, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    pattern, least = PRINTED[name]
    printed = re.search(pattern, done.stdout)
    assert printed is not None, done.stdout
    assert float(printed[1]) > least
    if name == "together":
        assert len(re.findall(r"^words( +\w+){8}$", done.stdout, re.M)) == 1
    else:
        assert "verified, and compared with what you gave" in done.stdout
    assert list(tmp_path.iterdir()) == []  # it tidies up


@pytest.mark.parametrize("name", PRINTED)
def test_it_carries_no_outputs(name: str) -> None:
    code = code_of(name)
    assert [each["outputs"] for each in code] == [[]] * len(code)
    assert [each["execution_count"] for each in code] == [None] * len(code)
