"""A sealed table says itself which columns it has; a schema that says others is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sealift import codec
from sealift.channel.record.layout import DESCRIBED, HEADER_BYTES, StreamHeader
from sealift.channel.record.record import make_header, verify_description
from sealift.channel.record.sealedfile import SealedFileReader, write_sealed_file
from sealift.crypto.keys import SecretKey
from sealift.data import SealedDataset
from sealift.data.schema.card import ResourceCard
from sealift.data.schema.document import schema_to_plain
from sealift.data.schema.schema import Field, Schema
from sealift.data.sealing import seal_table
from sealift.data.shards.inspect import verify_table
from sealift.errors import AuthenticationError, MalformedError

AGE, PULSE = Field("age", "float32"), Field("pulse", "float32")
X, KEPT = Field("x", "uint8", (4,)), Field("kept", "int64")
SCHEMA = Schema((AGE, PULSE, X, KEPT))
OTHERS = {
    "another order": (PULSE, AGE, X, KEPT),
    "another name": (AGE, Field("weight", "float32"), X, KEPT),
    "another dtype of that size": (Field("age", "int32"), PULSE, X, KEPT),
    "another shape of that size": (AGE, PULSE, Field("x", "uint8", (2, 2)), KEPT),
    "one field less, in its gap": (AGE, PULSE, Field("x", "uint8", (16,))),
}


class Sealed:
    def __init__(self, folder: Path) -> None:
        self.key = SecretKey.generate()
        self.path = folder / "t.sealed"
        ages = np.arange(10, dtype=np.float32)
        pixels = np.zeros((10, 4), np.uint8)
        arrays = {"age": ages, "pulse": ages + 60, "x": pixels, "kept": np.arange(10)}
        np.savez(folder / "t.npz", **arrays)
        self.card: ResourceCard = seal_table(
            folder / "t.npz", SCHEMA, name="t", part="train", owner="north",
            key=self.key, out_dir=folder,
        )  # fmt: skip
        self.card_file = folder / "t.resource.json"

    def pulse_of(self, schema: Schema | None) -> float:
        with SealedDataset(self.path, self.key, schema=schema) as dataset:
            return float(dataset[0]["pulse"])

    def say(self, schema: Schema) -> ResourceCard:
        """Whoever writes to the folder changes the card."""
        resource = replace(self.card.resource, schema=schema_to_plain(schema))
        card = replace(self.card, resource=resource)
        self.card_file.write_bytes(codec.encode(card))
        return card


@pytest.fixture
def sealed(tmp_path: Path) -> Sealed:
    return Sealed(tmp_path)


@pytest.mark.parametrize("fields", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("with_card", [True, False])
def test_a_schema_of_other_columns_is_refused(
    sealed: Sealed, fields: tuple[Field, ...], with_card: bool
) -> None:
    if not with_card:
        sealed.card_file.unlink()
    other = Schema(fields)
    assert other.row_bytes == SCHEMA.row_bytes  # else it is noticed anyway
    with pytest.raises(MalformedError) as caught:
        SealedDataset(sealed.path, sealed.key, schema=other)
    assert caught.value.code == "schema-mismatch"
    line = str(caught.value)
    assert "\n" not in line
    assert ("t.sealed has other columns than schema=" in line) is with_card
    assert ("not sealed with the columns of schema=" in line) is not with_card


@pytest.mark.parametrize("fields", OTHERS.values(), ids=OTHERS)
def test_a_card_of_other_columns_is_refused(
    sealed: Sealed, fields: tuple[Field, ...]
) -> None:
    card = sealed.say(Schema(fields))
    for given in (None, card):
        with pytest.raises(MalformedError, match="columns of its card") as caught:
            SealedDataset(sealed.path, sealed.key, card=given)
        assert caught.value.code == "schema-mismatch"
    with pytest.raises(MalformedError, match="columns of its card"):
        verify_table(sealed.path, sealed.key, card)


def test_what_is_no_column_may_be_said_otherwise(sealed: Sealed) -> None:
    bounded = Schema((replace(AGE, minimum=0.0), PULSE, X, KEPT), "of the ward")
    assert sealed.pulse_of(bounded) == 60
    sealed.card_file.unlink()
    assert sealed.pulse_of(bounded) == 60
    verify_table(sealed.path, sealed.key, sealed.card)


def test_without_a_description_nothing_is_noticed(sealed: Sealed) -> None:
    """Control: it is the description that catches it; files of before are read."""
    with SealedFileReader(sealed.path, sealed.key) as reader:
        raw = reader.read(0, reader.total_bytes)
    write_sealed_file(
        sealed.path, [raw], key=sealed.key, total_bytes=len(raw), replace=True
    )
    assert sealed.pulse_of(Schema((PULSE, AGE, X, KEPT))) == 0


@pytest.mark.parametrize(("place", "bits"), [(9, DESCRIBED), (24, 1), (39, 128)])
def test_nobody_takes_the_description_away(
    sealed: Sealed, place: int, bits: int
) -> None:
    raw = bytearray(sealed.path.read_bytes())
    raw[place] ^= bits
    sealed.path.write_bytes(raw)
    with pytest.raises(AuthenticationError):
        sealed.pulse_of(SCHEMA)


def test_two_files_of_one_key_have_different_ids() -> None:
    key = SecretKey.generate()
    one, two = (
        make_header(key, total_bytes=64, description=SCHEMA.columns) for _ in range(2)
    )
    assert one.stream_id != two.stream_id
    for header in (one, two):
        verify_description(key, header, SCHEMA.columns)
        with pytest.raises(AuthenticationError):
            verify_description(SecretKey.generate(), header, SCHEMA.columns)


def test_messages_have_no_description() -> None:
    key = SecretKey.generate()
    raw = bytearray(make_header(key, total_bytes=None).encode())
    assert StreamHeader.parse(bytes(raw)).encode() == bytes(raw[:HEADER_BYTES])
    raw[9] |= DESCRIBED
    with pytest.raises(MalformedError, match="messages have no description"):
        StreamHeader.parse(bytes(raw))


def test_the_columns_of_a_table() -> None:
    """As spec/table.md has them."""
    schema = Schema((Field("pixels", "float32", (3,)), Field("label", "uint8")))
    assert schema.columns == b'[["pixels","float32",[3]],["label","uint8",[]]]'
