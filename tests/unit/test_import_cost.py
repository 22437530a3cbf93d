"""Brokers and holders run without torch and numpy: importing their rooms loads neither."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {"numpy", "pydantic", "rich", "torch"}
TRUST_CORE = (
    "errors", "ids", "codec", "events", "crypto", "attest", "channel", "release", "session",
)  # fmt: skip

# Imports every module of the packages named, then prints what of HEAVY was loaded.
PROGRAM = """
import importlib, json, pkgutil, sys
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", ()), name + "."):
        importlib.import_module(found.name)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def loaded_by(*names: str) -> set[str]:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, *names],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(run.stdout))


def test_importing_sealift_loads_nothing_heavy() -> None:
    assert not loaded_by("sealift") & (HEAVY | {"cryptography"})


@pytest.mark.parametrize("room", TRUST_CORE)
def test_trust_core_loads_nothing_heavy(room: str) -> None:
    assert not loaded_by(f"sealift.{room}") & HEAVY


def test_the_measure_notices_a_heavy_import() -> None:
    assert "numpy" in loaded_by("numpy")
