from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sealift.channel.record.commitment import key_commitment
from sealift.channel.record.sealedfile import SealedFileReader
from sealift.crypto.keys import SecretKey
from sealift.data.schema.card import ResourceCard, read_card
from sealift.data.schema.rows import unpack
from sealift.data.schema.schema import Field, Schema
from sealift.data.sealing import record_bytes_for, seal_table
from sealift.errors import (
    MalformedError,
    RefusedError,
    UnavailableError,
    UsageError,
)
from tests.unit.data.tables import SCHEMA, make_arrays, write_table


@pytest.fixture
def key() -> SecretKey:
    return SecretKey.generate()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_table(tmp_path / "t.npz", make_arrays(100))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def seal(source: Path, out: Path, key: SecretKey, **changes: Any) -> ResourceCard:
    arguments: dict[str, Any] = {
        "name": "north-train",
        "part": "train",
        "owner": "north",
        "key": key,
        "out_dir": out,
        "record_bytes": 1024,
    }
    return seal_table(source, SCHEMA, **{**arguments, **changes})


def test_what_was_sealed_comes_back(source: Path, out: Path, key: SecretKey) -> None:
    card = seal(source, out, key)
    with SealedFileReader(out / "north-train.sealed", key) as reader:
        raw = reader.read(0, reader.total_bytes)
    columns = unpack(raw, SCHEMA)
    for name, array in make_arrays(100).items():
        np.testing.assert_array_equal(columns[name], array)
    assert card.resource.rows == 100
    assert card.schema == SCHEMA
    assert card.resource.key == key_commitment(key, "north-train")


def test_the_card_file_is_the_card(source: Path, out: Path, key: SecretKey) -> None:
    card = seal(source, out, key)
    assert read_card(out / "north-train.resource.json") == card
    assert sorted(path.name for path in out.iterdir()) == [
        "north-train.resource.json",
        "north-train.sealed",
    ]


def test_the_same_rows_give_other_bytes_and_another_commitment(
    source: Path, out: Path, key: SecretKey
) -> None:
    """A commitment must not tell that two tables are equal."""
    first = seal(source, out, key, name="a")
    second = seal(source, out, SecretKey.generate(), name="b")
    assert first.resource.content != second.resource.content
    assert not set(first.leaves) & set(second.leaves)


@pytest.mark.parametrize("suffix", [".csv", ".npy", ".npz", ".safetensors"])
def test_a_bad_row_leaves_nothing(
    tmp_path: Path, out: Path, key: SecretKey, suffix: str
) -> None:
    arrays = make_arrays(100)
    arrays["pixels"][99, 0, 0] = np.nan
    kept: list[tuple[ResourceCard, ...]] = []
    source = write_table(tmp_path / f"bad{suffix}", arrays)
    with pytest.raises(MalformedError):
        seal(source, out, key, keep=kept.append)
    assert list(out.iterdir()) == []
    assert kept == []


def test_a_full_disk_leaves_nothing_wherever_it_strikes(
    source: Path, out: Path, key: SecretKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    writes = [0]

    def count(descriptor: int, part: Any) -> int:
        writes[0] += 1
        if writes[0] == failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, part)

    failing = -1
    monkeypatch.setattr(os, "write", count)
    seal(source, out, key)
    total = writes[0]
    for path in out.iterdir():
        path.unlink()
    assert total > 5
    for failing in range(1, total + 1):  # noqa: B007 - read by `count`
        writes[0] = 0
        with pytest.raises(UnavailableError, match="the disk is full"):
            seal(source, out, key)
        assert list(out.iterdir()) == []


def test_a_key_that_cannot_be_kept_leaves_nothing(
    source: Path, out: Path, key: SecretKey
) -> None:
    def refuse(cards: tuple[ResourceCard, ...]) -> None:
        raise RefusedError("the vault is shut")

    with pytest.raises(RefusedError):
        seal(source, out, key, keep=refuse)
    assert list(out.iterdir()) == []


def test_the_key_is_kept_before_a_file_appears(
    source: Path, out: Path, key: SecretKey
) -> None:
    seen: list[str] = []

    def keep(cards: tuple[ResourceCard, ...]) -> None:
        seen.extend(path.name for path in out.iterdir())

    seal(source, out, key, keep=keep)
    assert seen == [".north-train.sealing"]


@pytest.mark.parametrize("name", ["north-train.sealed", "north-train.resource.json"])
def test_what_stands_there_is_never_replaced_or_removed(
    source: Path, out: Path, key: SecretKey, name: str
) -> None:
    (out / name).write_bytes(b"precious")
    with pytest.raises(UsageError, match="already exists"):
        seal(source, out, key)
    assert [path.read_bytes() for path in out.iterdir()] == [b"precious"]


def test_a_missing_folder_is_one_line(source: Path, out: Path, key: SecretKey) -> None:
    with pytest.raises(UnavailableError, match="cannot write"):
        seal(source, out / "no", key)


@pytest.mark.parametrize(
    "changes", [{"name": "North"}, {"owner": "a b"}, {"name": "../x"}]
)
def test_bad_names(
    source: Path, out: Path, key: SecretKey, changes: dict[str, str]
) -> None:
    with pytest.raises(MalformedError):
        seal(source, out, key, **changes)
    assert list(out.iterdir()) == []


def test_unknown_part(source: Path, out: Path, key: SecretKey) -> None:
    with pytest.raises(UsageError):
        seal(source, out, key, part="test")


def test_no_plaintext_in_either_file(tmp_path: Path, out: Path, key: SecretKey) -> None:
    arrays = make_arrays(50)
    canary = np.float32(1.2345678).tobytes() * 3
    arrays["pixels"][7] = np.float32(1.2345678)
    source = write_table(tmp_path / "t.npz", arrays)
    assert canary in source.read_bytes()  # positive control: the search finds it
    seal(source, out, key)
    for path in out.iterdir():
        assert canary not in path.read_bytes()


@pytest.mark.parametrize("row_bytes", [8, 56, 264, 4104, 1 << 20, 3 << 20])
@pytest.mark.parametrize("about", [64, 1000, 1 << 18, 1 << 20, 4 << 20])
def test_records_hold_whole_rows(row_bytes: int, about: int) -> None:
    size = record_bytes_for(row_bytes, about=about)
    assert size % row_bytes == 0
    assert size % 32 == 0
    assert 64 <= size <= 4 << 20
    assert size <= max(about, 32 * row_bytes)


def test_rows_too_large_for_a_record_cross_records() -> None:
    assert record_bytes_for((4 << 20) + 8, about=1000) == 992
    assert record_bytes_for((4 << 20) + 8) == 1 << 20


@pytest.mark.parametrize(
    ("row_bytes", "rows", "size"),
    [
        (64 << 10, 1000, 64 << 10),
        (150_528, 1000, 150_528),
        (150_536, 1000, 4 * 150_536),  # a record is a multiple of 32 bytes
        ((64 << 10) - 32, 1000, 16 * ((64 << 10) - 32)),
        (150_528, 1 << 21, 6 * 150_528),  # a card would have too many digests
    ],
)
def test_a_large_row_is_opened_without_others(
    row_bytes: int, rows: int, size: int
) -> None:
    assert record_bytes_for(row_bytes, rows=rows) == size


@pytest.mark.parametrize("about", [0, 63, (4 << 20) + 1])
def test_record_size_outside_the_format(about: int) -> None:
    with pytest.raises(UsageError):
        record_bytes_for(8, about=about)


def test_rows_that_cross_records_are_sealed(
    tmp_path: Path, out: Path, key: SecretKey
) -> None:
    schema = Schema((Field("x", "uint8", ((4 << 20) + 8,)),))
    rows = np.arange(2 * ((4 << 20) + 8), dtype=np.uint8).reshape(2, -1)
    np.save(tmp_path / "t.npy", rows)
    card = seal_table(
        tmp_path / "t.npy", schema, name="big", part="train", owner="north",
        key=key, out_dir=out,
    )  # fmt: skip
    assert card.resource.total_bytes % card.resource.record_bytes != 0
    with SealedFileReader(out / "big.sealed", key) as reader:
        assert reader.read(0, card.resource.total_bytes) == rows.tobytes()


def test_a_card_that_does_not_fit_itself(
    source: Path, out: Path, key: SecretKey
) -> None:
    card = seal(source, out, key)
    entry = card.resource
    with pytest.raises(MalformedError, match="leaves"):
        replace(card, leaves=())
    with pytest.raises(MalformedError, match="row_bytes"):
        replace(card, resource=replace(entry, rows=200, row_bytes=24))
    with pytest.raises(MalformedError, match="record_bytes"):
        replace(card, resource=replace(entry, record_bytes=33))
    with pytest.raises(MalformedError, match="schema"):
        replace(card, resource=replace(entry, schema={"fields": []}))


def test_a_changed_card_file_is_malformed(
    source: Path, out: Path, key: SecretKey
) -> None:
    seal(source, out, key)
    path = out / "north-train.resource.json"
    raw = path.read_bytes()
    for bad in (b"", raw[:-1], raw + b" ", raw.replace(b'"rows":100', b'"rows":101')):
        path.write_bytes(bad)
        with pytest.raises(MalformedError, match="is not a resource card"):
            read_card(path)
    with pytest.raises(UnavailableError):
        read_card(out / "no.resource.json")
