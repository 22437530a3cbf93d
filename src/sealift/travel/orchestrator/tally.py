"""What became of the stops of a plan, whichever accelerator attended to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sealift.travel.visit.messages import Failed

LASTING: Final = ("no-such-resource", "content-mismatch")


@dataclass(slots=True)
class Tally:
    """What became of every stop of the plan, by (position, resource).

    Attributes:
        causes: Why visits to a resource were skipped, the last time, by its name.
        over: Resources of which nothing more will come: no key, another file than
            agreed, an owner who left.
        offered: Visits that were offered.
    """

    verified: set[tuple[int, str]] = field(default_factory=set)
    skipped: set[tuple[int, str]] = field(default_factory=set)
    causes: dict[str, Failed] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)
    offered: int = 0

    def forget_from(self, position: int) -> None:
        """These groups are done again."""
        for found in (self.verified, self.skipped):
            found -= {each for each in found if each[0] >= position}

    def skip(self, position: int, resource: str, cause: Failed, *, left: bool) -> None:
        """Nobody attends to this stop any more."""
        self.skipped.add((position, resource))
        self.causes[resource] = cause
        if left or cause.code in LASTING:
            self.over.add(resource)

    def may_count(self, position: int, resource: str) -> bool:
        """Whether a stop was attended to, or may be."""
        place = (position, resource)
        return place in self.verified or (
            place not in self.skipped and resource not in self.over
        )
