"""Reference values: what the parties agreed that evidence must show.

They come from the signed agreement, never from the peer. Each kind of evidence reads
the fields that concern it; a kind whose field is empty accepts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from sealift.crypto.sign import PublicKey
from sealift.ids import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceValues:
    """What appraisal compares with.

    Attributes:
        development_attesters: Keys whose development evidence is genuine.
        code_bundle: Digest of the code that must run, or None if any may.
    """

    development_attesters: tuple[PublicKey, ...] = ()
    code_bundle: Digest | None = None
