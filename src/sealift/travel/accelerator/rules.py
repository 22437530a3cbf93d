"""What the accelerator enforces against the orchestrator, which is trusted for progress.

Each visit id once, no holder more often than agreed, groups in the plan's direction
only (rule H8). Which visits there are is the plan's, which the accelerator makes itself
(``schedule``): its ranges are equal or apart, so their rows add up.
"""

from __future__ import annotations

from bisect import bisect_left
from copy import deepcopy
from dataclasses import dataclass, field, replace
from threading import Lock

from sealift.data.schedule.visits import Stop
from sealift.errors import PolicyError, StaleError
from sealift.ids import RANDOM_ID_BYTES, VisitId, cut_names
from sealift.release.agreement import Purpose, TravelRule
from sealift.travel.settings import TravelSettings
from sealift.travel.visit.messages import OfferVisit

Rows = tuple[int, int]  # first row, number of rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesProgress:
    """What the rules have counted, for a checkpoint.

    Attributes:
        position: Of the last group that was worked on; -1 before the first.
        seen: Visit ids, end to end: there is one for each round.
        worked: Visits whose rows the recipe may have seen, by purpose and holder.
        trained: Training visits whose rows were all trained on, by holder.
        covered: Ranges of rows that were trained on, by resource.
        prepared: Ranges of rows that are in the sums of ``prepare``, by resource.
        owners: Owner of each resource in ``covered``.
    """

    position: int = -1
    seen: bytes = b""
    worked: dict[str, dict[str, int]] = field(default_factory=dict)
    trained: dict[str, int] = field(default_factory=dict)
    covered: dict[str, tuple[Rows, ...]] = field(default_factory=dict)
    prepared: dict[str, tuple[Rows, ...]] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class VisitRules:
    """What the accelerator enforces itself; from any thread.

    Attributes:
        max_visits: Most training visits per holder, from the agreement; and as many
            that prepare or measure, so that nobody asks until the answers tell rows.
        position: Of the last group that was worked on.
        seen: Visit ids that were offered before, whatever became of them.
        counted: Everything else that was counted.
    """

    max_visits: int
    position: int = -1
    seen: set[VisitId] = field(default_factory=set)
    counted: RulesProgress = field(default_factory=RulesProgress)
    _lock: Lock = field(default_factory=Lock, compare=False, repr=False)

    def admit(self, offer: OfferVisit) -> None:
        """Take note of an offer.

        Raises:
            StaleError: for a visit id that was used, or a group that is over.
            PolicyError: if the agreement allows no such visit to this holder.
        """
        with self._lock:
            if offer.visit in self.seen:
                raise StaleError(
                    "this visit identifier was already used", code="visit-replayed"
                )
            self.seen.add(offer.visit)
            self._require_ahead(offer.position)
            self._require_visits_left(offer.holder, offer.purpose)

    def advance(self, position: int) -> None:
        """A group is worked on from here on.

        Raises:
            StaleError: if it, or a later one, was before.
        """
        with self._lock:
            self._require_ahead(position)
            self.position = position

    def begin(self, offer: Stop) -> None:
        """The recipe sees this holder's rows from here on: the visit is used up.

        Raises:
            PolicyError: if another visit used up what this one was admitted for.
        """
        with self._lock:
            self._require_visits_left(offer.holder, offer.purpose)
            visits = self.counted.worked.setdefault(offer.purpose, {})
            visits[offer.holder] = visits.get(offer.holder, 0) + 1

    def count(self, offer: Stop) -> None:
        """All rows were worked on: only this counts towards letting anything out."""
        counted, rows = self.counted, (offer.first_row, offer.rows)
        with self._lock:
            if offer.purpose == "prepare":
                _cover(counted.prepared, offer.resource, rows)
            if offer.purpose == "train":
                trained = counted.trained.get(offer.holder, 0)
                counted.trained[offer.holder] = trained + 1
                _cover(counted.covered, offer.resource, rows)
                counted.owners[offer.resource] = offer.holder

    def distinct_rows(self, owner: str) -> int:
        """Different rows of an owner that were trained on."""
        return sum(
            rows
            for resource, ranges in self.counted.covered.items()
            if self.counted.owners[resource] == owner
            for _first, rows in ranges  # equal or disjoint, so they add up
        )

    def prepared_rows(self) -> dict[str, int]:
        """Rows that are in the sums of ``prepare``, by resource; each is in them once."""
        return {
            resource: sum(rows for _first, rows in ranges)
            for resource, ranges in self.counted.prepared.items()
        }

    def progress(self) -> RulesProgress:
        """Everything counted so far."""
        with self._lock:
            seen = b"".join(sorted(each.raw for each in self.seen))
            return replace(deepcopy(self.counted), position=self.position, seen=seen)

    def restore(self, progress: RulesProgress) -> None:
        """Go on from what was counted before; nothing counted here is kept."""
        self.position = progress.position
        self.seen = set(map(VisitId, cut_names(progress.seen, RANDOM_ID_BYTES)))
        self.counted = replace(deepcopy(progress), position=-1, seen=b"")

    def _require_ahead(self, position: int) -> None:
        if position <= self.position:
            raise StaleError(
                "this visit batch is already over",
                why=(
                    f"it has number {position}; the last one was number {self.position}"
                ),
                code="group-over",
            )

    def _require_visits_left(self, holder: str, purpose: Purpose) -> None:
        visits = self.counted.worked.get(purpose, {}).get(holder, 0)
        if visits >= self.max_visits:
            raise PolicyError(
                f"{holder} was already visited {visits} times",
                why="the agreement's output rule allows no more visits",
                code="too-many-visits",
            )


def check_cargo(settings: TravelSettings, agreed: TravelRule) -> None:
    """What keeps one owner's rows from the next is the parties' decision (rule H2).

    Raises:
        PolicyError: ``cargo-not-agreed``.
    """
    if settings.buffers > agreed.buffers or settings.mixed > agreed.mixed:
        raise PolicyError(
            "the job asks for more visits at the same time than agreed",
            why=f"the agreement has buffers = {agreed.buffers}, "
            f"mixed = {str(agreed.mixed).lower()}",
            code="cargo-not-agreed",
        )


def _cover(covered: dict[str, tuple[Rows, ...]], resource: str, rows: Rows) -> None:
    """Keep what was covered in order; a range that is covered again counts once."""
    ranges = covered.get(resource, ())
    place = bisect_left(ranges, rows)
    if ranges[place : place + 1] != (rows,):
        covered[resource] = (*ranges[:place], rows, *ranges[place:])
