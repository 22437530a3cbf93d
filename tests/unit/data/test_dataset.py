from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from sealift.channel.record.opener import Slot
from sealift.channel.record.sealedfile import SealedFileReader, write_sealed_file
from sealift.crypto.keys import SecretKey
from sealift.data.schema.card import ResourceCard
from sealift.data.schema.rows import pack
from sealift.data.schema.schema import Field, Schema
from sealift.data.sealing import seal_table
from sealift.data.shards.dataset import SealedDataset
from sealift.data.shards.inspect import inspect_file, verify_table
from sealift.errors import (
    AuthenticationError,
    IntegrityError,
    MalformedError,
    UnavailableError,
    UsageError,
)
from tests.unit.data.tables import SCHEMA, Arrays, make_arrays, write_table

ROWS = 100


class Sealed:
    """One sealed table with everything that belongs to it."""

    def __init__(self, folder: Path) -> None:
        self.arrays: Arrays = make_arrays(ROWS)
        self.key = SecretKey.generate()
        self.path = folder / "north.sealed"
        source = write_table(folder / "t.npz", self.arrays)
        self.card: ResourceCard = seal_table(
            source, SCHEMA, name="north", part="train", owner="north",
            key=self.key, out_dir=folder, record_bytes=500,
        )  # fmt: skip

    def open(self, **changes: Any) -> SealedDataset:
        return SealedDataset(self.path, self.key, **{"card": self.card, **changes})


@pytest.fixture
def sealed(tmp_path: Path) -> Sealed:
    return Sealed(tmp_path)


def test_rows_by_index(sealed: Sealed) -> None:
    with sealed.open() as dataset:
        assert len(dataset) == ROWS
        for index in (0, 57, ROWS - 1, -1):
            for name, array in sealed.arrays.items():
                np.testing.assert_array_equal(dataset[index][name], array[index])


def test_many_rows_at_once(sealed: Sealed) -> None:
    wanted = [3, 99, 3, 0]
    with sealed.open() as dataset:
        rows = dataset.rows(wanted)
    for name, array in sealed.arrays.items():
        np.testing.assert_array_equal(rows[name], array[wanted])


def test_iteration_ends(sealed: Sealed) -> None:
    with sealed.open(card=None, schema=SCHEMA) as dataset:
        labels = [int(row["label"]) for row in dataset]
        with pytest.raises(IndexError):
            dataset[ROWS]
    assert labels == sealed.arrays["label"].tolist()


def test_torch_reads_it(sealed: Sealed) -> None:
    with sealed.open() as dataset:
        loader = DataLoader(dataset, batch_size=32, num_workers=0)
        batches = list(loader)
    labels = torch.cat([batch["label"] for batch in batches])
    assert labels.tolist() == sealed.arrays["label"].tolist()
    assert batches[0]["pixels"].shape == (32, 2, 3)


def test_shuffled_reading_opens_each_record_once(
    sealed: Sealed, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    real = SealedFileReader.open_record_in

    def count(self: SealedFileReader, index: int, slot: Slot) -> memoryview:
        opened.append(index)
        return real(self, index, slot)

    monkeypatch.setattr(SealedFileReader, "open_record_in", count)
    with sealed.open(cached_records=3) as dataset:
        order = dataset.shuffled(seed=1, epoch=0)
        dataset.rows(order)
        assert sorted(opened) == list(range(len(sealed.card.leaves)))
        dataset.rows(np.random.default_rng(0).permutation(ROWS))
        assert len(opened) > 3 * len(sealed.card.leaves)  # control: another order


def test_shuffled_is_a_permutation_that_seed_and_epoch_decide(sealed: Sealed) -> None:
    with sealed.open() as dataset:
        first = dataset.shuffled(seed=1, epoch=0).tolist()
        assert sorted(first) == list(range(ROWS))
        assert dataset.shuffled(seed=1, epoch=0).tolist() == first
        assert dataset.shuffled(seed=1, epoch=1).tolist() != first
        assert dataset.shuffled(seed=2, epoch=0).tolist() != first


def test_rows_that_cross_records(tmp_path: Path) -> None:
    schema = Schema((Field("x", "uint8", (40,)),))
    array = np.arange(40 * 50, dtype=np.uint8).reshape(50, 40)
    raw = pack({"x": array}, schema, source="t", locate=lambda *_: "")
    key, path = SecretKey.generate(), tmp_path / "t.sealed"
    write_sealed_file(path, [raw], key=key, total_bytes=len(raw), record_bytes=96)
    with SealedDataset(path, key, schema=schema, cached_records=2) as dataset:
        order = dataset.shuffled(seed=0, epoch=0)
        assert sorted(order.tolist()) == list(range(50))
        np.testing.assert_array_equal(dataset.rows(order)["x"], array[order])


def test_records_are_scrubbed_when_they_leave_the_cache(sealed: Sealed) -> None:
    dataset = sealed.open(cached_records=1)
    held = dataset._record(0, 0)
    assert any(held)
    dataset._record(0, 1)
    assert not any(held)
    held = dataset._record(0, 2)
    dataset.close()
    assert not any(held)


def test_another_key_opens_nothing(sealed: Sealed) -> None:
    with pytest.raises(AuthenticationError):
        SealedDataset(sealed.path, SecretKey.generate(), schema=SCHEMA)


def test_a_flipped_byte_is_caught_when_its_row_is_read(sealed: Sealed) -> None:
    raw = bytearray(sealed.path.read_bytes())
    raw[120] ^= 1
    sealed.path.write_bytes(raw)
    with sealed.open() as dataset:
        dataset[ROWS - 1]
        with pytest.raises(AuthenticationError):
            dataset[0]


def swap_content(sealed: Sealed) -> None:
    """The key's holder seals other rows under the same key after committing (C5)."""
    arrays = {name: array.copy() for name, array in sealed.arrays.items()}
    arrays["label"][0] = (arrays["label"][0] + 1) % 10
    raw = pack(arrays, SCHEMA, source="t", locate=lambda *_: "")
    write_sealed_file(
        sealed.path, [raw], key=sealed.key, total_bytes=len(raw),
        record_bytes=sealed.card.resource.record_bytes, replace=True,
    )  # fmt: skip


def test_content_swapped_by_the_keys_holder_is_caught(sealed: Sealed) -> None:
    swap_content(sealed)
    with sealed.open() as dataset:
        dataset[ROWS - 1]
        with pytest.raises(IntegrityError):
            dataset[0]
    with sealed.open(card=None, schema=SCHEMA) as dataset:
        dataset[0]  # control: without the commitment nobody notices


def test_verify_table(sealed: Sealed) -> None:
    verify_table(sealed.path, sealed.key)
    verify_table(sealed.path, sealed.key, sealed.card)
    with pytest.raises(AuthenticationError):
        verify_table(sealed.path, SecretKey.generate())
    swap_content(sealed)
    verify_table(sealed.path, sealed.key)  # control: the tags are genuine
    with pytest.raises(IntegrityError):
        verify_table(sealed.path, sealed.key, sealed.card)


def test_every_cut_of_the_file_is_refused(sealed: Sealed) -> None:
    raw = sealed.path.read_bytes()
    for cut in range(0, len(raw), 211):
        sealed.path.write_bytes(raw[:cut])
        with pytest.raises(MalformedError):
            inspect_file(sealed.path)
        with pytest.raises(MalformedError):
            sealed.open()


def test_a_card_of_another_file_is_refused(sealed: Sealed, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    stranger = Sealed(other)
    with pytest.raises(IntegrityError):  # its leaves are under another key
        SealedDataset(sealed.path, sealed.key, card=stranger.card)


def test_file_and_schema_must_fit(sealed: Sealed) -> None:
    wide = Schema((Field("x", "float64", (31,)),))
    with pytest.raises(MalformedError, match="other columns than schema="):
        SealedDataset(sealed.path, sealed.key, schema=wide)
    plain, key = sealed.path.with_name("undescribed"), SecretKey.generate()
    write_sealed_file(plain, [bytes(249)], key=key, total_bytes=249)
    with pytest.raises(MalformedError, match="248 bytes"):
        SealedDataset(plain, key, schema=wide)
    SealedDataset(sealed.path, sealed.key).close()  # the card beside it says it
    sealed.path.with_suffix(".resource.json").unlink()
    with pytest.raises(UsageError, match="no card beside it"):
        SealedDataset(sealed.path, sealed.key)
    with pytest.raises(UnavailableError):
        SealedDataset(sealed.path.with_name("no"), sealed.key, schema=SCHEMA)


def test_inspect_needs_no_key(sealed: Sealed) -> None:
    facts = inspect_file(sealed.path)
    assert facts.suite == "aes-256-gcm"
    assert facts.total_bytes == ROWS * SCHEMA.row_bytes
    assert facts.record_bytes == sealed.card.resource.record_bytes
    assert facts.records == len(sealed.card.leaves)
    assert facts.sealed_file_bytes == sealed.path.stat().st_size
    assert len(facts.stream_id) == 32
    assert facts.key_epoch == 0
