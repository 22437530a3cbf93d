"""In which order rows are read: decided by a seed, the same on every machine.

A *unit* is the rows that begin in one record, or those of them that were chosen. An epoch is a permutation of the units;
its rows, one after another, are cut into as many equal ranges as there are ranks, and
a rank's units are shuffled together by *windows*, which fit in memory at once. So a
record is opened once per epoch, and once more where two ranks share it.
Guarantees: the order depends on layout, seed, epoch, window and ranks alone, neither on
the number of workers nor on numpy's version (it uses PCG64's raw stream, which numpy
keeps, and sorting); any position is reached without computing what comes before it.

Where a loader stands, as a small dict of strings and numbers.

It says how many rows of which epoch were handed out, and what the order depends on;
neither workers nor batch size are part of that. Nothing in it is secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sealift.crypto.hash import labelled
from sealift.errors import MalformedError, UsageError

Indices = NDArray[np.int64]
_WINDOW: Final = -1  # no number of a window: the permutation of the units


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """One shard: its rows, and how large its records are."""

    rows: int
    record_bytes: int


@dataclass(frozen=True)
class Layout:
    """The rows of all shards, one after another.

    Attributes:
        row_bytes: Of a row.
        shards: In their order.
        chosen: The numbers of the rows that are read, ascending; all of them if None.
    """

    row_bytes: int
    shards: tuple[ShardLayout, ...]
    chosen: Indices | None = field(default=None, compare=False)

    @cached_property
    def shard_starts(self) -> Indices:
        """The number of each shard's first row, and of all rows at the end."""
        return _starts([shard.rows for shard in self.shards])

    @property
    def rows(self) -> int:
        """How many rows are read."""
        return int(self.shard_starts[-1]) if self.chosen is None else len(self.chosen)

    @cached_property
    def unit_starts(self) -> Indices:
        """Where each unit begins among the rows that are read, and their number."""
        parts = [
            self.shard_starts[index] + _unit_starts(shard, self.row_bytes)
            for index, shard in enumerate(self.shards)
        ]
        starts = np.append(np.concatenate(parts), self.shard_starts[-1])
        if self.chosen is not None:
            starts = np.searchsorted(self.chosen, starts)
        return np.unique(starts)  # a record may begin no row

    def place(self, row: int) -> tuple[int, int]:
        """The shard of a row, and its number there."""
        shard = int(np.searchsorted(self.shard_starts, row, side="right")) - 1
        return shard, row - int(self.shard_starts[shard])


@dataclass(frozen=True, slots=True)
class OrderOptions:
    """What besides the layout decides the order.

    Attributes:
        shuffle: Whether there is any shuffling.
        seed: The job's seed.
        window_bytes: About how many bytes of rows are shuffled together.
        rank: Whose rows these are, of ``world_size``.
        world_size: How many ranks share an epoch.
        pad: Whether the last rows are repeated, so that every rank has as many; if
            not, up to ``world_size - 1`` rows of an epoch are left out.
    """

    shuffle: bool = False
    seed: int = 0
    window_bytes: int = 64 << 20
    rank: int = 0
    world_size: int = 1
    pad: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise UsageError(f"there is no rank {self.rank} of {self.world_size}")
        if self.window_bytes < 1:
            raise UsageError("a window must have at least one byte")


@dataclass(frozen=True, slots=True)
class RowRun:
    """Consecutive rows ``[first, end)`` of one shard, counted there."""

    shard: int
    first: int
    end: int

    @property
    def rows(self) -> int:
        """How many."""
        return self.end - self.first


@dataclass(frozen=True)
class Window:
    """Rows that are in memory together.

    Attributes:
        number: In its epoch, of this rank.
        start: Position of its first row in the rank's epoch.
        runs: Its rows as they lie in memory, one after another.
        order: In which order they are read: indices into them.
    """

    number: int
    start: int
    runs: tuple[RowRun, ...]
    order: Indices

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return len(self.order)


class EpochOrder:
    """One rank's order of one epoch.

    Args:
        layout: What there is.
        options: How it is shuffled and shared.
        epoch: Which epoch.
    """

    def __init__(self, layout: Layout, options: OrderOptions, epoch: int) -> None:
        self._layout = layout
        self._options = options
        self._epoch = epoch
        first, self.rows = _rank_rows(layout, options)
        self._pieces = self._pieces_of(first, first + self.rows)
        self._piece_starts = _starts(self._pieces[:, 1] - self._pieces[:, 0])
        unit_bytes = max(shard.record_bytes for shard in layout.shards)
        window_bytes = options.window_bytes
        if not options.shuffle:
            window_bytes //= 8  # nothing to mix: the first rows come sooner
        self.units_per_window = max(1, window_bytes // unit_bytes)

    @property
    def window_count(self) -> int:
        """Windows of this rank's epoch."""
        return -(-len(self._pieces) // self.units_per_window)

    def windows(self, position: int = 0) -> Iterator[Window]:
        """The windows from the one on that holds the row at ``position``."""
        piece = int(np.searchsorted(self._piece_starts, position, side="right")) - 1
        for number in range(piece // self.units_per_window, self.window_count):
            yield self._window(number)

    def row_numbers(self, window: Window) -> Indices:
        """The numbers of a window's rows among all rows, in reading order."""
        starts = self._layout.shard_starts
        runs = [
            np.arange(run.first, run.end) + starts[run.shard] for run in window.runs
        ]
        return np.concatenate(runs)[window.order]

    def _window(self, number: int) -> Window:
        first = number * self.units_per_window
        pieces = self._pieces[first : first + self.units_per_window]
        rows = [self._numbers(int(start), int(end)) for start, end in pieces]
        runs = [self._run(int(part[0]), int(part[-1]) + 1) for part in rows]
        begins = _starts([run.rows for run in runs])
        order = np.concatenate(
            [part - part[0] + at for part, at in zip(rows, begins, strict=False)]
        )
        if self._options.shuffle:
            seed = self._seed(number, self._options.rank)
            order = order[permutation(len(order), seed)]
        return Window(number, int(self._piece_starts[first]), tuple(runs), order)

    def _numbers(self, start: int, end: int) -> Indices:
        """The numbers, among all rows, of the rows ``[start, end)`` that are read."""
        chosen = self._layout.chosen
        return np.arange(start, end) if chosen is None else chosen[start:end]

    def _run(self, start: int, end: int) -> RowRun:
        shard, first = self._layout.place(start)
        return RowRun(shard, first, first + end - start)

    def _pieces_of(self, first: int, end: int) -> Indices:
        """Rows ``[first, end)`` of the permuted units, as ``(start, end)`` by unit."""
        starts = self._layout.unit_starts
        units = np.arange(len(starts) - 1)
        if self._options.shuffle:
            units = permutation(len(units), self._seed(_WINDOW, 0))
        ends = np.cumsum(starts[units + 1] - starts[units])
        pieces = []
        total = int(ends[-1])
        for lap in range(first // total, -(-end // total)):  # padding goes round again
            low, high = max(first - lap * total, 0), min(end - lap * total, total)
            left = int(np.searchsorted(ends, low, side="right"))
            right = int(np.searchsorted(ends, high, side="left")) + 1
            chosen = units[left:right]
            cut = np.stack([starts[chosen], starts[chosen + 1]], axis=1)
            cut[-1, 1] -= ends[right - 1] - high
            cut[0, 0] = starts[chosen[0] + 1] - (ends[left] - low)
            pieces.append(cut)
        return np.concatenate(pieces)

    def _seed(self, number: int, rank: int) -> bytes:
        parts = (self._options.seed, self._epoch, rank, number)
        return labelled("sealift read order", *(str(part).encode() for part in parts))


def _rank_rows(layout: Layout, options: OrderOptions) -> tuple[int, int]:
    """Where a rank's rows begin in an epoch, and how many they are."""
    share, rest = divmod(layout.rows, options.world_size)
    share += bool(rest and options.pad)
    if share == 0:
        raise UsageError(
            f"{layout.rows:,} rows are too few for {options.world_size} ranks",
            fix="Use fewer ranks, or drop_last=False",
        )
    return options.rank * share, share


def permutation(length: int, seed: bytes) -> Indices:
    """A permutation of ``0 .. length - 1``, the same wherever it is computed."""
    bits = np.random.PCG64(list(seed)).random_raw(length)
    order = np.argsort(bits)
    ranked = bits[order]
    if (ranked[1:] == ranked[:-1]).any():  # about once in a billion windows
        order = np.argsort(bits, kind="stable")
    return order.astype(np.int64, copy=False)


def _starts(lengths: list[int] | Indices) -> Indices:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def _unit_starts(shard: ShardLayout, row_bytes: int) -> Indices:
    """The first row that begins in each record, or after it."""
    records = -(-shard.rows * row_bytes // shard.record_bytes)
    firsts = -(-np.arange(records, dtype=np.int64) * shard.record_bytes // row_bytes)
    return np.minimum(firsts, shard.rows)


STATE_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class LoaderState:
    """A position, and the order it is a position in.

    Attributes:
        epoch: From 0.
        position: Rows of this rank's epoch that were handed out.
        shards: Fingerprint of the shards, in their order.
        shuffle, seed, window_bytes, world_size, pad: See ``OrderOptions``.
    """

    epoch: int
    position: int
    shards: str
    shuffle: bool
    seed: int
    window_bytes: int
    world_size: int
    pad: bool

    def to_plain(self) -> dict[str, Any]:
        """The dict that ``parse_state`` reads."""
        return {"version": STATE_VERSION, **asdict(self)}

    def demand_same_order(self, current: LoaderState) -> None:
        """Demand that ``current`` counts in the same order.

        At the start of an epoch it may be another one: there is nothing to go on from.

        Raises:
            UsageError: code ``loader-state``; names what differs.
        """
        counted = ("shards", "shuffle", "seed", "window_bytes", "world_size", "pad")
        for name in counted if self.position else ("shards",):
            saved, here = getattr(self, name), getattr(current, name)
            if saved != here:
                raise UsageError(
                    "the state belongs to another loader, or to other sealed files",
                    why=f"its {name} was {saved}, and this loader's is {here}",
                    code="loader-state",
                )


def parse_state(plain: object) -> LoaderState:
    """Read what ``to_plain`` made.

    Raises:
        MalformedError: code ``bad-loader-state``; names the key.
    """
    known = {field.name: field.type for field in fields(LoaderState)}
    if not isinstance(plain, Mapping) or plain.get("version") != STATE_VERSION:
        raise _bad("version", "it is not a loader state of version 1")
    for name in plain.keys() - known.keys() - {"version"}:
        raise _bad(str(name), "unknown key")
    for name, kind in known.items():
        if type(plain.get(name)).__name__ != kind:
            raise _bad(name, f"it is not {kind}")
    state = LoaderState(**{name: plain[name] for name in known})
    if state.epoch < 0 or state.position < 0:
        raise _bad("position", "it is negative")
    return state


def _bad(name: str, why: str) -> MalformedError:
    return MalformedError(
        "this is not the state of a sealed loader",
        field=name,
        why=why,
        code="bad-loader-state",
    )
