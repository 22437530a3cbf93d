"""Numbers over rows, and which of them may leave (rule H8). Pure, and no torch.

Of numbers measured on slices those leave that the output rule names, rounded; a number
that it does not name ends the job. Of the sums
of ``prepare`` totals over everybody's rows leave, or nothing: a total may leave when the
agreement names it and when it is made of enough rows of enough owners, each owner's table
in it as a whole and once. Whatever covers less stays inside, and so does all that was
built on it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sealift.codec import MAX_INTEGER, encode
from sealift.errors import JobError, MalformedError, require_value
from sealift.release.agreement import OutputRule, Resource
from sealift.release.agreement.tallies import tally_of
from sealift.train.loop.held import read_of
from sealift.train.loop.measures import LOSS, put_together, share_tally, take_apart
from sealift.train.loop.states import (
    MAX_HEADER_BYTES,
    TensorBytes,
    pack_tensors,
    parse_tensors,
)

ALONE: Final = "alone"


@dataclass(frozen=True, slots=True)
class Measured:
    """Numbers that a group of slices gave, raw or let out.

    Attributes:
        rows: Rows that they cover.
        metrics: By name; ``alone.OWNER.NAME`` for a baseline.
        curve: Mean losses of the windows that the slice's steps were cut into.
        curve_rows: Rows of each window.
        shared: Whether the rows are several owners', so that nobody owns the numbers.
    """

    rows: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    curve: tuple[float, ...] = ()
    curve_rows: tuple[int, ...] = ()
    shared: bool = False


def let_out(found: Measured, rule: OutputRule) -> Measured:
    """What of the numbers may leave: those that the output rule names, rounded.

    ``alone.OWNER.NAME`` needs ``baseline_alone`` besides the name. Anything that is not
    finite stays inside, as does every number measured on fewer rows than the rule says:
    a visit of one row must not tell about that row; of tallies see ``share_tally``. Where
    the loss leaves in windows, its mean is made of the rounded ones and so no further value.

    Raises:
        JobError: code ``measure-not-agreed``, if the rule does not name a number (the loss,
            which no recipe has to name, stays inside then); ``wrong-measure``.
    """
    means, tallies = take_apart(found.metrics)
    _require_agreed(means, tallies, rule)
    hidden = found.shared and rule.audience == "owner"
    if found.rows < rule.metric_rows or hidden:
        return Measured(found.rows, shared=found.shared)
    metrics = {
        name: round(value, rule.digits)
        for name, value in means.items()
        if _listed_name(name) in rule.metrics and math.isfinite(value)
    }
    for name, cells in tallies.items():
        shared = share_tally(
            require_value(tally_of(_listed_name(name))),
            cells,
            rows=found.rows,
            least=rule.metric_rows,
            digits=rule.digits,
        )
        metrics |= put_together(name, shared)
    curve = tuple(round(value, rule.digits) for value in found.curve)
    if "loss" not in metrics or len(curve) < 2 or len(curve) > rule.values_per_visit:
        return Measured(found.rows, metrics, shared=found.shared)
    pairs = zip(curve, found.curve_rows, strict=True)
    mean = sum(value * rows for value, rows in pairs) / sum(found.curve_rows)
    if not math.isfinite(mean):  # of numbers that are, but too large to add up
        return Measured(found.rows, shared=found.shared)
    metrics["loss"] = round(mean, rule.digits)
    return Measured(found.rows, metrics, curve, found.curve_rows, found.shared)


def _require_agreed(
    means: Mapping[str, float], tallies: Mapping[str, object], rule: OutputRule
) -> None:
    """Refuse what the agreement does not name; the error names nothing of a recipe's choice."""
    told = [*((name, False) for name in means), *((name, True) for name in tallies)]
    for name, counted in told:  # one name may be told as both
        base = _listed_name(name)
        kind_fits = (tally_of(base) is not None) is counted
        known = base in rule.metrics or (base == LOSS and not counted)
        if known and kind_fits and (rule.baseline_alone or base == name):
            continue
        agreed = ", ".join(rule.metrics) or "none"
        raise JobError(
            "evaluate() returned a measure that the agreement does not list",
            why=f"the agreement lists {agreed}",
            code="measure-not-agreed",
        )


def _listed_name(name: str) -> str:
    """Of ``alone.OWNER.NAME`` as well; with more between the dots it is in no list."""
    return name.split(".", 2)[-1] if name.startswith(f"{ALONE}.") else name


MAX_SUMS: Final = 65_536
MAX_SUMS_BYTES: Final = 8 * MAX_SUMS + MAX_HEADER_BYTES  # names and shapes beside them
_FORMATS: Final = {"F64": "d", "I64": "q"}


def check_sums(blob: bytes) -> dict[str, TensorBytes]:
    """The sums in a blob that a recipe's process handed over.

    Raises:
        MalformedError: code ``bad-tensors``, if they are none, too many, or one of them
            is not finite or a whole number above 2^53 - 1.
    """
    found = parse_tensors(blob)
    # A sum of no numbers tells nothing but its shape, which may be as large as it likes.
    known = all(each.dtype in _FORMATS and each.elements for each in found.values())
    if not known or sum(each.elements for each in found.values()) > MAX_SUMS:
        raise MalformedError("the bytes are not sums", code="bad-tensors")
    for each in found.values():
        for number in sum_numbers(each):
            _checked(number)
    return found


def add_sums(blobs: Iterable[bytes]) -> bytes:
    """Sums of several parts, added in this order.

    Raises:
        MalformedError: if names, kinds or shapes differ, or a sum left its range.
    """
    total: dict[str, TensorBytes] | None = None
    for blob in blobs:
        found = check_sums(blob)
        if total is None:
            total = found
            continue
        if _forms(found) != _forms(total):
            raise MalformedError(
                "the sums have different names or shapes", code="bad-tensors"
            )
        total = {name: _plus(total[name], each) for name, each in found.items()}
    return pack_tensors(total or {})


def sum_numbers(tensor: TensorBytes) -> tuple[float, ...] | tuple[int, ...]:
    """The numbers of one sum."""
    content = read_of(tensor.content, 0, len(tensor.content))
    return struct.unpack(f"<{tensor.elements}{_FORMATS[tensor.dtype]}", content)


def _forms(sums: Mapping[str, TensorBytes]) -> dict[str, str]:
    return {name: each.form for name, each in sums.items()}


def _plus(left: TensorBytes, right: TensorBytes) -> TensorBytes:
    pairs = zip(sum_numbers(left), sum_numbers(right), strict=True)
    content = struct.pack(
        f"<{left.elements}{_FORMATS[left.dtype]}", *[_checked(a + b) for a, b in pairs]
    )
    return TensorBytes(left.dtype, left.shape, memoryview(content))


def _checked(number: float) -> float:
    """Finite, and exact where it is whole."""
    if isinstance(number, int) and abs(number) > MAX_INTEGER:
        raise MalformedError("a sum is outside its range", code="bad-tensors")
    if not math.isfinite(number):
        raise MalformedError("a sum is not a number", code="bad-tensors")
    return number


STATISTICS_NAME: Final = "statistics.json"
MAX_TOLD: Final = 16_384  # numbers that fit the signed manifest


@dataclass(frozen=True, slots=True)
class Statistic:
    """One total as it leaves.

    Attributes:
        shape: Its sizes; none for a single number.
        values: Row by row, rounded as the output rule says.
    """

    shape: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        fits = min(self.shape, default=1) > 0
        if not fits or math.prod(self.shape) != len(self.values):
            raise MalformedError("the numbers do not match their shape", field="shape")

    def nested(self) -> Any:
        """The numbers in lists of lists, for ``statistics.json``."""
        return _nest(list(self.values), self.shape)


def totals_file(statistics: Mapping[str, Statistic], rows: Mapping[str, int]) -> bytes:
    """``statistics.json``: rows by owner, and every total in lists of lists."""
    found = {name: each.nested() for name, each in statistics.items()}
    return encode({"rows": dict(rows), "statistics": found})


def check_totals(
    rule: OutputRule, resources: Sequence[Resource], rows: Mapping[str, int]
) -> None:
    """May totals leave, or be built on?

    Args:
        rule: From the agreement.
        resources: All of the agreement.
        rows: Distinct rows that are in the sums, by resource.

    Raises:
        JobError: code ``statistics-withheld``, with the rule that is not met.
    """
    training = [each for each in resources if each.part == "train"]
    why = _partial(training, rows) or _too_few(rule, training, rows)
    if why:
        raise _withheld(why)


def let_out_totals(blob: bytes, rule: OutputRule) -> dict[str, Statistic]:
    """The totals that the agreement names, rounded; ``check_totals`` comes first.

    Raises:
        JobError: code ``statistics-withheld``, if they are too many numbers.
        MalformedError: if the blob holds no sums.
    """
    sums = check_sums(blob) if blob else {}
    named = {name: each for name, each in sums.items() if name in rule.statistics}
    count = sum(each.elements for each in named.values())
    if count > MAX_TOLD:
        raise _withheld(f"there are {count} numbers; the limit is {MAX_TOLD}")
    return {
        name: Statistic(
            each.shape,
            tuple(float(round(value, rule.digits)) for value in sum_numbers(each)),
        )
        for name, each in sorted(named.items())
    }


def _partial(training: Sequence[Resource], rows: Mapping[str, int]) -> str:
    """Two totals that differ by a slice would tell the slice."""
    for each in training:
        found = rows.get(each.name, 0)
        if found not in (0, each.rows):
            return f"the sums include {found} of the {each.rows} rows of {each.name}"
    return ""


def _too_few(
    rule: OutputRule, training: Sequence[Resource], rows: Mapping[str, int]
) -> str:
    of_owner: dict[str, int] = {}
    for each in training:
        of_owner[each.owner] = of_owner.get(each.owner, 0) + rows.get(each.name, 0)
    total, owners = sum(of_owner.values()), sum(1 for n in of_owner.values() if n)
    for owner, found in of_owner.items():
        if found < rule.min_owner_rows:
            return (
                f"the sums include {found} rows of {owner}; the agreement requires at "
                f"least {rule.min_owner_rows}"
            )
    if owners < rule.min_holders:
        return (
            f"the sums include rows of {owners} owners; the agreement requires at "
            f"least {rule.min_holders}"
        )
    if total < rule.statistics_rows:
        return (
            f"the sums include {total} rows; the agreement requires at least "
            f"{rule.statistics_rows}"
        )
    return ""


def _nest(values: list[float], shape: tuple[int, ...]) -> Any:
    if not shape:
        return values[0]
    step = len(values) // shape[0] if shape[0] else 0
    parts = [values[at * step : (at + 1) * step] for at in range(shape[0])]
    return [_nest(part, shape[1:]) for part in parts] if shape[1:] else values


def _withheld(why: str) -> JobError:
    return JobError(
        "the sums over the rows may not leave the accelerator",
        why=why,
        code="statistics-withheld",
    )
