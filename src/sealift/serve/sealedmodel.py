"""A model sealed by its owner, to be served: written at home, opened by the accelerator.

NAME.sealed is a sealed file of the model's safetensors, NAME.resource.json its public
card with the form; the key goes into the owner's vault and never into a file of the
server. The accelerator checks every record against the commitment in the agreement.
Source: spec/serve.md section Sealed model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealift import codec
from sealift.channel.record.commitment import (
    VerifiedLeaves,
    key_commitment,
    verify_leaves,
)
from sealift.channel.record.opener import scrub
from sealift.channel.record.outputfile import open_output
from sealift.channel.record.sealedfile import SealedFileReader, write_sealed_file
from sealift.crypto.keys import SecretKey
from sealift.data.schedule.memory import SharedBuffer
from sealift.data.schema.card import (
    CARD_SUFFIX,
    ResourceCard,
    commitment_of,
    read_card,
)
from sealift.data.staging import Kept, SealedPaths, Staging, sealed_paths, staged
from sealift.errors import (
    AuthenticationError,
    IntegrityError,
    MalformedError,
    UnavailableError,
)
from sealift.ids import check_name
from sealift.release.agreement import Resource
from sealift.train.loop.states import parse_tensors
from sealift.train.output.modelform import ModelForm

RECORD_BYTES: Final = 1 << 20
Keep = Callable[[ResourceCard], None]


def seal_model_file(
    content: bytes,
    form: ModelForm,
    *,
    name: str,
    owner: str,
    key: SecretKey,
    out_dir: Path,
    keep: Keep = lambda card: None,
    kept: Kept = lambda card: False,
) -> ResourceCard:
    """Seal a model to ``out_dir``/NAME.sealed and NAME.resource.json, both or neither.

    Args:
        content: Safetensors.
        form: What it is asked and what it answers.
        name: The resource's name in the agreement.
        owner: The owner's party name.
        key: A fresh data key.
        out_dir: A folder that exists.
        keep: Called when both are written, before one is in place: the place to store
            the key.
        kept: Whether a card's key is kept: what a killed process left is put in place
            then, and else removed.

    Raises:
        MalformedError: if the content is not safetensors.
        UsageError: if a file of that name is there.
        UnavailableError: if the disk is full, or a file cannot be written.
    """
    check_name(name, what="resource name")
    if not parse_tensors(content):
        raise MalformedError("the file contains no tensors", code="bad-tensors")
    final = sealed_paths(out_dir, name)
    with staged(out_dir, name, kept) as folder:
        folder.demand_free(iter((final.sealed, final.card)))
        card = _written(content, form, folder, key, name=name, owner=owner)
        keep(card)
        folder.place()
    return card


def _written(
    content: bytes,
    form: ModelForm,
    folder: Staging,
    key: SecretKey,
    *,
    name: str,
    owner: str,
) -> ResourceCard:
    """The card of a model, when both stand in ``folder``."""
    paths = sealed_paths(folder.out_dir, name)
    sealed = write_sealed_file(
        paths.sealed,
        (content,),
        key=key,
        total_bytes=len(content),
        record_bytes=RECORD_BYTES,
        folder=folder.descriptor,
    )
    resource = Resource(
        name=name,
        owner=owner,
        part="model",
        rows=1,
        row_bytes=len(content),
        cell_rows=1,
        total_bytes=len(content),
        record_bytes=RECORD_BYTES,
        schema=form.to_plain(),
        content=sealed.content.digest,
        key=key_commitment(key, name),
    )
    card = ResourceCard(resource=resource, leaves=sealed.leaves)
    with open_output(paths.card, folder=folder.descriptor) as output:
        output.write(codec.encode(card))
    return card


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a sealed model lies, its key released.

    Attributes:
        resource: As the agreement binds it.
        path: NAME.sealed.
        leaves: From its card; checked against the agreement's commitment.
        key: Wiped by whoever collected it.
    """

    resource: Resource
    path: Path
    leaves: tuple[bytes, ...]
    key: SecretKey

    def open(self) -> SharedBuffer:
        """The model's bytes; the caller scrubs and closes them.

        Raises:
            IntegrityError: ``other-resource``, if it is not the agreed one.
            UnavailableError: if the file cannot be read, or there is no memory.
        """
        try:
            leaves = verify_leaves(
                self.leaves, commitment_of(self.resource), data_key=self.key
            )
            with SealedFileReader(self.path, self.key) as reader:
                _require_length(reader, self.resource)
                return _open_into(
                    SharedBuffer(self.resource.total_bytes), reader, leaves
                )
        except (AuthenticationError, IntegrityError):
            raise _other_model(self.resource.name) from None


def find_model(resource: Resource, folder: Path) -> tuple[SealedPaths, ResourceCard]:
    """The sealed file and card of an agreement's model, before any key is asked for.

    Raises:
        UnavailableError: if one is missing.
        IntegrityError: ``other-resource``: the card is of another model.
    """
    card = read_card(folder / f"{resource.name}{CARD_SUFFIX}")
    if not card.resource.is_table_of(resource):
        raise _other_model(resource.name)
    paths = sealed_paths(folder, resource.name)
    if not paths.sealed.is_file():
        raise UnavailableError(
            f"the file {paths.sealed} does not exist",
            fix=(
                "Copy the sealed model to the server; the server asks for its key "
                "when it starts"
            ),
            code="no-file",
        )
    return paths, card


def _open_into(
    shared: SharedBuffer, reader: SealedFileReader, leaves: VerifiedLeaves
) -> SharedBuffer:
    """All of it, or nothing that stays in memory."""
    at = 0
    try:
        for index in range(reader.record_count):
            length = reader.open_record_into(index, shared.view[at:])
            leaves.verify(index, shared.view[at : at + length])
            at += length
    except BaseException:
        scrub(shared.view)
        shared.close()
        raise
    return shared


def _require_length(reader: SealedFileReader, resource: Resource) -> None:
    if reader.total_bytes != resource.total_bytes:
        raise _other_model(resource.name)


def _other_model(name: str) -> IntegrityError:
    return IntegrityError(
        f"{name} is not the model that the agreement names", code="other-resource"
    )
