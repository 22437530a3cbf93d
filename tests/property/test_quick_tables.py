"""What reads whole columns gives what reads every cell gives, or leaves the column to it."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sealift.data.schema.cells import CellRules
from sealift.data.schema.rows import unpack
from sealift.data.schema.schema import Field
from sealift.data.sources.csvfiles import blocks, draft, reader, structure
from sealift.data.sources.csvfiles.blocks import IrregularError
from sealift.data.sources.csvfiles.cells import DecimalMarks, read_cells
from sealift.data.sources.csvfiles.quick import QuickMarks, read_quickly
from sealift.data.sources.problems import Problems
from sealift.data.sources.source import NO_OPTIONS
from sealift.data.sources.table import check_tables, draft_schema, open_table
from sealift.errors import MalformedError
from tests.sim.examples import examples

NUMBERS = st.one_of(
    st.integers(-(2**65), 2**65).map(str),
    st.integers(-200, 2000).map(str),
    st.floats(allow_nan=False).map(repr),
    st.floats(-100, 100).map("{:.3f}".format),
    st.integers(0, 999).map("0{}".format),
)
ODD = st.sampled_from([
    "", "na", "NA", "n/a", "NULL", "nan", "-nan", "inf", "Infinity", "nan(1)", "+1", "+-1",
    "-+1", "++1", "0x1F", "0X1f", "1.", ".5", "1,5", "1,234", "1.234", "1.234,5", "1.0",
    "1.00", "1.000", "007", "1e400", "1e-400", "1E5", " 1", "1\t", "\u00a07", "\u0663", "1_0",
    "true", "FALSE", "a", "b ", "männlich", "2024-12-31", "31.12.2024", "12.5", "1e5,0", "-",
])  # fmt: skip
COLUMNS = st.one_of(
    st.lists(NUMBERS, min_size=1, max_size=40),
    st.lists(st.one_of(NUMBERS, ODD), min_size=1, max_size=40),
    st.builds(lambda cells, odd: [*cells * 4, odd], st.lists(NUMBERS, min_size=1), ODD),
    st.lists(ODD, min_size=1, max_size=40),
)
FIELDS = [
    Field("x", "float64"), Field("x", "float32"), Field("x", "float32", finite=False),
    Field("x", "float64", cells=CellRules(empty=0.5)), Field("x", "int64"), Field("x", "int8"),
    Field("x", "int64", cells=CellRules(empty=-1)), Field("x", "uint8"), Field("x", "bool"),
    Field("x", "bool", cells=CellRules(empty=False)),
    Field("x", "int64", classes=3, cells=CellRules(categories=("a", "NA", "b"), empty="b")),
    Field("x", "int32", cells=CellRules(date="%Y-%m-%d", empty=0)),
]  # fmt: skip


@examples(300)
@given(COLUMNS, st.sampled_from(FIELDS))
def test_a_column_is_the_same_however_it_is_read(
    cells: list[str], field: Field
) -> None:
    column = pa.array(cells, pa.string())
    quick, slow = read_quickly(column, field), read_cells(column, field)
    if quick is not None:
        assert not slow.wrong.any()
        assert quick.numbers.tobytes() == slow.numbers.tobytes()
        assert quick.numbers.dtype == slow.numbers.dtype
        assert (quick.empty == slow.empty).all()


@examples(300)
@given(st.lists(COLUMNS, min_size=1, max_size=3), st.booleans())
def test_marks_matter_the_same(columns: list[list[str]], commas: bool) -> None:
    field = Field("x", "float64", finite=False, cells=CellRules(empty=0))
    quick, slow = QuickMarks(commas), DecimalMarks()
    for place, cells in enumerate(columns):
        read = read_cells(pa.array(cells, pa.string()), field)
        if read.wrong.any():
            return
        quick.look(read.texts, place)
        if commas:
            slow.look(read, place, 0)
        else:
            slow.look_at_points(read, place, 0)
    found = any(slow.doubtful())
    assert (quick.matter or not found) if commas else quick.matter == found


def text_of(header: list[str], columns: list[list[str]], mark: str, end: str) -> str:
    rows = min(map(len, columns))
    lines = [header, *([each[row] for each in columns] for row in range(rows))]
    return "".join(
        mark.join(
            f'"{cell}"' if mark in cell or cell == "NA" else cell for cell in line
        )
        + end
        for line in lines
    )


def outcome(path: Path) -> Any:
    """The draft, and the rows; or what is wrong."""
    try:
        drafted = draft_schema([path], NO_OPTIONS)
        if drafted.fits:
            check_tables([path], drafted.schema, NO_OPTIONS)
        table = open_table(path, drafted.schema)
        raw = b"".join(table.blocks())
    except MalformedError as error:
        return str(error), error.problems, error.code
    rows = {
        name: column.tobytes() for name, column in unpack(raw, drafted.schema).items()
    }
    return drafted.schema, drafted.notes, rows


def slowly(path: Path) -> Any:
    """The same, row by row and cell by cell."""
    with pytest.MonkeyPatch.context() as patched:

        def irregular(*_: object) -> None:
            raise IrregularError

        patched.setattr(blocks, "first_row", irregular)
        patched.setattr(reader, "read_quickly", lambda column, field: None)
        patched.setattr(draft._Column, "look_quickly", lambda self, column: False)
        return outcome(path)


@examples(150)
@given(
    st.lists(COLUMNS, min_size=1, max_size=4),
    st.sampled_from([",", ";", "\t"]),
    st.sampled_from(["\n", "\r\n"]),
)
def test_a_table_is_the_same_however_it_is_read(
    columns: list[list[str]], mark: str, end: str
) -> None:
    header = [f"column{place}x" for place in range(len(columns))]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_text(text_of(header, columns, mark, end), "utf-8", newline="")
        assert outcome(path) == slowly(path)


PIECES = st.sampled_from(
    [b"a", b"1", b",", b",", b"\n", b"\n", b"\r\n", b'"', b'""', b" ", b"\r"]
)


@examples(500)
@given(st.lists(PIECES, max_size=40).map(b"".join))
def test_rows_are_those_of_pythons_reader(body: bytes) -> None:
    """A file that is taken for regular has the rows that Python's strict reader finds."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_bytes(b"x,y\n" + body)
        assert looked_at(path, structure.look_at) == looked_at(path, careful)


def careful(path: Path, problems: Problems) -> structure.Structure:
    encoding = structure._encoding(path)
    mark = structure._delimiter(path, encoding)
    return structure._look_at_rows(path, encoding, mark, problems)


def looked_at(path: Path, look: Any) -> object:
    problems = Problems("t")
    try:
        found = look(path, problems)
    except MalformedError as error:
        return str(error)
    cells = [
        [column.to_pylist() for column in batch.columns]
        for _, batch in reader.batches(found)
        if len(batch)
    ]
    read = [[*chain(*parts)] for parts in zip(*cells, strict=True)]
    return found.header, found.rows, found.ragged, found.commas, problems.total, read


@pytest.mark.parametrize("blocks", [16, 64])
def test_blocks_end_between_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    monkeypatch.setattr("sealift.data.sources.csvfiles.blocks._BLOCK_BYTES", blocks)
    path = tmp_path / "t.csv"
    lines = [f'{row};"a ""{row}"" \n b";{row / 8}' for row in range(200)]
    path.write_text("\ufeff" + "n;t;x\n" + "\n".join(lines), "utf-8")
    found = structure.look_at(path, Problems("t"))
    assert found.regular
    assert found.rows == 200
    rows = [row for _, batch in reader.batches(found) for row in batch.to_pylist()]
    assert rows[7] == {"0": "7", "1": 'a "7" \n b', "2": "0.875"}
    assert len(rows) == 200
    drafted = draft_schema([path], NO_OPTIONS).schema
    columns = unpack(b"".join(open_table(path, drafted).blocks()), drafted)
    assert np.array_equal(columns["n"], np.arange(200))
