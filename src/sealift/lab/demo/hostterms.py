"""What an agreement says of an attested host: its values, who enrols it, and leases."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from sealift.attest.tpm.references import TpmReferences
from sealift.codec import to_plain
from sealift.crypto.sign import PublicKey

HEARTBEAT_S: Final = 5.0  # the guest is emulated: a quote takes it 0.1 s and more
LEASE_S: Final = 60.0


def add_host_terms(
    document: str, references: TpmReferences, enrollers: tuple[PublicKey, ...]
) -> str:
    """A starter document that asks for the evidence of one host, and for leases.

    Args:
        document: TOML, as ``release.starter`` writes it.
        references: Of the host.
        enrollers: Whose word ties its attestation key to its TPM.
    """
    keys = json.dumps([key.to_text() for key in enrollers])
    tables = f"enrollers = {keys}\ntpm = {_inline(to_plain(references))}"
    document = _replaced(document, r"^\[references\]$", f"[references]\n{tables}", 1)
    leases = ((f"lease_s = {LEASE_S}", "lease_s"), (_BEAT, "heartbeat_s"))
    for line, name in leases:
        document = _replaced(document, rf"^{name} = [\d.]+(?=   )", line)
    return document


_BEAT: Final = f"heartbeat_s = {HEARTBEAT_S}"


def _replaced(document: str, pattern: str, by: str, expected: int = 0) -> str:
    found, count = re.subn(pattern, lambda _: by, document, flags=re.M)
    assert count == expected or (count and not expected), pattern
    return found


def _inline(value: Any) -> str:
    """A value as TOML has it on one line; what is absent has its default."""
    match value:
        case dict():
            return _table(value)
        case list() | tuple():
            return f"[{', '.join(map(_inline, value))}]"
        case _:
            return json.dumps(value)  # text, numbers and booleans are the same


def _table(plain: Mapping[str, Any]) -> str:
    pairs = (
        f"{json.dumps(name)} = {_inline(value)}"
        for name, value in plain.items()
        if value is not None
    )
    return f"{{ {', '.join(pairs)} }}"
