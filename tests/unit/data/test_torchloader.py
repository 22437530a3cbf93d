"""``SealedDataLoader``: what batches are, in which order, and where it goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sealift.channel.record.sealedfile import SealedFileReader, write_sealed_file
from sealift.crypto.keys import SecretKey
from sealift.data import SealedDataLoader, SealedDataset
from sealift.data.loader.windows import WindowArena
from sealift.data.schema.rows import pack
from sealift.data.schema.schema import Field, Schema
from sealift.data.shards.shard import ShardReader
from sealift.errors import (
    AuthenticationError,
    IntegrityError,
    MalformedError,
    SealiftError,
    UsageError,
)
from tests.sim.sealed_shards import ID_SCHEMA, Shards, seal_shards

ROWS = 100


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return seal_shards(tmp_path_factory.mktemp("shards"))


@pytest.fixture
def own(tmp_path: Path) -> Shards:
    """Shards that a test may spoil."""
    return seal_shards(tmp_path)


@pytest.fixture
def dataset(shards: Shards) -> Iterator[SealedDataset]:
    with shards.open() as dataset:
        yield dataset


def loader(dataset: SealedDataset, **changes: Any) -> SealedDataLoader:
    options = {"batch_size": 8, "shuffle": True, "seed": 3, "window_bytes": 700}
    return SealedDataLoader(dataset, **{**options, **changes})


def ids(batches: Any) -> list[int]:
    return [int(row) for batch in batches for row in batch["id"]]


def test_every_row_once_and_whole(shards: Shards, dataset: SealedDataset) -> None:
    with loader(dataset) as batches:
        seen = list(batches)
    assert [len(batch["id"]) for batch in seen] == [8] * 12 + [4]
    assert sorted(ids(seen)) == list(range(ROWS))
    for batch in seen:
        assert batch["x"].dtype == torch.float32
        assert batch["x"].shape[1:] == (3,)
        assert batch["x"].is_contiguous()
        for name in ("x", "kept"):
            expected = torch.from_numpy(shards.arrays[name])[batch["id"]]
            assert torch.equal(batch[name], expected)


def test_fields_make_tuples(shards: Shards, dataset: SealedDataset) -> None:
    with loader(dataset, fields=("x", "id")) as batches:
        x, number = next(iter(batches))
    assert torch.equal(x, torch.from_numpy(shards.arrays["x"])[number])
    with pytest.raises(UsageError, match="no field 'y'"):
        loader(dataset, fields=("y",))


def test_without_shuffling_rows_come_in_order(dataset: SealedDataset) -> None:
    with loader(dataset, shuffle=False) as batches:
        assert ids(batches) == list(range(ROWS))


def test_seed_and_epoch_decide_the_order(dataset: SealedDataset) -> None:
    with loader(dataset) as batches:
        first, second = ids(batches), ids(batches)
        batches.set_epoch(0)
        assert ids(batches) == first
    assert first != second
    with loader(dataset, seed=4) as batches:
        assert ids(batches) not in (first, second)


def test_shuffling_is_wider_than_a_record(dataset: SealedDataset) -> None:
    with loader(dataset, window_bytes=1 << 20) as batches:
        first = ids([next(iter(batches))])
    assert len({row // 6 for row in first}) > 3  # six rows to a record


def test_drop_last(dataset: SealedDataset) -> None:
    with loader(dataset, drop_last=True) as batches:
        assert len(batches) == len(list(batches)) == 12


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world_size", [2, 3, 7])
def test_ranks_share_an_epoch(
    dataset: SealedDataset, world_size: int, drop_last: bool
) -> None:
    parts = []
    for rank in range(world_size):
        options = {"batch_size": 1, "world_size": world_size, "rank": rank}
        with loader(dataset, drop_last=drop_last, **options) as batches:
            parts.append(ids(batches))
    assert len({len(part) for part in parts}) == 1
    seen = [row for part in parts for row in part]
    if drop_last:
        assert len(set(seen)) == len(seen) == ROWS - ROWS % world_size
    else:
        assert set(seen) == set(range(ROWS))
        assert len(seen) < ROWS + world_size


def test_more_ranks_than_rows(dataset: SealedDataset) -> None:
    with loader(dataset, world_size=130, rank=129) as batches:
        assert len(ids(batches)) == 1
    with pytest.raises(UsageError, match="too few for 130 ranks"):
        loader(dataset, world_size=130, rank=129, drop_last=True)


def test_it_goes_on_with_the_next_row(dataset: SealedDataset) -> None:
    with loader(dataset) as batches:
        whole = ids(batches) + ids(batches)
    with loader(dataset) as batches:
        part = iter(batches)
        begun = [next(part) for _ in range(4)]
        state = json.loads(json.dumps(batches.state_dict()))
    with loader(dataset, num_workers=0, batch_size=5) as batches:
        batches.load_state_dict(state)
        rest = ids(batches) + ids(batches)
    assert ids(begun) + rest == whole


def test_after_a_whole_epoch_it_goes_on_with_the_next(dataset: SealedDataset) -> None:
    with loader(dataset) as batches:
        list(batches)
        state = batches.state_dict()
        second = ids(batches)
    assert (state["epoch"], state["position"]) == (1, 0)
    with loader(dataset) as batches:
        batches.load_state_dict(state)
        assert batches.state_dict() == state
        assert ids(batches) == second


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 4}, "its seed was 3, and this loader's is 4"),
        ({"shuffle": False}, "shuffle"),
        ({"window_bytes": 800}, "window_bytes"),
        ({"world_size": 2, "rank": 0}, "world_size"),
        ({"drop_last": True}, "pad"),
    ],
)
def test_a_state_of_another_order_is_refused(
    dataset: SealedDataset, changes: dict[str, Any], words: str
) -> None:
    with loader(dataset) as batches:
        next(iter(batches))
        state = batches.state_dict()
    other = loader(dataset, **changes)
    with pytest.raises(UsageError, match=words) as caught:
        other.load_state_dict(state)
    assert caught.value.code == "loader-state"
    other.load_state_dict({**state, "position": 0})  # an epoch's start has no order yet


def test_a_state_of_other_shards_is_refused(shards: Shards) -> None:
    with shards.open() as dataset, loader(dataset) as batches:
        state = batches.state_dict()
    fewer = SealedDataset(shards.places[:2], shards.keys)
    with fewer, pytest.raises(UsageError, match="its shards was"):
        loader(fewer).load_state_dict(state)


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"position": -1}, {"epoch": "1"}, {"more": 1}, {"shuffle": 1}],
)
def test_what_is_no_state_is_refused(
    dataset: SealedDataset, change: dict[str, Any]
) -> None:
    batches = loader(dataset)
    with pytest.raises(MalformedError):
        batches.load_state_dict({**batches.state_dict(), **change})
    with pytest.raises(MalformedError):
        batches.load_state_dict([])  # type: ignore[arg-type]


def test_another_for_ends_the_first(dataset: SealedDataset) -> None:
    with loader(dataset) as batches:
        first = iter(batches)
        next(first)
        with pytest.warns(UserWarning, match="used up epoch 0"):
            assert len(ids(batches)) == ROWS
        with pytest.raises(UsageError, match="another iteration"):
            next(first)


def drain(batches: SealedDataLoader, seen: list[int]) -> None:
    """Keep what was handed out before an error."""
    for batch in batches:
        seen += batch["id"].tolist()


def spoil(path: Path, offset: int) -> bytes:
    raw = path.read_bytes()
    changed = bytearray(raw)
    changed[offset] ^= 1
    path.write_bytes(changed)
    return raw


@pytest.mark.parametrize("num_workers", [0, 2])
def test_no_batch_holds_a_changed_record(own: Shards, num_workers: int) -> None:
    """Strict: rows of the changed record's window are not handed out at all."""
    spoil(own.places[2], 120 + 3 * (192 + 16) + 7)
    bad = set(range(42 + 3 * 6, 42 + 4 * 6))
    seen: list[int] = []
    with (
        own.open() as dataset,
        loader(dataset, num_workers=num_workers) as batches,
        pytest.raises(AuthenticationError) as caught,
    ):
        drain(batches, seen)
    assert not bad & set(seen)
    assert str(caught.value).startswith("record 3 of part-2.sealed was changed")
    assert caught.value.code == "record-changed"


def test_it_goes_on_when_the_shard_was_put_back(own: Shards) -> None:
    with own.open() as dataset, loader(dataset) as batches:
        whole = ids(batches)
        batches.set_epoch(0)
        good = own.places[2].read_bytes()
        spoil(own.places[2], 120 + 3 * (192 + 16))
        seen: list[int] = []
        with pytest.raises(SealiftError):
            drain(batches, seen)
        own.places[2].write_bytes(good)
        batches.load_state_dict(batches.state_dict())
        assert seen + ids(batches) == whole
        assert 0 < len(seen) < ROWS


def test_a_shard_written_to_while_it_is_read(own: Shards) -> None:
    """Said before anything else: it is likelier than an attack."""
    with own.open() as dataset, loader(dataset) as batches:
        part = iter(batches)
        next(part)
        place = own.places[2]
        place.write_bytes(bytes(len(place.read_bytes())))
        with pytest.raises(MalformedError, match=r"part-2.sealed was changed while"):
            list(part)


def test_another_file_in_its_place(own: Shards) -> None:
    """Sealed under the same key, so that nothing but its header is another."""
    place, key = own.places[0], own.keys["part-0"]
    with SealedFileReader(place, key) as reader:
        raw = reader.read(0, reader.total_bytes)
    with own.open() as dataset, loader(dataset, num_workers=0) as batches:
        write_sealed_file(
            place, [raw], key=key, total_bytes=len(raw), record_bytes=192, replace=True
        )
        with pytest.raises(MalformedError, match="another sealed file") as caught:
            list(batches)
    assert caught.value.code == "file-changed"


def test_content_replaced_by_the_keys_holder(own: Shards) -> None:
    """Rule C5: tags are genuine, the card's commitment is not met."""
    place, key = own.places[0], own.keys["part-0"]
    with SealedFileReader(place, key) as reader:
        raw = bytearray(reader.read(0, reader.total_bytes))
    raw[0] ^= 1
    write_sealed_file(
        place, [raw], key=key, total_bytes=len(raw), record_bytes=192, replace=True
    )
    refused = pytest.raises(IntegrityError, match=r"record 0 of part-0.sealed")
    with own.open() as dataset, loader(dataset) as batches, refused:
        list(batches)
    unbound = SealedDataset(place, key, schema=ID_SCHEMA)
    with unbound, loader(unbound) as batches:
        list(batches)  # control: without the card nobody notices


def test_nothing_is_left_in_memory(
    own: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    arenas: list[WindowArena] = []
    real = WindowArena.__init__

    def remember(self: WindowArena, *args: Any, **options: Any) -> None:
        real(self, *args, **options)
        arenas.append(self)

    monkeypatch.setattr(WindowArena, "__init__", remember)
    with own.open() as dataset:
        batches = loader(dataset)
        part = iter(batches)
        next(part)
        everything = arenas[0].part(0, arenas[0].total_bytes)
        assert any(everything)  # control: there was something
        batches.close()
        assert not any(everything)
        spoil(own.places[2], 120 + 3 * (192 + 16))
        with loader(dataset) as batches, pytest.raises(AuthenticationError):
            list(batches)
        assert not any(arenas[1].part(0, arenas[1].total_bytes))


def test_a_failed_record_is_scrubbed_where_it_was_opened(own: Shards) -> None:
    """The library leaves plaintext behind; the reader does not."""
    spoil(own.places[2], 120 + 192)  # in the tag: all plaintext is genuine
    with own.open() as dataset:
        shard = dataset.shards.shards[2]
        out = bytearray(b"\1" * 384)
        with ShardReader(shard) as reader, pytest.raises(AuthenticationError):
            reader.open_range(0, 384, memoryview(out))
        assert not any(out)


def test_closed_things_say_so(own: Shards) -> None:
    dataset = own.open()
    batches = loader(dataset)
    batches.close()
    with pytest.raises(UsageError, match="loader is closed"):
        iter(batches)
    batches = loader(dataset)
    dataset.close()
    with pytest.raises(UsageError, match="dataset is closed"):
        iter(batches)


def test_one_row_over_several_records(tmp_path: Path) -> None:
    """Rows that cross records: a window opens what it needs of each."""
    schema = Schema((Field("x", "uint8", (40,)), Field("id", "int64")))
    arrays = {
        "x": np.arange(40 * 50, dtype=np.uint8).reshape(50, 40),
        "id": np.arange(50),
    }
    raw = pack(arrays, schema, source="t", locate=lambda *_: "")
    key, path = SecretKey.generate(), tmp_path / "t.sealed"
    write_sealed_file(path, [raw], key=key, total_bytes=len(raw), record_bytes=96)
    with SealedDataset(path, key, schema=schema) as dataset:
        for world_size in (1, 3):
            seen = []
            for rank in range(world_size):
                ranks = {"rank": rank, "world_size": world_size}
                with loader(dataset, window_bytes=200, **ranks) as batches:
                    for batch in batches:
                        expected = torch.from_numpy(arrays["x"])[batch["id"]]
                        assert torch.equal(batch["x"], expected)
                        seen += batch["id"].tolist()
            assert set(seen) == set(range(50))
