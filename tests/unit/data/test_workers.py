"""Processes that open records: what they get, what becomes of them."""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, _utils

from sealift.crypto.keys import TOKEN
from sealift.data import SealedDataLoader
from sealift.data.loader.opening import Extent
from sealift.data.loader.windows import WindowArena
from sealift.data.loader.worker import SpawnedOpener
from sealift.errors import AuthenticationError, PeerError, UsageError
from tests.sim.sealed_shards import Shards, seal_shards

pytestmark = pytest.mark.distributed

ROWS = 100


@pytest.fixture
def shards(tmp_path: Path) -> Shards:
    return seal_shards(tmp_path)


def children() -> set[int]:
    listed = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
    return {int(word) for word in listed.split()}


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def gone(pid: int) -> bool:
    for _ in range(100):
        if not alive(pid):
            return True
        time.sleep(0.05)
    return False


def test_processes_give_the_rows_that_threads_give(shards: Shards) -> None:
    options = {"shuffle": True, "seed": 1, "window_bytes": 700}
    seen = []
    before = children()
    with shards.open() as dataset:
        for workers in ("thread", "process"):
            with SealedDataLoader(
                dataset, 8, workers=workers, num_workers=2, **options
            ) as batches:
                seen.append(torch.cat([batch["id"] for batch in batches]).tolist())
                at_work = children() - before
                assert len(at_work) == (2 if workers == "process" else 0)
            assert children() == before
    assert seen[0] == seen[1]
    assert sorted(seen[0]) == list(range(ROWS))


def drain(batches: Iterable[Any], seen: list[int]) -> None:
    for batch in batches:
        seen += batch["id"].tolist()


def test_a_killed_worker_is_an_error_and_leaves_nobody(shards: Shards) -> None:
    before = children()
    with (
        shards.open() as dataset,
        SealedDataLoader(
            dataset, 8, workers="process", num_workers=2, window_bytes=700
        ) as batches,
    ):
        part = iter(batches)
        seen = next(part)["id"].tolist()
        for pid in children() - before:
            os.kill(pid, signal.SIGKILL)
        refused = pytest.raises(PeerError, match="it was killed by SIGKILL")
        with refused as caught:
            drain(part, seen)  # what was opened before
        assert caught.value.code == "opener-gone"
        assert children() == before
        batches.load_state_dict(batches.state_dict())
        drain(batches, seen)
        assert seen == list(range(ROWS))
    assert children() == before


@pytest.fixture
def opener(shards: Shards) -> Iterator[SpawnedOpener]:
    arena = WindowArena(1, 4096, shared=True)
    with shards.open() as dataset:
        opener = SpawnedOpener(dataset.shards.shards, arena)
    yield opener
    opener.close()
    arena.close()


def test_an_opener_says_which_record(shards: Shards, opener: SpawnedOpener) -> None:
    opener.open([Extent(0, 0, 192, 0)])
    raw = bytearray(shards.places[1].read_bytes())
    raw[130] ^= 1
    shards.places[1].write_bytes(raw)
    with pytest.raises(AuthenticationError, match=r"record 0 of part-1.sealed"):
        opener.open([Extent(1, 0, 100, 0)])


def test_keys_are_in_no_place_that_others_read(
    shards: Shards, opener: SpawnedOpener
) -> None:
    opener.open([Extent(0, 0, 192, 0)])
    place = Path(f"/proc/{opener.process.pid}")
    told = (
        place.joinpath("cmdline").read_bytes() + place.joinpath("environ").read_bytes()
    )
    for key in shards.keys.values():
        material = key.reveal(TOKEN)
        for text in (material, material.hex().encode()):
            assert text not in told
            for path in shards.folder.iterdir():
                assert text not in path.read_bytes()
    opened = {os.readlink(link) for link in place.joinpath("fd").iterdir()}
    files = [
        Path(name) for name in opened if name.startswith("/") and "dev" not in name
    ]
    assert {path.suffix for path in files if path.is_relative_to(shards.folder)} == {
        ".sealed"
    }


def test_an_opener_runs_no_code_of_the_folder_it_starts_in(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``python -m`` would import from there first, beside the keys."""
    (tmp_path / "resource.py").write_text("raise SystemExit('beside the keys')\n")
    monkeypatch.chdir(tmp_path)
    with shards.open() as dataset:
        arena = WindowArena(1, 4096, shared=True)
        opener = SpawnedOpener(dataset.shards.shards, arena)
        opener.open([Extent(0, 0, 192, 0)])
        opener.close()
        arena.close()


ORPHANED = """
import os, signal, sys
from pathlib import Path
from sealift.crypto.keys import SecretKey
from sealift.data.loader.windows import WindowArena
from sealift.data.loader.worker import SpawnedOpener
opener = SpawnedOpener([], WindowArena(1, 64, shared=True))
print(opener.process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_ends_with_a_killed_loader() -> None:
    run = subprocess.run(
        [sys.executable, "-c", ORPHANED], capture_output=True, text=True, check=False
    )
    assert run.returncode == -signal.SIGKILL, run.stderr
    assert gone(int(run.stdout))


def test_a_dataset_stays_in_its_process(shards: Shards) -> None:
    with shards.open() as dataset:
        with pytest.raises(UsageError, match="SealedDataLoader") as caught:
            copy.copy(dataset)  # as pickling does
        assert caught.value.code == "forked-dataset"
        dataset[0]
        with multiprocessing.get_context("fork").Pool(1) as pool:
            forked = pool.apply_async(_look, (id(dataset),))
            assert "to another process" in forked.get(10)


def _look(address: int) -> str:
    import gc

    (dataset,) = [found for found in gc.get_objects() if id(found) == address]
    try:
        return str(dataset[0])
    except UsageError as error:
        return str(error)


def test_torchs_own_loader_says_what_to_do(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shards.open() as dataset:
        labels = [b["id"] for b in DataLoader(dataset, batch_size=32, num_workers=0)]
        assert torch.cat(labels).tolist() == list(range(ROWS))
        forking = DataLoader(
            dataset, batch_size=32, num_workers=1, multiprocessing_context="fork"
        )
        rows: Any = iter(forking)
        with pytest.raises(UsageError, match=r"SealedDataLoader\(num_workers=N\)"):
            next(rows)
        # Else whatever test comes when it is collected waits 5 s for its worker.
        monkeypatch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 0.2)
        rows._shutdown_workers()
