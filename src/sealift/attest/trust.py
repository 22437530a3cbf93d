"""The trust vector of AR4SI (draft-ietf-rats-ar4si), and the tier it amounts to.

Eight claims, each -128..127. Ranges as in EAR: 2..31 and -32..-2 are affirming, 32..95
and -96..-33 warn, 96..127 and -128..-97 are contraindicated, -1..1 say nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Final

from sealift.attest.level import Tier
from sealift.errors import MalformedError

_ORDER: Final = (Tier.NONE, Tier.AFFIRMING, Tier.WARNING, Tier.CONTRAINDICATED)


def tier_of(value: int) -> Tier:
    """The tier of one trust claim.

    Raises:
        MalformedError: outside -128..127.
    """
    if not -128 <= value <= 127:
        raise MalformedError(f"trust claim {value} is outside -128..127")
    if -1 <= value <= 1:
        return Tier.NONE
    if -32 <= value <= 31:
        return Tier.AFFIRMING
    if -96 <= value <= 95:
        return Tier.WARNING
    return Tier.CONTRAINDICATED


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustVector:
    """What a verifier says about each aspect of the attester."""

    instance_identity: int = 0
    configuration: int = 0
    executables: int = 0
    file_system: int = 0
    hardware: int = 0
    runtime_opaque: int = 0
    storage_opaque: int = 0
    sourced_data: int = 0

    def __post_init__(self) -> None:
        for value in self._values():
            tier_of(value)

    @property
    def tier(self) -> Tier:
        """The worst tier of the eight claims."""
        return max(map(tier_of, self._values()), key=_ORDER.index)

    def _values(self) -> tuple[int, ...]:
        values: tuple[int, ...] = _CLAIMS(self)
        return values


_CLAIMS: Final = attrgetter(*(field.name for field in fields(TrustVector)))
