"""The public half of a sealed table: what its owner hands to the agreement.

``NAME.resource.json`` is canonical JSON of a ``ResourceCard``. Nothing in it is
secret: commitments are keyed (rule C5), so no one without the data key can confirm a
guess of the content. Nothing in it is authenticated either: what counts are the values
that stand in the signed agreement.
Guarantees: sizes, rows, schema and leaves of a card fit each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from sealift import codec
from sealift.channel.commitment import ContentCommitment
from sealift.channel.header import check_record_bytes, count_records
from sealift.data.schema import Schema
from sealift.data.schemafile import schema_from_plain
from sealift.errors import MalformedError, UsageError
from sealift.ids import Digest, check_name

CARD_FORMAT: Final = "sealift resource 1"
CARD_SUFFIX: Final = ".resource.json"
SEALED_SUFFIX: Final = ".sealed"
MAX_CARD_BYTES: Final = 64 << 20  # 1.4 million records: above a terabyte

Part = Literal["train", "heldout"]
PARTS: Final[tuple[Part, ...]] = ("train", "heldout")


@dataclass(frozen=True)
class ResourceCard:
    """A sealed table as its owner describes it.

    Attributes:
        name: The resource's name in the agreement.
        owner: The party that owns it.
        part: Whether it is trained on or measured on.
        rows: Rows in the table.
        row_bytes: Bytes of a row.
        schema: The plain form of the schema.
        content: Commitment to the rows.
        key: Commitment to the data key, for this name.
        total_bytes: ``rows * row_bytes``.
        record_bytes: Plaintext bytes per record of the sealed file.
        leaves: One keyed hash per record; their root is in ``content``.
    """

    format: Literal["sealift resource 1"]
    name: str
    owner: str
    part: Part
    rows: int
    row_bytes: int
    schema: dict[str, Any]
    content: Digest
    key: Digest
    total_bytes: int
    record_bytes: int
    leaves: tuple[bytes, ...]

    def __post_init__(self) -> None:
        check_name(self.name, what="resource name")
        check_name(self.owner, what="owner")
        check_record_bytes(self.record_bytes)
        if self.parsed_schema.row_bytes != self.row_bytes:
            raise _inconsistent("row_bytes", "it is not the schema's")
        if self.rows < 1 or self.rows * self.row_bytes != self.total_bytes:
            raise _inconsistent("total_bytes", "it is not rows * row_bytes")
        if len(self.leaves) != count_records(self.total_bytes, self.record_bytes):
            raise _inconsistent("leaves", "there is not one per record")

    @cached_property
    def parsed_schema(self) -> Schema:
        """The schema of a row."""
        return schema_from_plain(self.schema, source="the resource's schema")

    @property
    def commitment(self) -> ContentCommitment:
        """The commitment with its sizes, as ``channel.commitment`` wants it."""
        return ContentCommitment(self.content, self.total_bytes, self.record_bytes)


def read_card(path: Path) -> ResourceCard:
    """Read a resource card.

    Raises:
        UsageError: if the file cannot be read.
        MalformedError: if it is not a card, or does not fit itself.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_CARD_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"cannot read {path}", why=str(error.strerror), code="no-file"
        ) from error
    try:
        return codec.decode(ResourceCard, raw, max_bytes=MAX_CARD_BYTES)
    except MalformedError as error:
        raise MalformedError(
            f"{path.name} is not a resource card",
            field=error.field,
            offset=error.offset,
            why=str(error.what),
            fix="It is the file that `sealift data seal` wrote beside the sealed file",
            code="bad-card",
        ) from error


def _inconsistent(field: str, why: str) -> MalformedError:
    return MalformedError(
        "a resource card does not fit itself", field=field, why=why, code="bad-card"
    )
