"""A meeting on this machine: a host, owners with small tables, and a tiny model."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import numpy as np

import sealift

ROWS: Final = 100
LOOK_S: Final = 0.2
RECIPE: Final = '''\
"""A linear model of two columns: what is measured is everything but the model."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, batch):
        return self.layer(torch.stack([batch["age"], batch["dose"]], dim=1))

    def training_step(self, batch, step):
        return nn.functional.cross_entropy(self(batch), batch["healed"])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def build():
    return Model()
'''
SCHEMA: Final = """\
[[fields]]
name = "age"
dtype = "float32"

[[fields]]
name = "dose"
dtype = "float32"

[[fields]]
name = "healed"
dtype = "int64"
classes = 2
"""


def names(owners: int) -> list[str]:
    """Of so many owners."""
    return [f"ward-{number:02}" for number in range(owners)]


def train(folder: Path, owners: int, rounds: int) -> float:
    """Meet, sign, train and open the model; seconds from the first command to the model."""
    write_recipe(folder / "host" / "wards", rounds)
    for seed, name in enumerate(names(owners)):
        (folder / name).mkdir()
        write_table(folder / name / "train.csv", seed, ROWS)
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    began_s = time.monotonic()
    with (
        sealift.host(
            "wards", names(owners), folder=folder / "host", listen=listen, talk=_quiet
        ) as meeting,
        ThreadPoolExecutor(owners) as pool,
    ):
        joined = [
            pool.submit(
                sealift.join,
                line,
                "train.csv",
                folder=folder / name,
                sign=lambda question: True,
                talk=_quiet,
            )
            for name, line in meeting.invitations.items()
        ]
        meeting.wait()
        seconds = time.monotonic() - began_s
        for each in joined:
            each.result()
    return seconds


def write_recipe(folder: Path, rounds: int) -> None:
    """The host's folder: a linear model, the schema of its tables, and the job."""
    folder.mkdir(parents=True)
    (folder / "recipe.py").write_text(RECIPE, encoding="utf-8")
    (folder / "schema.toml").write_text(SCHEMA, encoding="utf-8")
    job = f"[training]\nepochs = {rounds}\nbatch_rows = {ROWS}\n"
    (folder / "job.toml").write_text(job, encoding="utf-8")


def write_table(path: Path, seed: int, many: int) -> None:
    """An owner's table of so many rows."""
    rows = np.random.default_rng(seed).normal(size=(many, 2))
    lines = [f"{age:.3f},{dose:.3f},{int(age + dose > 0)}" for age, dose in rows]
    path.write_text("\n".join(["age,dose,healed", *lines, ""]), encoding="utf-8")


def _quiet(line: str) -> None:
    """Nobody reads along."""


@contextmanager
def peaks_in(folder: Path) -> Iterator[dict[str, int]]:
    """The most memory (PSS, bytes) of all processes of each party's folder at one time."""
    found: dict[str, int] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            sums: dict[str, int] = {}
            for entry in Path("/proc").iterdir():
                with suppress(OSError, ValueError, StopIteration):
                    place = (entry / "cwd").resolve(strict=True)
                    party = place.relative_to(folder.resolve()).parts[0]
                    lines = (entry / "smaps_rollup").read_text().splitlines()
                    pss = next(each for each in lines if each.startswith("Pss:"))
                    sums[party] = sums.get(party, 0) + int(pss.split()[1]) * 1024
            for party, pss_bytes in sums.items():
                found[party] = max(found.get(party, 0), pss_bytes)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
