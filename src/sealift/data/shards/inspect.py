"""What a sealed file says about itself, without its key; and with it, whether it holds.

``inspect_file`` reads header and trailer: their words are not authenticated. With the
key, ``verify_table`` opens every record, and with the card it checks the content
against the commitment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sealift.channel.rawfile import RawSealedFile
from sealift.channel.sealedfile import SealedFileReader
from sealift.crypto.keys import SecretKey
from sealift.data.schema.card import ResourceCard
from sealift.data.shards.sameschema import demand_sealed_as
from sealift.data.shards.shard import (
    Shard,
    ShardRefusedError,
    check_card_fits,
    leaves_of,
    wrong_key,
)
from sealift.errors import AuthenticationError


@dataclass(frozen=True, slots=True)
class SealedFacts:
    """The public facts of a sealed file; ``stream_id`` is hex."""

    file: str
    suite: str
    records: int
    record_bytes: int
    total_bytes: int
    sealed_file_bytes: int
    stream_id: str
    key_epoch: int


def inspect_file(path: Path) -> SealedFacts:
    """Read the public facts; no key is needed and nothing is authenticated.

    Raises:
        UnavailableError: if the file cannot be read.
        MalformedError: if it is not a whole sealed file.
    """
    with RawSealedFile(path) as raw:
        header = raw.header
        return SealedFacts(
            file=path.name,
            suite=header.suite.name.lower().replace("_", "-"),
            records=header.record_count,
            record_bytes=header.record_bytes,
            total_bytes=header.total_bytes,
            sealed_file_bytes=raw.sealed_file_bytes,
            stream_id=header.stream_id.hex(),
            key_epoch=header.key_epoch,
        )


def verify_table(path: Path, key: SecretKey, card: ResourceCard | None = None) -> None:
    """Open every record; with a card, demand the content that it commits to.

    Raises:
        UnavailableError: if the file cannot be read.
        MalformedError: if it is not a whole sealed file, or not that of the card, or
            ``schema-mismatch``: not of the card's columns.
        AuthenticationError: if a byte was changed, or the key is another one.
        IntegrityError: if the content is not what the card committed to.
    """
    with _opened(path, key) as reader:
        header = reader.header
        shard = Shard(str(path), key, card)
        check_card_fits(header.total_bytes, header.record_bytes, shard)
        if card is not None and header.is_described:  # a model's card has no schema
            demand_sealed_as(card.schema, "its card", shard, header)
        try:
            reader.verify(leaves_of(card, key))
        except AuthenticationError as error:
            raise ShardRefusedError(
                f"{path.name} was changed",
                why="a record of it, or its end, does not verify",
                code="record-changed",
            ) from error


def _opened(path: Path, key: SecretKey) -> SealedFileReader:
    try:
        return SealedFileReader(path, key)
    except AuthenticationError as error:
        raise wrong_key(path.name) from error
