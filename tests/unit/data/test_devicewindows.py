"""Records opened in a device's memory: the same batches, and the same refusals."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sealift.channel.device.host import HostDevice
from sealift.channel.record.sealedfile import SealedFileReader, write_sealed_file
from sealift.channel.select import select_device
from sealift.crypto.keys import SecretKey
from sealift.data import SealedDataLoader, SealedDataset
from sealift.data.loader import memories
from sealift.data.loader.memories import DeviceWindows
from sealift.data.schema.rows import pack
from sealift.data.schema.schema import Field, Schema
from sealift.errors import (
    AuthenticationError,
    IntegrityError,
    UnavailableError,
    UsageError,
)
from tests.sim.device_engines import ENGINES, ON_A_GPU
from tests.sim.sealed_shards import Shards, seal_shards

ROWS = 100
CPU = torch.device("cpu")


@pytest.fixture
def shards(tmp_path: Path) -> Shards:
    return seal_shards(tmp_path)


def over_stand_in(memory: Any, _: torch.device) -> Tensor:
    """A stand-in's device memory is this process's: its address can be read."""
    told = memory.__cuda_array_interface__
    block = (ctypes.c_uint8 * told["shape"][0]).from_address(told["data"][0])
    return torch.from_numpy(np.ctypeslib.as_array(block))


ON_STAND_INS = ("host", "host-threads", "cuda-pinned", "cuda-gcc")
GPU = pytest.param("cuda", marks=pytest.mark.gpu)


@pytest.fixture(params=[*ON_STAND_INS, GPU])
def engine(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    if request.param.startswith("cuda-"):
        monkeypatch.setattr(memories, "device_tensor", over_stand_in)
    made = {**ENGINES, **ON_A_GPU}[request.param]()
    yield made
    made.close()


def loader(dataset: SealedDataset, engine: Any, **changes: Any) -> SealedDataLoader:
    options = {"shuffle": True, "seed": 3, "window_bytes": 700, "engine": engine}
    return SealedDataLoader(dataset, 8, **{**options, **changes})


def ids(batches: Any) -> list[int]:
    return [int(row) for batch in batches for row in batch["id"]]


def test_the_same_batches_as_on_the_host(shards: Shards, engine: Any) -> None:
    with shards.open() as dataset:
        with loader(dataset, "host") as batches:
            whole, again = ids(batches), ids(batches)
        with loader(dataset, engine) as batches:
            seen = []
            for batch in batches:
                seen += batch["id"].tolist()
                expected = torch.from_numpy(shards.arrays["x"])[batch["id"]]
                assert torch.equal(batch["x"], expected)
            assert seen == whole
            assert ids(batches) == again
        with loader(dataset, engine, world_size=3, rank=1, fields=("id",)) as batches:
            part = [int(row) for (batch,) in batches for row in batch]
        with loader(dataset, "host", world_size=3, rank=1) as batches:
            assert ids(batches) == part


def spoil(shards: Shards) -> None:
    raw = bytearray(shards.places[2].read_bytes())
    raw[120 + 3 * (192 + 16) + 7] ^= 1
    shards.places[2].write_bytes(raw)


def test_a_changed_record_is_named_and_never_handed_out(
    shards: Shards, engine: Any
) -> None:
    spoil(shards)
    bad = set(range(42 + 3 * 6, 42 + 4 * 6))
    seen: list[int] = []

    def drain(batches: SealedDataLoader) -> None:
        for batch in batches:
            seen.extend(batch["id"].tolist())

    words = r"record 3 of part-2.sealed was changed"
    with (
        shards.open() as dataset,
        loader(dataset, engine) as batches,
        pytest.raises(AuthenticationError, match=words),
    ):
        drain(batches)
    assert not bad & set(seen)


def test_rule_m3_strict_is_what_keeps_it_out(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: a window handed out without waiting for its verdicts."""
    spoil(shards)

    class Hasty(HostDevice):
        def transfer(self, *args: Any, **options: Any) -> Any:
            super().transfer(*args, **options)
            yes = {"wait": lambda self: None, "wait_copied": lambda self: None}
            return type("Yes", (), yes)()

    monkeypatch.setattr(DeviceWindows, "_demand_content", lambda *_: None)
    with shards.open() as dataset, loader(dataset, Hasty()) as batches:
        assert len(ids(batches)) == ROWS


def replaced(shards: Shards) -> None:
    """The key's holder seals another content under genuine tags."""
    place, key = shards.places[0], shards.keys["part-0"]
    with SealedFileReader(place, key) as reader:
        raw = bytearray(reader.read(0, reader.total_bytes))
    raw[0] ^= 1
    write_sealed_file(
        place, [raw], key=key, total_bytes=len(raw), record_bytes=192, replace=True
    )


def test_content_is_what_the_card_commits_to(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(shards)
    engine = HostDevice(threads=1)
    with shards.open() as dataset:
        with (
            loader(dataset, engine) as batches,
            pytest.raises(IntegrityError, match=r"record 0 of part-0.sealed was r"),
        ):
            ids(batches)
        monkeypatch.setattr(DeviceWindows, "_demand_content", lambda *_: None)
        with loader(dataset, engine) as batches:
            ids(batches)  # control: tags alone notice nothing
    engine.close()


def test_plaintext_comes_back_once_per_record(shards: Shards) -> None:
    copied: list[int] = []

    class Counting(HostDevice):
        def download(self, source: Any, offset: int, out: Any, **more: Any) -> Any:
            copied.append(len(out))
            return super().download(source, offset, out, **more)

    engine = Counting(threads=1)
    with shards.open() as dataset, loader(dataset, engine) as batches:
        ids(batches)
        ids(batches)
    assert sum(copied) == ROWS * 32
    places = [str(place) for place in shards.places[:1]]
    schema = shards.cards[0].schema
    with (
        SealedDataset(places, shards.keys, schema=schema) as bare,
        loader(bare, engine) as batches,
    ):
        ids(batches)  # without a card nothing comes back
    assert sum(copied) == ROWS * 32
    engine.close()


def test_nothing_is_left_on_the_device(shards: Shards) -> None:
    engine = HostDevice(threads=1)
    with shards.open() as dataset:
        batches = loader(dataset, engine)
        part = iter(batches)
        next(part)
        rows = batches._rows
        assert rows is not None
        assert isinstance(rows.memory, DeviceWindows)
        views = [
            memories.device_tensor(rows.memory.plain(slot), CPU) for slot in range(2)
        ]
        assert any(view.any() for view in views)  # control
        batches.close()
        assert not any(view.any() for view in views)
    engine.close()


def test_a_device_without_room(shards: Shards) -> None:
    engine = HostDevice(threads=1, memory_bytes=2000)
    with (
        shards.open() as dataset,
        loader(dataset, engine, window_bytes=4000) as batches,
        pytest.raises(UnavailableError) as caught,
    ):
        ids(batches)
    assert caught.value.code == "device-out-of-memory"
    engine.close()


def test_a_machine_without_a_gpu_says_so(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never goes on quietly on the host."""

    chosen_by(monkeypatch, has_gpu=False, cuda=lacking)
    with (
        shards.open() as dataset,
        loader(dataset, "auto", device="cuda") as batches,
        pytest.raises(UnavailableError, match="there is no GPU"),
    ):
        ids(batches)


@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:0"])
def test_a_gpu_that_cannot_be_used_is_an_error_not_the_host(
    shards: Shards, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    chosen_by(monkeypatch, has_gpu=True, cuda=lacking)
    with (
        shards.open() as dataset,
        loader(dataset, "auto", device=device) as batches,
        pytest.raises(UnavailableError, match="there is no GPU"),
    ):
        ids(batches)


@pytest.mark.parametrize(
    ("device", "why"),
    [
        ("auto", "the GPU, which passed its self-test"),
        ("cuda", "asked for by name"),
        ("cuda:3", "asked for by name"),
    ],
)
def test_the_selected_gpu_opens_and_the_loader_says_so(
    shards: Shards, monkeypatch: pytest.MonkeyPatch, device: str, why: str
) -> None:
    asked: list[int] = []

    def standing_in(ordinal: int, **_: Any) -> Any:
        asked.append(ordinal)
        return ENGINES["cuda-pinned"]()

    chosen_by(monkeypatch, has_gpu=True, cuda=standing_in)
    monkeypatch.setattr(memories, "device_tensor", over_stand_in)
    with shards.open() as dataset:
        with loader(dataset, "host") as batches:
            whole = ids(batches)
            assert batches.opened_by == "host: asked for by name"
        with loader(dataset, "auto", device=device) as batches:
            assert batches.opened_by == f"cuda: {why}"
            assert ids(batches) == whole
    assert asked == [3 if device == "cuda:3" else 0]


def test_auto_without_a_gpu_is_the_processor_and_says_so(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen_by(monkeypatch, has_gpu=False, cuda=lacking)
    with shards.open() as dataset:
        with loader(dataset, "auto", device="auto") as batches:
            assert sorted(ids(batches)) == list(range(ROWS))
            assert batches.opened_by.startswith("host: ")
        with loader(dataset, "auto", device="cpu") as batches:
            assert batches.opened_by == "host: for batches on cpu"


def test_a_torch_without_cuda_is_told(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen_by(monkeypatch, has_gpu=True, cuda=lambda **_: ENGINES["cuda-pinned"]())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with (
        shards.open() as dataset,
        loader(dataset, "auto", device="auto") as batches,
        pytest.raises(UnavailableError) as caught,
    ):
        ids(batches)
    assert caught.value.code == "torch-without-gpu"


@pytest.mark.parametrize("engine", ["host", "gpu"])
def test_engines_that_mean_nothing_are_refused(shards: Shards, engine: str) -> None:
    with (
        shards.open() as dataset,
        loader(dataset, engine, device="auto") as batches,
        pytest.raises(UsageError),
    ):
        ids(batches)


def lacking(**_: Any) -> Any:
    raise UnavailableError("there is no GPU")


def chosen_by(monkeypatch: pytest.MonkeyPatch, *, has_gpu: bool, cuda: Any) -> None:
    choose = functools.partial(select_device, has_gpu=lambda: has_gpu, cuda=cuda)
    monkeypatch.setattr(memories, "select_device", choose)


def test_rows_that_cross_records_are_opened_on_the_host(tmp_path: Path) -> None:
    schema = Schema((Field("id", "int64", (5,)),))
    raw = pack(
        {"id": np.zeros((9, 5), np.int64)}, schema, source="", locate=lambda *_: ""
    )
    key, path = SecretKey.generate(), tmp_path / "t.sealed"
    write_sealed_file(path, [raw], key=key, total_bytes=len(raw), record_bytes=64)
    with SealedDataset(path, key, schema=schema) as dataset:
        refused = pytest.raises(UsageError, match="engine='host'")
        with loader(dataset, HostDevice(threads=1)) as batches, refused:
            list(batches)
        with loader(dataset, "host") as batches:
            assert sum(len(batch["id"]) for batch in batches) == 9
