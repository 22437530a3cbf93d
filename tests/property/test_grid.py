"""The grid: two ranges that are let through differ by no row, or by a cell at least."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sealift.errors import PolicyError
from sealift.release.agreement import Resource
from tests.worlds.consortium import make_consortium

MODEL = make_consortium(("ada", "bern", "cleo")).agreement.resources[0]
ROWS = st.integers(1, 60)
CELLS = st.integers(1, 24)


def table(rows: int, cell_rows: int) -> Resource:
    return replace(MODEL, rows=rows, cell_rows=cell_rows, total_bytes=rows * 16)


def passes(resource: Resource, first: int, rows: int) -> bool:
    try:
        resource.require_cells(first, rows)
    except PolicyError as error:
        assert error.code == "off-grid"  # noqa: PT017
        return False
    return True


def permitted(resource: Resource) -> list[frozenset[int]]:
    """Every range that is let through, as the rows that are in it."""
    around = range(-2, resource.rows + 3)
    return [
        frozenset(range(first, first + rows))
        for first in around
        for rows in around
        if passes(resource, first, rows)
    ]


@given(rows=ROWS, cell_rows=CELLS)
def test_two_ranges_differ_by_a_cell_at_least(rows: int, cell_rows: int) -> None:
    found = permitted(table(rows, cell_rows))
    cells = max(1, rows // cell_rows)
    assert len(found) == cells * (cells + 1) // 2
    assert frozenset(range(rows)) in found
    least = min(rows, cell_rows)
    for one in found:
        assert one <= frozenset(range(rows))
        assert all(len(one ^ other) >= least for other in found if other != one)


@given(rows=ROWS, cell_rows=CELLS)
def test_cells_are_as_long_as_said(rows: int, cell_rows: int) -> None:
    """Each has ``cell_rows`` rows, the last one up to twice as many less one."""
    resource = table(rows, cell_rows)
    edges = [resource.edge(cell) for cell in range(resource.cells + 1)]
    sizes = [end - start for start, end in pairwise(edges)]
    assert (edges[0], edges[-1]) == (0, rows)
    assert all(size == cell_rows for size in sizes[:-1])
    assert sizes[-1] == rows if rows < cell_rows else sizes[-1] < 2 * cell_rows
    assert resource.longest_cell_bytes == max(sizes) * resource.row_bytes


def test_without_the_grid_one_row_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: what was asked for once, and once more with one row more."""
    resource = table(60, 16)
    assert not passes(resource, 0, 17)
    monkeypatch.setattr(Resource, "require_cells", lambda *_: None)
    one, other = (frozenset(range(rows)) for rows in (16, 17))
    assert {one, other} <= set(permitted(resource))
    assert len(one ^ other) == 1
