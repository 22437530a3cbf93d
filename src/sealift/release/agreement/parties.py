"""Who takes part, and how many of them may change what belongs to nobody alone.

Source: spec/release.md section Amendments (rules H6 and H7).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sealift.crypto.hpke import HpkePublicKey
from sealift.crypto.sign import PublicKey
from sealift.ids import check_name
from sealift.release.agreement.consistency import (
    inconsistent,
    require_distinct,
    require_within,
)

PartyRole = Literal["data_owner", "model_owner", "code_owner", "operator"]


@dataclass(frozen=True, slots=True)
class Party:
    """An organisation: its name, what it brings, and its public keys."""

    name: str
    roles: tuple[PartyRole, ...]
    sign: PublicKey
    hpke: HpkePublicKey

    def __post_init__(self) -> None:
        check_name(self.name, what="party name")
        if len(set(self.roles)) != len(self.roles):
            raise inconsistent("a role is named twice", "roles")


@dataclass(frozen=True, slots=True)
class RollbackRule:
    """How many owners must show what they saw before an agreement counts as the last.

    Attributes:
        quorum: q, of the n owners of data.
        faulty: f, how many of them may lie; ``2 q > n + f`` (rule H6).
    """

    quorum: int
    faulty: int

    def __post_init__(self) -> None:
        require_within(self.quorum, 1, 64, "quorum")
        require_within(self.faulty, 0, 63, "faulty")

    def check_for(self, owners: int, field: str) -> None:
        """Refuse a quorum that two disjoint sets of owners could form, or nobody."""
        require_within(self.quorum, 1, owners, field)
        if 2 * self.quorum <= owners + self.faulty:
            raise inconsistent(
                f"2 * {self.quorum} is not above {owners} owners + {self.faulty} faulty",
                field,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """Who may bring a successor into force, for what no single owner brought.

    Attributes:
        members: Names of parties.
        threshold: Signatures of members that a successor needs; more than half, so
            that no two successors can both have them.
        veto: Members without whose signature there is no successor.
        rollback: Asks the owners which agreement is the last; None asks nobody.
    """

    members: tuple[str, ...]
    threshold: int
    veto: tuple[str, ...] = ()
    rollback: RollbackRule | None = None

    def __post_init__(self) -> None:
        require_distinct(self.members, "members")
        require_distinct(self.veto, "veto")
        require_within(self.threshold, 1, len(self.members), "threshold")
        faulty = self.rollback.faulty if self.rollback else 0
        if 2 * self.threshold <= len(self.members) + faulty:
            raise inconsistent(
                "two disjoint sets of members could each bring a successor into force",
                "threshold",
            )
        for name in self.veto:
            if name not in self.members:
                raise inconsistent(f"{name[:80]!r} is not a member", "veto")
