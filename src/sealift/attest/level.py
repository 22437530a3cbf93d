"""Assurance levels, trust tiers, and the trust vector that a tier comes from.

A level is what kept whom out; a tier is the verdict on one piece of
evidence in the words of EAR (draft-ietf-rats-ear, AR4SI trust vector): the worst of eight
claims, each -128..127. 2..31 and -32..-2 are affirming, 32..95 and -96..-33 warn, 96..127
and -128..-97 are contraindicated, -1..1 say nothing. ``development`` protects from nobody:
it must be asked for, stands alone, and its evidence can never be ``affirming``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from operator import attrgetter
from typing import Final

from sealift.errors import MalformedError


class Level(StrEnum):
    """What the evidence of a job proved."""

    TEE = "tee"
    GPU_TEE = "gpu-tee"
    ATTESTED_HOST = "attested-host"
    UNTRUSTED_GPU = "untrusted-gpu"
    DEVELOPMENT = "development"


class Tier(StrEnum):
    """EAR's verdicts, best first after ``none``."""

    NONE = "none"
    AFFIRMING = "affirming"
    WARNING = "warning"
    CONTRAINDICATED = "contraindicated"


def say_level(level: Level, rehearsing: Level | None = None) -> str:
    """The level for people; a rehearsal names itself everywhere (rule H11)."""
    return f"{level} (rehearsing {rehearsing})" if rehearsing else level.value


def protects_nobody(level: str) -> bool:
    """Whether a level as ``say_level`` writes it is ``development``, rehearsing or not."""
    return level.split(" ", 1)[0] == Level.DEVELOPMENT


def check_level(level: str) -> str:
    """A level as ``say_level`` writes it, from a file or a peer.

    Raises:
        MalformedError: for any other text.
    """
    known = {each.value for each in Level}
    known |= {say_level(Level.DEVELOPMENT, each) for each in Level}
    if level not in known:
        raise MalformedError(
            "the text is not an assurance level", why=level[:60], field="level"
        )
    return level


def parse_accept(levels: Iterable[str]) -> tuple[Level, ...]:
    """The levels that an agreement accepts, in its order of preference.

    Raises:
        MalformedError: for an empty list, an unknown or a repeated level, or
            ``development`` beside another level (rule H7).
    """
    names = tuple(levels)
    try:
        accepted = tuple(Level(name) for name in names)
    except ValueError:
        raise MalformedError(
            f"accept names an unknown level in {list(names)}",
            field="accept",
            code="unknown-level",
        ) from None
    if not accepted or len(set(accepted)) != len(accepted):
        raise MalformedError(
            "accept must name each level once, and at least one",
            field="accept",
            code="bad-accept",
        )
    if Level.DEVELOPMENT in accepted and len(accepted) > 1:
        raise MalformedError(
            "accept names development together with another level",
            why=(
                "development protects data from nobody, so the other levels would "
                "mean nothing"
            ),
            field="accept",
            code="development-not-alone",
        )
    return accepted


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


def worst(vectors: Iterable[TrustVector]) -> TrustVector:
    """Of each aspect the worst that anybody says; who says nothing does not count."""
    found = tuple(vectors)
    return TrustVector(
        **{
            each.name: max(
                (getattr(vector, each.name) for vector in found),
                key=lambda value: (_ORDER.index(tier_of(value)), abs(value)),
            )
            for each in fields(TrustVector)
        }
    )
