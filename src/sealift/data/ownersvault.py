"""The vault that `sealift data seal` keeps its keys in, open only as long as it is used.

A source may take hours to seal; a broker uses the same vault meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sealift.crypto.identity import Identity
from sealift.crypto.keys import SecretKey
from sealift.data.schema.card import ResourceCard, read_card
from sealift.data.staging import sealed_paths
from sealift.errors import UnavailableError, UsageError
from sealift.ids import Digest
from sealift.release.broker.stores import keep_keys, opened_vault


@dataclass(frozen=True, slots=True)
class OwnersVault:
    """A vault by its path, and the identity that opens it."""

    path: Path
    identity: Identity

    def demand_free(self, names: Iterable[str], folder: Path) -> None:
        """Refuse early what keeping the keys would refuse after the work.

        Args:
            names: What is to be sealed.
            folder: Where; if it is sealed there already, the error says so.

        Raises:
            UsageError: ``key-exists``.
            UnavailableError: if the vault cannot be read, or has no folder.
        """
        if not self._is_there:
            _demand_folder(self.path)
            return
        held = self._held()
        for name in names:
            if name in held:
                raise _key_exists(name, _fix(name, folder, held[name]))

    def keep(self, keys: Mapping[str, SecretKey]) -> None:
        """Keep all keys in one step; the vault is made if there is none.

        Raises:
            UsageError, UnavailableError: as ``Vault.store_all``; none is kept then.
        """
        keep_keys(self.path, self.identity, keys)

    def kept(self, card: ResourceCard) -> bool:
        """Whether the key that a card names is kept."""
        if not self._is_there:
            return False
        return self._held().get(card.name) == card.resource.key

    @property
    def _is_there(self) -> bool:
        """False also where nobody may look: what comes next says why."""
        return os.path.exists(self.path)

    def _held(self) -> dict[str, Digest]:
        with opened_vault(self.path, self.identity) as vault:
            return vault.resources()


def _demand_folder(path: Path) -> None:
    if not os.path.isdir(path.parent):
        raise UnavailableError(
            f"cannot write {path}",
            why="its folder does not exist, or you may not enter it",
            code="cannot-write",
        )


def _fix(name: str, folder: Path, held: Digest) -> str:
    card = sealed_paths(folder, name).card
    if card.exists() and read_card(card).resource.key == held:
        return f"It is sealed already, in {folder}: use that file, or another name"
    return "Use another name; keys are never overwritten"


def _key_exists(name: str, fix: str) -> UsageError:
    what = f"the vault already has a key for {name}"
    return UsageError(what, fix=fix, code="key-exists")
