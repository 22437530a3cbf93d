"""Agreements as files: the TOML that people write, or what is signed of it."""

from __future__ import annotations

from pathlib import Path

from sealift.release.agreement.signed import (
    SignedAgreement,
    load_signed,
    verify_signatures,
)


def load_document(path: Path) -> SignedAgreement:
    """From TOML, without signatures, or from JSON, with signatures that fit.

    Raises:
        UnavailableError: if it, or a card that it names, cannot be read.
        MalformedError: if it is no agreement.
        AuthenticationError: if a signature does not fit.
    """
    if path.suffix != ".toml":
        return verify_signatures(load_signed(path))
    from sealift.data.schema.card import read_card
    from sealift.release.agreement.document import compile_document

    return compile_document(path, lambda card: read_card(card).resource)
