"""An owner's data keys, for its own training at home: vault and identity to keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sealift.crypto.identity import load_identity
from sealift.errors import UsageError
from sealift.release.files import read_secret_line
from sealift.release.stores import opened_vault
from sealift.release.vault import Vault


@contextmanager
def owner_keys(
    vault: str | Path,
    identity: str | Path,
    *,
    passphrase: str | None = None,
    passphrase_file: str | Path | None = None,
) -> Iterator[Vault]:
    """An owner's vault, open: give it to ``SealedDataset`` as ``keys``.

    Args:
        vault: Where ``sealift data seal`` keeps the data keys.
        identity: The owner's identity file.
        passphrase: Of the identity; or
        passphrase_file: a file whose first line it is.

    Raises:
        UsageError: unless exactly one of both is given.
        UnavailableError: if a file cannot be read.
        RefusedError: if the passphrase, or the identity, is another one.
    """
    if (passphrase is None) == (passphrase_file is None):
        raise UsageError("give passphrase= or passphrase_file=")
    if passphrase_file is not None:
        passphrase = read_secret_line(Path(passphrase_file))
    owner = load_identity(Path(identity), passphrase or "")
    with opened_vault(Path(vault), owner) as opened:
        yield opened
