"""What owners bring, and under which rules: a key leaves, results leave, visits are made.

Source: spec/release.md sections Agreement and Rule of a resource.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from sealift.attest.level import Level
from sealift.codec import MAX_INTEGER
from sealift.errors import PolicyError
from sealift.ids import MAX_RANKS, Digest, check_name
from sealift.release.agreement.privacy import PrivacyBudget
from sealift.release.agreement.terms import (
    inconsistent,
    require_distinct,
    require_now,
    require_positive,
    require_window,
    require_within,
)

Part = Literal["train", "heldout", "model"]
Purpose = Literal["prepare", "train", "heldout"]  # what one visit is for
MAX_LEASE_S: Final = 7 * 86_400.0
PURPOSES: Final[dict[Part, tuple[Purpose, ...]]] = {
    "train": ("prepare", "train"),
    "heldout": ("heldout",),
    "model": (),  # no visit reads it: it is served
}


def part_for(purpose: Purpose) -> Part:
    """Which rows a visit reads: sums before training are of training rows."""
    return "heldout" if purpose == "heldout" else "train"


@dataclass(frozen=True, slots=True)
class KeyLease:
    """How long a released key lives by itself.

    Attributes:
        lease_s: Seconds without fresh evidence after which it has ended for good.
        heartbeat_s: Seconds without fresh evidence after which work with it pauses.
    """

    lease_s: float
    heartbeat_s: float


# Long enough for machines that are busy or far away; renewed three times a heartbeat.
ROWS_LEASE: Final = KeyLease(lease_s=60.0, heartbeat_s=10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRule:
    """When the owner lets the key of one resource go; it belongs to that owner alone.

    Attributes:
        accept: Levels that are good enough, of those of the agreement; empty for all.
        purposes: What its rows may be visited for; empty for all that its part allows.
        max_uses: How often its key may be released in all; 0 for any number.
        not_before: Seconds since 1970 from which it may be released, or None.
        not_after: Seconds since 1970 until which it may be released, or None.
        lease_s: How long a released key lives without fresh evidence, in seconds; None
            is the default of the resource's part, 0 releases without a lease.
        heartbeat_s: How often fresh evidence is due within a lease, in seconds: work
            pauses without it.
        privacy: The most that may ever be spent on its rows; None bounds nothing.
        recipe: ``graph``: no program of another party may run on its rows, so that an
            agreement about a code recipe cannot have it.
    """

    accept: tuple[Level, ...] = ()
    purposes: tuple[Purpose, ...] = ()
    max_uses: int = 0
    not_before: int | None = None
    not_after: int | None = None
    lease_s: float | None = None
    heartbeat_s: float | None = None
    privacy: PrivacyBudget | None = None
    recipe: Literal["any", "graph"] = "any"

    def __post_init__(self) -> None:
        require_distinct(self.accept, "accept")
        require_distinct(self.purposes, "purposes")
        require_within(self.max_uses, 0, MAX_INTEGER, "max_uses")
        require_window(self.not_before, self.not_after)
        if bool(self.lease_s) is not (self.heartbeat_s is not None):
            raise inconsistent("and heartbeat_s must be given together", "lease_s")
        if self.lease_s and self.heartbeat_s is not None:
            require_positive(self.lease_s, MAX_LEASE_S, "lease_s")
            require_positive(self.heartbeat_s, self.lease_s, "heartbeat_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A sealed table or model: who owns it, what it is, what binds bytes and key.

    Attributes:
        part: ``train``, ``heldout`` for evaluation only, or ``model`` to be served.
        rows: Number of rows; 1 for a model.
        row_bytes: Bytes of one row.
        cell_rows: Rows of a cell of the grid along which it is cut, fixed when it was
            sealed (rule N5); the last cell takes the rest as well.
        total_bytes: Plaintext bytes, ``rows * row_bytes``.
        record_bytes: Plaintext bytes of one sealed record.
        schema: The table's schema in its plain form (spec/table.md), or the model's
            form (spec/serve.md).
        content: Commitment to the plaintext (rule C5).
        key: Commitment to the data key (rule C9).
        rule: When its owner lets the key go.
    """

    name: str
    owner: str
    part: Part
    rows: int
    row_bytes: int
    cell_rows: int
    total_bytes: int
    record_bytes: int
    schema: dict[str, Any]
    content: Digest
    key: Digest
    rule: ReleaseRule = field(default_factory=ReleaseRule)

    def __post_init__(self) -> None:
        check_name(self.name, what="resource name")
        for name in ("rows", "row_bytes", "cell_rows", "total_bytes", "record_bytes"):
            require_within(getattr(self, name), 1, MAX_INTEGER, name)
        if self.total_bytes != self.rows * self.row_bytes:
            raise inconsistent("is not rows times row_bytes", "total_bytes")
        if self.rule.privacy is not None:
            self.rule.privacy.require_rows(self.rows)
        for purpose in self.rule.purposes:
            if part_for(purpose) != self.part:
                raise inconsistent(
                    f"names {purpose}, which reads another part", "rule.purposes"
                )

    @property
    def lease(self) -> KeyLease | None:
        """Of its released key: what its rule says, else a default for keys of rows."""
        lease_s, heartbeat_s = self.rule.lease_s, self.rule.heartbeat_s
        if lease_s is None:
            return None if self.part == "model" else ROWS_LEASE
        return KeyLease(lease_s, heartbeat_s) if heartbeat_s is not None else None

    @property
    def num_records(self) -> int:
        """Records of the sealed file."""
        return -(-self.total_bytes // self.record_bytes)

    @property
    def cells(self) -> int:
        """Cells of its grid; a table shorter than a cell is one."""
        return max(1, self.rows // self.cell_rows)

    def edge(self, cell: int) -> int:
        """The first row of a cell; of the one after the last: the end."""
        return self.rows if cell == self.cells else cell * self.cell_rows

    @property
    def longest_cell_bytes(self) -> int:
        """Bytes of its last cell: no other one is longer."""
        return (self.rows - self.edge(self.cells - 1)) * self.row_bytes

    def require_cells(self, first_row: int, rows: int) -> None:
        """Refuse a range that is not made of whole cells (rule N5).

        Any two accepted ranges are then equal or differ by at least one cell, whoever
        asks and in whichever run, so their results cannot reveal a few rows.

        Raises:
            PolicyError: ``off-grid``.
        """
        end, last = first_row + rows, self.edge(self.cells - 1)
        starts = 0 <= first_row <= last and first_row % self.cell_rows == 0
        ends = end == self.rows or (end <= last and end % self.cell_rows == 0)
        if rows < 1 or not starts or not ends:
            raise PolicyError(
                f"rows {first_row:,} to {end - 1:,} of {self.name} are not whole cells",
                why=f"a cell has {self.cell_rows:,} of its {self.rows:,} rows, and the last cell has the rest",
                code="off-grid",
            )

    def is_table_of(self, other: Resource) -> bool:
        """Whether both are the same sealed table, whatever their owner's rule says."""
        return replace(self, rule=other.rule) == other

    @property
    def purposes(self) -> tuple[Purpose, ...]:
        """What its rows may be visited for."""
        return self.rule.purposes or PURPOSES[self.part]

    def require_purpose(self, purpose: str) -> None:
        """Refuse a visit for what its owner did not allow.

        Raises:
            PolicyError: ``purpose-refused``.
        """
        if purpose not in self.purposes:
            raise PolicyError(
                f"{self.name} may not be used for this purpose",
                why=f"its purposes are {' and '.join(self.purposes)}, and it was requested for {purpose}",
                code="purpose-refused",
            )

    def accepted(self, agreed: tuple[Level, ...]) -> tuple[Level, ...]:
        """Levels at which its key may be released, in the agreement's preference."""
        wanted = self.rule.accept or agreed
        return tuple(level for level in agreed if level in wanted)

    def require_time(self, at_s: float) -> None:
        """Refuse a release before or after the time that its owner allowed.

        Args:
            at_s: Seconds since 1970, by the clock of the owner's broker.

        Raises:
            PolicyError: ``resource-not-yet`` or ``resource-expired``.
        """
        rule = self.rule
        require_now(
            self.name, at_s, rule.not_before, rule.not_after,
            code=("resource-not-yet", "resource-expired"),
        )  # fmt: skip


Audience = Literal["everyone", "owner"]
MAX_DIGITS: Final = 6

_COUNTS: Final = (
    "values_per_visit",
    "metric_rows",
    "min_visits",
    "min_holders",
    "min_rows",
    "min_owner_rows",
    "statistics_rows",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRule:
    """What may leave the accelerator (rule H8); it enforces this itself.

    Attributes:
        metrics: Names of the numbers that may leave: means over rows, and tallies.
        digits: Decimal places that they are rounded to.
        values_per_visit: Most values of one metric from one visit: a slice's steps are
            cut into so many windows at most, each of ``metric_rows`` rows at least.
        metric_rows: Fewest rows that a number which leaves is measured on.
        audience: Who sees numbers measured on an owner's rows: ``everyone`` or only
            the ``owner`` of the rows.
        min_visits: Training visits to every holder before a model leaves.
        max_visits: Visits to one holder at most: to train, and as many to measure.
        min_holders: Distinct holders visited before a model leaves.
        min_rows: Distinct rows trained on before a model leaves.
        min_owner_rows: Distinct rows of each owner among them.
        baseline_alone: Whether a model of each owner's rows alone is trained, to
            compare; its numbers follow this rule, the model itself never leaves.
        recipe_text: Whether the recipe's output and exception text leave.
        statistics: Names of the sums of ``prepare`` that may leave, as totals.
        statistics_rows: Fewest rows that such a total is made of.
        model_to: Parties that get the model; empty for the model owner alone.
        approved_by: Parties that must approve of the model before it leaves.
    """

    metrics: tuple[str, ...]
    digits: int
    values_per_visit: int
    metric_rows: int
    audience: Audience
    min_visits: int
    max_visits: int
    min_holders: int
    min_rows: int
    baseline_alone: bool
    recipe_text: bool
    min_owner_rows: int = 1
    statistics: tuple[str, ...] = ()
    statistics_rows: int = 1
    model_to: tuple[str, ...] = ()
    approved_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.metrics:
            check_name(name.replace("_", "-"), what="metric name")
        for name in self.statistics:
            check_name(name.replace("_", "-"), what="statistic's name")
        for name in ("metrics", "statistics", "model_to", "approved_by"):
            require_distinct(getattr(self, name), name)
        require_within(self.digits, 0, MAX_DIGITS, "digits")
        for name in _COUNTS:
            require_within(getattr(self, name), 1, MAX_INTEGER, name)
        require_within(self.max_visits, self.min_visits, MAX_INTEGER, "max_visits")


@dataclass(frozen=True, slots=True)
class GroupRule:
    """Several accelerators that train together; a job may not have another number.

    Attributes:
        ranks: How many.
        rows: ``owner``: accelerator-N reads the rows of the Nth data owner alone, and
            proves with that owner's own key that it is that owner's. ``share``: each reads
            its share of everybody's rows, so every key goes to each of them.
    """

    ranks: int
    rows: Literal["owner", "share"]

    def __post_init__(self) -> None:
        require_within(self.ranks, 2, MAX_RANKS, "group.ranks")

    @property
    def promise(self) -> str:
        """What it means, in words."""
        each = "each key is released to each of them, and each release counts as a use"
        if self.rows == "owner":
            each = "each on its owner's machine, with that owner's rows and key alone"
        return f"{self.ranks} accelerators train together, {each}"


@dataclass(frozen=True, slots=True)
class TravelRule:
    """How the accelerator may visit; a job may ask for less, never for more.

    Attributes:
        buffers: 1: one owner's rows are gone before the next owner is met. 2: the next
            owner's rows load while these are trained on (rule H2).
        lease_s: Longest lease, in seconds.
        mixed: Whether batches may be drawn across several owners' rows.
    """

    buffers: Literal[1, 2]
    lease_s: float
    mixed: bool = False

    def __post_init__(self) -> None:
        require_positive(self.lease_s, MAX_LEASE_S, "lease_s")
