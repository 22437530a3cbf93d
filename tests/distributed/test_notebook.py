"""The notebook: its cells, in order, in a fresh process, train what it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.distributed, pytest.mark.long]
ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "together.ipynb"
LEAST = 0.9


def cells() -> list[str]:
    """The code of each."""
    found = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    return ["".join(each["source"]) for each in found if each["cell_type"] == "code"]


def test_its_cells_train_a_model(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", "\n\n".join(cells())],
        cwd=tmp_path,
        env={**environment, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    accuracy = re.search(r"accuracy on 300 held-out rows .*: ([\d.]+)\n", done.stdout)
    assert accuracy is not None, done.stdout
    assert float(accuracy[1]) > LEAST
    assert len(re.findall(r"^words( +\w+){8}$", done.stdout, re.M)) == 1
    assert list(tmp_path.iterdir()) == []  # it tidies up


def test_it_carries_no_outputs() -> None:
    found = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    code = [each for each in found if each["cell_type"] == "code"]
    assert [each["outputs"] for each in code] == [[]] * len(code)
    assert [each["execution_count"] for each in code] == [None] * len(code)
