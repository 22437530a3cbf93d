"""An owner's sealed files, compared with the agreement and with the vault's keys."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

from sealift.channel.record.opener import RecordOpener
from sealift.channel.record.rawfile import RawSealedFile
from sealift.data.schema.card import CARD_SUFFIX, SEALED_SUFFIX, read_card, schema_of
from sealift.errors import AuthenticationError, MalformedError
from sealift.release.broker.stores import opened_vault
from sealift.train.job.rolesetup import RoleSetup
from sealift.travel.holder.visit import HeldResource


def check_keys(setup: RoleSetup, vault: Path, held: dict[str, HeldResource]) -> None:
    """The sealed files must be those that the vault's keys are for.

    Raises:
        MalformedError: if a file was sealed with another key: it is another file; or
            ``schema-mismatch``, with other columns than the agreement says.
        UnavailableError: if the vault cannot be opened, or has no such key.
    """
    from sealift.data.shards.inspect import demand_sealed_as
    from sealift.data.shards.shard import Shard

    with opened_vault(vault, setup.identity) as keys:
        for name, each in held.items():
            key = keys.fetch(name)
            try:
                with closing(RecordOpener(key, each.source.header_bytes)) as opener:
                    header = opener.header
            except AuthenticationError:
                raise MalformedError(
                    f"the vault's key does not open {name}{SEALED_SUFFIX}",
                    code="other-resource",
                ) from None
            if header.is_described:
                shard = Shard(f"{name}{SEALED_SUFFIX}", key)
                demand_sealed_as(
                    schema_of(each.resource), "the agreement", shard, header
                )


def load_held(
    setup: RoleSetup, folder: Path, stack: ExitStack
) -> dict[str, HeldResource]:
    """This owner's sealed files, each compared with the agreement.

    Args:
        setup: Of the holder.
        folder: Where the files and their cards are.
        stack: Closes the files.

    Raises:
        UnavailableError: if one is missing.
        MalformedError: if one is not the agreed one, or not whole.
    """
    held = {}
    for resource in setup.agreement.agreement.resources_of(setup.identity.name):
        card = read_card(folder / f"{resource.name}{CARD_SUFFIX}")
        if not card.resource.is_table_of(resource):
            raise MalformedError(
                f"{resource.name} is not the table in the agreement",
                why="their cards differ",
                code="other-resource",
            )
        source = RawSealedFile(folder / f"{resource.name}{SEALED_SUFFIX}")
        stack.callback(source.close)
        held[resource.name] = HeldResource(resource, source, card.leaves)
    return held
