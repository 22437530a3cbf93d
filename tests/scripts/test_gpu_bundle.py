"""What goes into the bundle for GPU machines; that it installs is tried by hand."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def bundle(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    spec = importlib.util.spec_from_file_location("b", SCRIPTS / "gpu_bundle.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("pins", None)


def test_everything_that_is_needed_is_pinned_and_torch_is_not_carried(bundle):
    found = bundle.closure()
    assert {"cryptography", "cuda-bindings", "cuda-pathfinder", "pytest"} <= set(found)
    assert not {"torch", "nvidia-cuda-nvrtc", "sympy"} & set(found)
    assert all(found.values())
    assert "torch" not in bundle.requirements()
    assert "cuda-bindings>=13" in bundle.requirements()


def test_the_one_command_is_a_shell_script_that_parses():
    subprocess.run(["sh", "-n", SCRIPTS / "gpu_run.sh"], check=True)
    text = (SCRIPTS / "gpu_run.sh").read_text()
    assert "--no-index" in text
    assert text.count("pip install") == text.count("--no-index")
