"""How fast sealed batches come, beside PyTorch's own loader over the same .npz.

Arms, interleaved in one run; each is a whole shuffled epoch, batches of 256, dicts of
tensors on the CPU:

* ``dataloader``: ``DataLoader(TensorDataset(...), shuffle=True)`` over arrays that
  ``np.load`` has put into memory before the clock starts;
* ``indexed``: the same arrays, ``x[permutation[i:j]]`` by hand: the fastest plain way;
* ``sealed``: ``SealedDataLoader`` from the file, its records in the page cache, with
  cards: opened, hashed against the commitment and gathered, nothing kept between epochs;
* ``sealed-process``: the same with a process that opens; ``sealed-engine``: by the
  host's device engine.

torch works with one thread, so that its idle threads are not measured; CPU seconds are
those of this process (for ``sealed-process`` a part only, so they are left out).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from math import prod
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.report import Arm, BenchReport, interleaved, start_report
from sealift.channel.device.host import HostDevice
from sealift.crypto.keys import SecretKey
from sealift.data.loader.torchloader import SealedDataLoader
from sealift.data.sealing import seal_table
from sealift.data.shards.dataset import SealedDataset
from sealift.data.sources.table import infer_schema

BATCH: Final = 256
TABLE_BYTES: Final = 192 << 20
SHAPES: Final[dict[str, tuple[str, tuple[int, ...]]]] = {
    "table of 64 floats": ("float32", (64,)),
    "images 3x32x32": ("uint8", (3, 32, 32)),
    "images 3x224x224": ("uint8", (3, 224, 224)),
}
Epoch = Callable[[], Iterator[Any]]


def run(*, quick: bool = False) -> BenchReport:
    """Measure everything; about a minute and a half, with ``quick`` about 15 s."""
    report = start_report("loader")
    report.real = [
        "AES-256-GCM and BLAKE3 on this processor",
        "files in the page cache",
    ]
    size = TABLE_BYTES // 4 if quick else TABLE_BYTES
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, (dtype, shape) in SHAPES.items():
            with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
                arms, total = _arms(Path(folder), dtype, shape, size, stack)
                _measure(report, name, arms, total, 3 if quick else 7)
    finally:
        torch.set_num_threads(threads)
    return report


def _arms(
    folder: Path, dtype: str, shape: tuple[int, ...], size: int, stack: ExitStack
) -> tuple[dict[str, Epoch], int]:
    """Every arm, and the bytes of the fields of an epoch."""
    source = folder / "table.npz"
    generator, kind = np.random.default_rng(0), np.dtype(dtype)
    rows = size // (prod(shape) * kind.itemsize)
    numbers = generator.integers(0, 255, (rows, *shape), dtype=np.uint8)
    np.savez(source, x=numbers.astype(kind), label=generator.integers(0, 10, rows))
    key = SecretKey.generate()
    words: dict[str, Any] = {"name": "table", "part": "train", "owner": "bench"}
    seal_table(source, infer_schema(source), key=key, out_dir=folder, **words)
    with np.load(source) as stored:
        x, y = (torch.from_numpy(stored[name]) for name in ("x", "label"))
    plain = DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True)
    dataset = stack.enter_context(SealedDataset(folder / "table.sealed", key))
    engine = HostDevice()
    stack.callback(engine.close)
    options: dict[str, dict[str, Any]] = {
        "sealed": {},
        "sealed-process": {"workers": "process"},
        "sealed-engine": {"engine": engine},
    }
    sealed = {
        name: stack.enter_context(
            SealedDataLoader(
                dataset, BATCH, shuffle=True, fields=("x", "label"), **each
            )
        )
        for name, each in options.items()
    }

    def indexed() -> Iterator[tuple[Tensor, Tensor]]:
        for chosen in torch.randperm(len(x)).split(BATCH):
            yield x[chosen], y[chosen]

    arms: dict[str, Epoch] = {
        "dataloader": lambda: iter(plain),
        "indexed": indexed,
        **{name: each.__iter__ for name, each in sealed.items()},
    }
    return arms, x.nbytes + y.nbytes


def _measure(
    report: BenchReport, name: str, arms: Mapping[str, Epoch], size: int, repeats: int
) -> None:
    def whole(epoch: Epoch) -> Arm:
        def arm() -> None:
            for _ in epoch():
                pass

        return arm

    spent = interleaved({arm: whole(epoch) for arm, epoch in arms.items()}, repeats)
    rates = {f"{arm}_gb_per_s": each.gb_per_s(size) for arm, each in spent.items()}
    cpu = {
        f"{arm}_cpu_s_per_gb": round(median(each.cpu_s) / size * 1e9, 2)
        for arm, each in spent.items()
        if arm != "sealed-process"
    }
    report.rows.append({"rows": name, "mib": size >> 20, **rates, **cpu})
    for arm in ("dataloader", "indexed"):
        ratio = spent[arm].median / spent["sealed"].median
        report.keep_worst(f"sealed_vs_{arm}", ratio)
