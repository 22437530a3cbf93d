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

# Imports the modules named (`room.**`: with everything below), prints what that loaded.
PROGRAM = """
import importlib, json, pkgutil, sys
for name in sys.argv[1:]:
    module = importlib.import_module(name.removesuffix(".**"))
    if name.endswith(".**"):
        below = pkgutil.walk_packages(getattr(module, "__path__", ()), module.__name__ + ".")
        for found in below:
            importlib.import_module(found.name)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def loaded_by(name: str) -> set[str]:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, name],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout))


def test_importing_sealift_loads_nothing_heavy() -> None:
    assert not loaded_by("sealift") & (HEAVY | {"cryptography"})


@pytest.mark.parametrize("room", TRUST_CORE)
def test_trust_core_loads_nothing_heavy(room: str) -> None:
    assert not loaded_by(f"sealift.{room}.**") & HEAVY


def test_a_holder_loads_nothing_heavy() -> None:
    assert not loaded_by("sealift.travel.holder.visit") & HEAVY


def test_what_seals_and_opens_has_no_torch() -> None:
    """Nor numpy, before a name of it is used; workers that open have no torch."""
    assert not loaded_by("sealift.data") & (HEAVY | {"cryptography"})
    extras = {"torch", "pyarrow", "PIL", "aiohttp"}
    assert not loaded_by("sealift.data.loader.worker") & extras
    assert not loaded_by("sealift.data.sealing") & extras


def test_a_door_to_a_device_has_no_torch() -> None:
    """Nor numpy, before a name of it is used; an owner's end needs no torch at all."""
    assert not loaded_by("sealift.feed") & (HEAVY | {"cryptography"})
    assert "torch" not in loaded_by("sealift.feed.sending")
    assert "torch" not in loaded_by("sealift.feed.receiving")


@pytest.mark.parametrize("parent", ["roles.accelerator", "train", "roles.orchestrator"])
def test_whoever_starts_a_recipe_has_no_torch(parent: str) -> None:
    """Keys, leases and digests are in a process that no recipe's library runs in."""
    assert "torch" not in loaded_by(f"sealift.cli.{parent}")


def test_the_measure_notices_a_heavy_import() -> None:
    assert "numpy" in loaded_by("numpy")


def test_torch_is_loaded_in_the_world_that_recipes_run_in() -> None:
    """A zygote loads it behind its namespaces, which need a single thread."""
    assert "torch" not in loaded_by("sealift.train.sandboxed.zygote")
