"""The public half of a sealed table: what its owner hands to the agreement.

``NAME.resource.json`` is canonical JSON of a ``ResourceCard``: the agreement's own
``Resource``, and the leaves that the holder shows at every visit. Nothing in it is
secret: commitments are keyed (rule C5), so no one without the data key can confirm a
guess of the content. Nothing in it is authenticated either: what counts is the
``Resource`` that stands in the signed agreement.
Guarantees: sizes, rows, schema and leaves of a card fit each other. Needs no numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

from sealift import codec
from sealift.channel.record.commitment import ContentCommitment
from sealift.channel.record.layout import check_record_bytes, count_records
from sealift.data.schema.document import schema_from_plain
from sealift.data.schema.schema import Schema
from sealift.errors import MalformedError
from sealift.ids import check_name
from sealift.release.agreement import Resource
from sealift.release.files import read_whole

CARD_FORMAT: Final = "sealift-resource"
CARD_SUFFIX: Final = ".resource.json"
SEALED_SUFFIX: Final = ".sealed"
MAX_CARD_BYTES: Final = 64 << 20  # 1.4 million records


@dataclass(frozen=True, kw_only=True)
class ResourceCard:
    """A sealed table, or a sealed model, as its owner describes it.

    Attributes:
        resource: What the agreement says about it.
        leaves: One keyed hash per record; ``resource.content`` commits to them.
    """

    format: Literal["sealift-resource"] = CARD_FORMAT
    version: Literal[1] = 1
    resource: Resource
    leaves: tuple[bytes, ...]

    def __post_init__(self) -> None:
        entry = self.resource
        check_name(entry.owner, what="owner")
        check_record_bytes(entry.record_bytes)
        if entry.part != "model" and self.schema.row_bytes != entry.row_bytes:
            raise _inconsistent("resource.row_bytes", "does not follow from the schema")
        if len(self.leaves) != count_records(entry.total_bytes, entry.record_bytes):
            raise _inconsistent("leaves", "must have one entry per record")

    @property
    def name(self) -> str:
        """The resource's name in the agreement."""
        return self.resource.name

    @cached_property
    def schema(self) -> Schema:
        """The schema of a row."""
        return schema_of(self.resource)

    @property
    def commitment(self) -> ContentCommitment:
        """The commitment with its sizes, as ``channel.record.commitment`` wants it."""
        return commitment_of(self.resource)


def schema_of(resource: Resource) -> Schema:
    """The schema of a resource's rows.

    Raises:
        MalformedError: if the resource's ``schema`` is none.
    """
    return schema_from_plain(resource.schema, source=f"the schema of {resource.name}")


def commitment_of(resource: Resource) -> ContentCommitment:
    """A resource's content commitment with its sizes."""
    return ContentCommitment(
        resource.content, resource.total_bytes, resource.record_bytes
    )


def read_card(path: Path) -> ResourceCard:
    """Read a resource card.

    Raises:
        UnavailableError: if the file cannot be read.
        MalformedError: if it is not a card, or does not fit itself.
    """
    return parse_card(read_whole(path, MAX_CARD_BYTES), source=path.name)


def parse_card(raw: bytes, *, source: str) -> ResourceCard:
    """Parse a resource card; ``source`` names it in errors.

    Raises:
        MalformedError: if it is not a card, or does not fit itself.
    """
    try:
        return codec.decode(ResourceCard, raw, max_bytes=MAX_CARD_BYTES)
    except MalformedError as error:
        raise MalformedError(
            f"{source} is not a resource card",
            field=error.field,
            offset=error.offset,
            why=str(error.what),
            code="bad-card",
        ) from error


def _inconsistent(field: str, why: str) -> MalformedError:
    return MalformedError(
        "the resource card contradicts itself", field=field, why=why, code="bad-card"
    )
