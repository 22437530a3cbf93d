"""What goes into the bundle for GPU machines, made without a network; how it is run there."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

pytestmark = pytest.mark.long

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def bundle(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield script("gpu_bundle")
    sys.modules.pop("pins", None)


def test_what_the_machine_has_is_not_carried(bundle):
    found = bundle.closure()
    assert set(found) == {
        "annotated-types", "blake3", "cffi", "cryptography", "pycparser", "pydantic",
        "pydantic-core", "rfc8785", "typing-extensions", "typing-inspection", "uvicorn",
    }  # fmt: skip
    assert all(found.values())


def test_no_lowest_version_is_below_the_one_that_the_project_asks_for(bundle):
    asked = [*bundle.wanted()]
    for name in bundle.closure():
        asked += map(Requirement, distribution(name).requires or ())
    for each in asked:
        least = [
            Version(spec.version) for spec in each.specifier if spec.operator == ">="
        ]
        if each.name in bundle.BROUGHT and least and not each.marker:
            assert Version(bundle.BROUGHT[each.name]) >= max(least), each


def stand_in(name: str, folder: Path) -> None:
    """What is installed here as one packed file: about as large as the package's wheel."""
    with zipfile.ZipFile(folder / f"{name}.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        for file in distribution(name).files or ():
            if Path(file.locate()).is_file():
                wheel.write(file.locate(), str(file))


def test_it_is_made_and_stays_under_its_limit(bundle, tmp_path):
    folder = tmp_path / "gpu-bundle"
    bundle.collect(folder)
    for name in bundle.closure():
        stand_in(name, folder / "wheels")
    archive = bundle.pack(folder)
    with tarfile.open(archive) as tar:
        names = {each.partition("/")[2] for each in tar.getnames()}
    assert {"run.sh", "check.py", "basics.py", "brought.txt", "commit.txt"} <= names
    assert any(each.startswith("wheels/sealift-") for each in names)
    assert "source/tests/unit/train/test_on_a_gpu.py" in names


def test_a_run_of_tests_in_it_ends_well(bundle, tmp_path):
    """Also what is looked at when a run is over is in it."""
    bundle.copy_sources(tmp_path)
    words = ["-q", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *words,
            "tests/unit/channel/cuda/test_geometry.py",
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout


def test_a_bundle_that_is_too_large_is_refused(bundle, tmp_path, monkeypatch):
    (tmp_path / "b").mkdir()
    (tmp_path / "b/random").write_bytes(os.urandom(1000))
    monkeypatch.setattr(bundle, "MOST_BYTES", 999)
    with pytest.raises(SystemExit, match=r"has .* MiB, the most is"):
        bundle.pack(tmp_path / "b")


def test_what_a_machine_lacks_is_said_in_one_line(tmp_path):
    brought = tmp_path / "brought.txt"
    brought.write_text("pytest>=8\nnumpy>=999\nno-such-package>=1\n")
    check = [sys.executable, SCRIPTS / "gpu_check.py", brought]
    ran = subprocess.run(check, capture_output=True, text=True, check=False)
    numpy = distribution("numpy").version
    assert ran.returncode == 3
    assert ran.stdout == (
        f"gpu-bundle: this machine lacks numpy>=999 (here: {numpy}), "
        "no-such-package>=1 (here: none)\n"
    )
    brought.write_text("pytest>=8\ntorch>=2.11\n")
    ran = subprocess.run(check, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "")


def test_the_one_command_is_a_shell_script_that_parses():
    subprocess.run(["sh", "-n", SCRIPTS / "gpu_run.sh"], check=True)
    text = (SCRIPTS / "gpu_run.sh").read_text()
    assert "--no-index" in text
    assert text.count("pip install") == text.count("--no-index")
    assert "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1" in text
