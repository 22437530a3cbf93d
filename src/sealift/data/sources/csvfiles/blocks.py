"""A text table in blocks of whole rows, each of them parsed on some core.

pyarrow's reader is much faster than Python's and less strict. So a file is *regular* only if
both read the same rows: every row has one cell per column, a quoted cell begins and ends
at a delimiter or a line's end, lines end alike, and no cell is too long for Python's
reader. What is not regular is read row by row (``structure``), which also says what is
wrong with it, and where.
"""

from __future__ import annotations

import csv
import os
import re
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrowcsv

_BLOCK_BYTES: Final = 4 << 20
_MAX_BLOCK_BYTES: Final = 64 << 20  # a quoted cell that is never closed ends nowhere
_MAX_CELL_BYTES: Final = 1 << 16  # half of what Python's reader takes
_QUOTE, _LINE_END, _RETURN = b'"\n\r'
_UTF_8_MARK: Final = b"\xef\xbb\xbf"

T = TypeVar("T")


class IrregularError(Exception):
    """Rows have to be read one by one."""


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


def in_order(
    pieces: Iterator[bytes], work: Callable[[bytes], T], threads: int | None = None
) -> Generator[T]:
    """``work`` of every piece, in their order, on several cores at once.

    At most as many pieces as there are cores, and one, are in memory.
    """
    threads = threads or cores()
    pending: deque[Future[T]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for piece in pieces:
                pending.append(pool.submit(work, piece))
                if len(pending) > threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for each in pending:
                each.cancel()


def row_blocks(path: Path, encoding: str) -> Generator[bytes]:
    """A regular file in blocks of whole rows, as UTF-8 without a mark.

    Raises:
        IrregularError: if a quoted cell has no end.
    """
    if encoding == "utf-8-sig":
        with path.open("rb") as raw:
            yield from _whole_rows(raw.read, raw.readline)
        return
    with path.open(encoding=encoding, newline="") as text:
        yield from _whole_rows(
            lambda most: text.read(most).encode(),
            lambda most: text.readline(most).encode(),
        )


def _whole_rows(
    read: Callable[[int], bytes], readline: Callable[[int], bytes]
) -> Iterator[bytes]:
    first = True
    while block := read(_BLOCK_BYTES):
        if first:
            block, first = block.removeprefix(_UTF_8_MARK), False
        parts = [block, readline(_MAX_BLOCK_BYTES)]
        quotes, size = sum(part.count(b'"') for part in parts), len(block)
        while quotes % 2 and (line := readline(_MAX_BLOCK_BYTES)):
            parts.append(line)
            quotes, size = quotes + line.count(b'"'), size + len(line)
            if size > _MAX_BLOCK_BYTES:
                break
        if quotes % 2:
            raise IrregularError
        yield b"".join(parts)


def parsed(
    block: bytes, delimiter: str, columns: int, chosen: Sequence[int] | None = None
) -> pa.RecordBatch:
    """The rows of a block as columns of text, named by their places.

    Args:
        block: Whole rows, UTF-8.
        delimiter: Between cells.
        columns: Cells of a row.
        chosen: Places of the columns that are wanted; None for all.

    Raises:
        IrregularError: if a row has another number of cells.
    """
    names = [str(place) for place in range(columns)]
    wanted = names if chosen is None else [str(at) for at in chosen]
    if not block.strip(b"\r\n"):
        nothing = [pa.array([], pa.string())] * len(wanted)
        return pa.RecordBatch.from_arrays(nothing, names=wanted)
    unlike = []

    def refuse(row: Any) -> str:
        unlike.append(row.actual_columns)
        return "skip"

    try:
        table = arrowcsv.read_csv(
            pa.BufferReader(block),
            read_options=arrowcsv.ReadOptions(
                use_threads=False, block_size=len(block) + 1, column_names=names
            ),
            parse_options=arrowcsv.ParseOptions(
                delimiter=delimiter,
                newlines_in_values=b'"' in block,
                invalid_row_handler=refuse,
            ),
            convert_options=arrowcsv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                include_columns=wanted,
            ),
        )
    except pa.ArrowInvalid as error:
        raise IrregularError from error
    if unlike:
        raise IrregularError
    return table.combine_chunks().to_batches()[0]


def first_row(path: Path, encoding: str, delimiter: str) -> list[str]:
    """The header of a file, as Python's reader has it.

    Raises:
        IrregularError: if there is none, or its reader refuses it.
    """
    with closing(row_blocks(path, encoding)) as blocks:
        text = StringIO(next(blocks, b"").decode(), newline="")
    try:
        rows = csv.reader(text, delimiter=delimiter, strict=True)
        return next(row for row in rows if row)
    except (csv.Error, StopIteration) as error:
        raise IrregularError from error


def count_rows(path: Path, encoding: str, delimiter: str, columns: int) -> int:
    """Rows of a regular file, its header among them.

    Raises:
        IrregularError: if it is not regular, or has a row of empty cells alone.
    """
    count = partial(_count_in_block, delimiter=delimiter, columns=columns)
    with closing(in_order(row_blocks(path, encoding), count)) as counts:
        return sum(counts)


def _count_in_block(block: bytes, *, delimiter: str, columns: int) -> int:
    if b"\r" in block and block.count(b"\r") != block.count(b"\r\n"):
        raise IrregularError
    if b'"' in block:
        _demand_plain_quotes(block, delimiter)
    _demand_short_cells(block, delimiter)
    first = parsed(block, delimiter, columns, chosen=[0]).column(0)
    # Only where the first cell of a row is empty may all of them be.
    if columns > 1 and pc.min(pc.binary_length(first)).as_py() == 0:
        _demand_no_empty_row(block, delimiter.encode(), columns)
    return len(first)


def _demand_plain_quotes(block: bytes, delimiter: str) -> None:
    """Demand that quotes stand at a cell's ends, or doubled within quotes.

    A block begins outside of quotes, so every other one opens.
    """
    text = np.frombuffer(b"\n" + block + b"\n", dtype=np.uint8)
    quotes = np.flatnonzero(text == _QUOTE)
    opening, ending = quotes[0::2], quotes[1::2]
    ends = np.array([_LINE_END, _RETURN, ord(delimiter), _QUOTE], dtype=np.uint8)
    # A quote beside another is doubled if that one ended and this one opens again.
    before, after = text[opening - 1], text[ending + 1]
    again = before == _QUOTE
    doubled = np.zeros(len(opening), dtype=bool)
    doubled[1:] = opening[1:] == ending[:-1] + 1
    closed = after == _QUOTE
    reopened = np.zeros(len(ending), dtype=bool)
    reopened[:-1] = doubled[1:]
    plain = np.isin(before, ends).all() and np.isin(after, ends).all()
    if not plain or (again & ~doubled).any() or (closed & ~reopened).any():
        raise IrregularError


def _demand_short_cells(block: bytes, delimiter: str) -> None:
    """In any so many bytes a cell ends, so none is longer than twice as many."""
    mark = delimiter.encode()
    for start in range(0, len(block) - _MAX_CELL_BYTES, _MAX_CELL_BYTES):
        end = start + _MAX_CELL_BYTES
        if block.find(mark, start, end) < 0 and block.find(b"\n", start, end) < 0:
            raise IrregularError


def _demand_no_empty_row(block: bytes, mark: bytes, columns: int) -> None:
    cell = b'(?:"")?' + re.escape(mark)
    row = b"^(?:" + cell + b"){%d}" % (columns - 1) + b'(?:"")?\r?$'
    if re.search(row, block, re.MULTILINE):
        raise IrregularError
