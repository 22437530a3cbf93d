"""What a model was trained on, by owner: enough for it to leave, or not (rule H8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sealift.data.schedule.visits import Stop
from sealift.errors import PolicyError
from sealift.release.agreement import OutputRule


@dataclass(frozen=True, slots=True)
class Coverage:
    """Rows and passes, by data owner, every owner included.

    Attributes:
        passes: How often the model was trained on rows of an owner; to ``travel`` each
            is a visit.
        rows: Distinct rows among them.
    """

    passes: Mapping[str, int]
    rows: Mapping[str, int]

    @classmethod
    def of(cls, stops: Iterable[Stop], owners: Iterable[str]) -> Coverage:
        """Of slices that were all trained on; their ranges are equal or apart."""
        trained = [stop for stop in stops if stop.purpose == "train"]
        passes = Counter(stop.holder for stop in trained)
        slices = {(stop.resource, stop.first_row): stop for stop in trained}
        rows: Counter[str] = Counter()
        for stop in slices.values():
            rows[stop.holder] += stop.rows
        owners = tuple(owners)
        return cls({o: passes[o] for o in owners}, {o: rows[o] for o in owners})

    def require(self, rule: OutputRule) -> None:
        """May the model leave?

        Raises:
            PolicyError: code ``output-withheld``, with the rule that is not met.
        """
        passes, rows = self.passes, self.rows
        few = [owner for owner, count in passes.items() if count < rule.min_visits]
        holders = sum(1 for count in passes.values() if count)
        lacking = [owner for owner, n in rows.items() if n < rule.min_owner_rows]
        if few:
            why = f"{few[0]} had {passes[few[0]]} visits of at least {rule.min_visits}"
        elif holders < rule.min_holders:
            why = f"{holders} holders of at least {rule.min_holders}"
        elif sum(rows.values()) < rule.min_rows:
            why = f"{sum(rows.values())} distinct rows of at least {rule.min_rows}"
        elif lacking:
            why = (
                f"{rows[lacking[0]]} distinct rows of {lacking[0]} of at least "
                f"{rule.min_owner_rows}"
            )
        else:
            return
        raise PolicyError(
            "the model does not leave the accelerator", why=why, code="output-withheld"
        )
