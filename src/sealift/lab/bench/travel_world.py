"""A job for the measurement of overlap, made with the commands that users type.

Two owners with random rows, a lab that owns the model and runs everything, an
accelerator's host. One passphrase file for all: it is a measurement.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

import numpy as np

from sealift.errors import JobError

OWNERS: Final = ("north", "east")
LAB, HOST = "lab", "gpu-host"
WIDTH: Final = 1024
ROW_BYTES: Final = 4 * WIDTH + 8  # x, and the label
HELDOUT_ROWS: Final = 64
_SCHEMA: Final = f"""\
[[fields]]
name = "x"
dtype = "float32"
shape = [{WIDTH}]

[[fields]]
name = "label"
dtype = "int64"
shape = []
min = 0
max = 9
"""


@dataclass(frozen=True, slots=True)
class OverlapWorld:
    """A folder with everything that a job starts from.

    Attributes:
        path: The folder.
        rows: Training rows of one visit.
        visits: Training visits to each owner in one epoch.
    """

    path: Path
    rows: int
    visits: int

    def write_job(self, buffers: int, repeat: int) -> Path:
        """A job with so many buffers; the results go to a folder of its own."""
        name = f"{buffers}-{repeat}"
        job = self.path / f"job{name}.toml"
        job.write_text(
            f"""\
name = "overlap"
agreement = "agreement.json"
bundle = "recipe"
output = "run{name}"
orchestrator = "127.0.0.1:0"

[training]
epochs = 1
batch_rows = 128
threads = 1

[travel]
buffers = {buffers}
buffer_bytes = {self.rows * ROW_BYTES}
on_missing = "wait"

[run]
checkpoint_every = 0
"""
        )
        return job

    def key_words(self, party: str) -> list[str | Path]:
        """What every role takes."""
        key, secret = self.path / f"{party}.key", self.path / "passphrase"
        return ["--key", key, "--passphrase-file", secret]

    def owner_words(self, owner: str) -> list[str | Path]:
        """What an owner's ``sealift join`` takes."""
        home = self.path / owner
        words = {"sealed": "", "vault": "vault.db", "log": "audit.db",
                 "heads": "heads.json", "receipts": "receipts"}  # fmt: skip
        return [
            each for name, file in words.items() for each in (f"--{name}", home / file)
        ]


def make_overlap_world(path: Path, rows: int, visits: int) -> OverlapWorld:
    """Make keys, sealed tables and the agreement that everybody signed.

    Raises:
        JobError: if a command fails; what it said is in the error.
    """
    path.mkdir()
    world = OverlapWorld(path, rows, visits)
    (path / "passphrase").write_text(secrets.token_urlsafe(18) + "\n")
    (path / "schema.toml").write_text(_SCHEMA)
    recipe = resources.files("sealift.lab.bench") / "overlap" / "recipe.py"
    (path / "recipe").mkdir()
    with resources.as_file(recipe) as source:
        shutil.copyfile(source, path / "recipe" / "recipe.py")
    for party in (*OWNERS, LAB, HOST):
        _sealift(world, ["key", "new", party], {})
    for owner in OWNERS:
        _seal(world, owner, "train", rows * visits)
        _seal(world, owner, "heldout", HELDOUT_ROWS)
    _agree(world)
    return world


def _seal(world: OverlapWorld, owner: str, part: str, rows: int) -> None:
    noise = np.random.default_rng(0)
    table = world.path / f"{owner}-{part}.npz"
    x = noise.standard_normal((rows, WIDTH), dtype=np.float32)
    np.savez(table, x=x, label=noise.integers(0, 10, rows))
    home = world.path / owner
    home.mkdir(exist_ok=True)
    words: list[str | Path] = [
        "data",
        "seal",
        table,
        "--schema",
        "schema.toml",
        "--part",
        part,
    ]
    words += ["--name", f"{owner}-{part}", "--vault", home / "vault.db"]
    _sealift(world, [*words, "--key", f"{owner}.key", "-o", home])
    table.unlink()


def _agree(world: OverlapWorld) -> None:
    cards = [f"{party}.card.json" for party in (*OWNERS, LAB)]
    sealed = [
        f"{o}/{o}-{p}.resource.json" for o in OWNERS for p in ("train", "heldout")
    ]
    words = ["agreement", "new", "--name", "overlap", "--party", *cards]
    words += ["--resource", *sealed, "--code", "recipe", "--attester"]
    words += [f"{HOST}.card.json", "--model-owner", LAB, "--operator", LAB]
    _sealift(world, [*words, "-o", "agreement.toml"])
    document = world.path / "agreement.toml"
    settled = {"metrics": '["loss"]', "buffers": "2"}
    text = document.read_text()
    for name, value in settled.items():
        text = re.sub(rf"(?m)^{name} = [^#\n]*", f"{name} = {value} ", text)
    document.write_text(text)
    file = "agreement.toml"
    for party in (*OWNERS, LAB):
        _sealift(world, ["agreement", "sign", file, "--yes", "--key", f"{party}.key"])
        file = "agreement.json"


def _sealift(
    world: OverlapWorld,
    words: Sequence[str | Path],
    environment: Mapping[str, str] | None = None,
) -> None:
    secret = (world.path / "passphrase").read_text().strip()
    done = subprocess.run(  # noqa: S603 - ourselves
        [sys.executable, "-P", "-m", "sealift", *map(str, words)],
        cwd=world.path,
        env={**os.environ, "SEALIFT_PASSPHRASE": secret, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise JobError("a command of the measurement failed", why=last)
