"""The import contracts of pyproject.toml break when a wrong import is planted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
PURE = [
    module.removeprefix("sealift.").replace("*", "tpm")
    for contract in CONTRACTS["contracts"]
    if contract["id"] == "verifiers-pure"
    for module in contract["source_modules"]
    if module.startswith("sealift.attest.")
]
TRAIN = [
    module.removeprefix("sealift.")
    for contract in CONTRACTS["contracts"]
    if contract["id"] == "parents-without-torch"
    for module in [*contract["source_modules"], "sealift.train.sandboxed"]
]
MODULES = [
    "errors",
    "ids",
    "codec",
    "events",
    "crypto.aead",
    *PURE,
    "attest.tpm.attester",
    "attest.tpm.agent",
    "attest.configfs",
    "attest.tools.written",
    "channel.record",
    "session.handshake",
    "release.broker",
    "travel.holder",
    "data.sealing",
    *TRAIN,
    "demo.run",
    "feed.door",
    "serve.server",
    "health.reporting",
    "health.server",
    "health.status",
    "cli.roles.accelerator",
    "cli.roles.broker",
    "cli.health",
    "cli.roles.join",
    "cli.main",
    "cli.roles.orchestrator",
    "cli.roles.serve",
    "cli.train",
]
PLANTED = {
    "upwards": (
        "crypto.aead",
        "import sealift.channel.record.record",
        "Imports point downwards",
    ),
    "session below release": (
        "session.handshake",
        "import sealift.release.broker",
        "Imports point downwards",
    ),
    "siblings": (
        "attest.policy",
        "import sealift.channel.record.record",
        "Imports point downwards",
    ),
    "a key beside HTTP": (
        "health.server",
        "import sealift.crypto.aead",
        "What speaks HTTP",
    ),
    "HTTP beside a key": (
        "cli.roles.broker",
        "import sealift.health.server",
        "What may hold a key",
    ),
    "a web server in a room": (
        "travel.holder",
        "import uvicorn",
        "What may hold a key",
    ),
    "strange folder": ("utils.text", "", "Imports point downwards"),
    "numpy in the core": (
        "session.handshake",
        "import numpy",
        "The trust core imports",
    ),
    "torch at a recipe's parent": (
        "train.worker",
        "import torch",
        "Of train, only what runs in a recipe's process",
    ),
    "second door": ("channel.record", "import cryptography", "Only crypto imports"),
    "second encoding": ("release.broker", "import rfc8785", "Only codec imports"),
    "socket": ("attest.tpm.verifier", "import socket", "Verifiers are functions"),
    "device": (
        "attest.tpm.verifier",
        "import sealift.attest.tpm.attester",
        "Verifiers are functions",
    ),
    "cycle": ("channel.record", "import sealift.session.handshake", "No import cycles"),
}


def write_module(source: Path, module: str, text: str = "") -> None:
    path = source.joinpath("sealift", *module.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    for package in path.relative_to(source).parents[:-1]:
        (source / package / "__init__.py").touch()
    path.write_text(text)


def broken_contracts(folder: Path) -> list[str]:
    """Run import-linter over the skeleton; return the names of broken contracts."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    run = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-logo", "--no-cache"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(folder / "src")},
    )
    assert "Contracts:" in run.stdout, run.stdout + run.stderr
    return [line for line in run.stdout.splitlines() if " BROKEN" in line]


@pytest.fixture
def skeleton(tmp_path: Path) -> Path:
    for module in MODULES:
        write_module(tmp_path / "src", module)
    write_module(
        tmp_path / "src", "session.handshake", "import sealift.channel.record.record"
    )
    return tmp_path


def test_the_skeleton_keeps_every_contract(skeleton: Path) -> None:
    assert broken_contracts(skeleton) == []


@pytest.mark.parametrize(("module", "line", "contract"), PLANTED.values(), ids=PLANTED)
def test_a_planted_fault_breaks(
    skeleton: Path, module: str, line: str, contract: str
) -> None:
    write_module(skeleton / "src", module, line)
    assert any(found.startswith(contract) for found in broken_contracts(skeleton))
