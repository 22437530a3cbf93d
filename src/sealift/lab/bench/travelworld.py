"""A job for the measurement of overlap, made with the commands that users type.

Two owners with random rows, a lab that owns the model and runs everything, an
accelerator's host. One passphrase for all: it is a measurement.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Final

import numpy as np

from sealift.errors import JobError

OWNERS: Final = ("north", "east")
PARTS: Final = ("train", "heldout")
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
_JOB: Final = """\
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
buffer_bytes = {buffer_bytes}
on_missing = "wait"

[run]
checkpoint_every = 0
"""
Words = list[str | Path]


class OverlapWorld:
    """A folder with everything that a job starts from.

    Args:
        path: Is made.
        rows: Training rows of one visit.
        visits: Training visits to each owner in one epoch.

    Raises:
        JobError: if a command fails; what it said is in the error.
    """

    def __init__(self, path: Path, rows: int, visits: int) -> None:
        path.mkdir()
        self.path, self.rows = path, rows
        (path / "passphrase").write_text(secrets.token_urlsafe(18) + "\n")
        (path / "schema.toml").write_text(_SCHEMA)
        (path / "recipe").mkdir()
        recipe = resources.files("sealift.lab.bench") / "overlap" / "recipe.py"
        with resources.as_file(recipe) as source:
            shutil.copyfile(source, path / "recipe" / "recipe.py")
        for party in (*OWNERS, LAB, HOST):
            self._sealift("key", "new", party)
        for owner in OWNERS:
            (path / owner / "receipts").mkdir(parents=True)
            self._seal(owner, "train", rows * visits)
            self._seal(owner, "heldout", HELDOUT_ROWS)
        self._agree()

    def job(self, buffers: int, repeat: int) -> Path:
        """A job with so many buffers; the results go to a folder of its own."""
        name, size = f"{buffers}-{repeat}", self.rows * ROW_BYTES
        job = self.path / f"job{name}.toml"
        job.write_text(_JOB.format(name=name, buffers=buffers, buffer_bytes=size))
        return job

    def roles(self, job: Path) -> dict[str, Words]:
        """What everybody types, the orchestrator first; the others add where to dial."""
        found: dict[str, Words] = {}
        for role, party in (("orchestrator", LAB), ("accelerator", HOST)):
            found[role] = [role, job]
            found[role] += ["--key", self.path / f"{party}.key"]
        for owner in OWNERS:
            home = self.path / owner
            words: Words = ["--key", self.path / f"{owner}.key", "--sealed", home]
            words += ["--vault", home / "vault.db", "--log", home / "audit.db"]
            words += ["--heads", home / "heads.json", "--receipts", home / "receipts"]
            found[owner] = ["join", job, *words]
        for each in found.values():
            each += ["--passphrase-file", self.path / "passphrase", "--events", "-"]
        return found

    def _seal(self, owner: str, part: str, rows: int) -> None:
        noise, table = np.random.default_rng(0), self.path / f"{owner}-{part}.npz"
        x = noise.standard_normal((rows, WIDTH), dtype=np.float32)
        np.savez(table, x=x, label=noise.integers(0, 10, rows))
        words: Words = ["--schema", "schema.toml", "--part", part, "-o", owner]
        words += ["--name", f"{owner}-{part}", "--vault", f"{owner}/vault.db"]
        self._sealift("data", "seal", table, *words, "--key", f"{owner}.key")
        table.unlink()

    def _agree(self) -> None:
        sealed = [f"{o}/{o}-{part}.resource.json" for o in OWNERS for part in PARTS]
        words: Words = ["--party", *(f"{party}.card.json" for party in (*OWNERS, LAB))]
        words += ["--resource", *sealed, "--code", "recipe", "-o", "agreement.toml"]
        words += ["--attester", f"{HOST}.card.json"]
        words += ["--model-owner", LAB, "--operator", LAB]
        self._sealift("agreement", "new", "--name", "overlap", *words)
        document = self.path / "agreement.toml"
        text = document.read_text()
        for name, value in {"metrics": '["loss"]', "buffers": "2"}.items():
            text = re.sub(rf"(?m)^{name} = [^#\n]*", f"{name} = {value} ", text)
        document.write_text(text)
        file = "agreement.toml"
        for party in (*OWNERS, LAB):
            self._sealift("agreement", "sign", file, "--yes", "--key", f"{party}.key")
            file = "agreement.json"

    def _sealift(self, *words: str | Path) -> None:
        secret = (self.path / "passphrase").read_text().strip()
        done = subprocess.run(  # noqa: S603 - ourselves
            [sys.executable, "-P", "-m", "sealift", *map(str, words)],
            cwd=self.path,
            env={**os.environ, "SEALIFT_PASSPHRASE": secret},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no word"])[-1]
            raise JobError("a command of the measurement failed", why=last)
