"""The .npy form of an array: one header, then its numbers. Used for .npy and .npz.

Nothing is unpickled: object arrays are refused by their header, before anything else
is read.
"""

from __future__ import annotations

import math
import struct
import tokenize
import zipfile
import zlib
from typing import IO, Any, Final

import numpy as np
from numpy.lib import format as npy_format

from sealift.data.schema.rows import Array, bad_table
from sealift.data.sources.arraytable import Layout

MAX_NPY_HEADER_BYTES: Final = 10_000  # numpy's own limit

# What zipfile and numpy let through when their input is damaged; found by fuzzing.
ARCHIVE_ERRORS: Final = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    struct.error,
)
_HEADER_ERRORS: Final = (
    ValueError,
    KeyError,
    TypeError,
    SyntaxError,
    tokenize.TokenError,
)


def read_layout(stream: IO[bytes], source: str) -> Layout:
    """Read the header of a .npy stream, up to the first byte of its content."""
    try:
        version = npy_format.read_magic(stream)
        read_header = {
            (1, 0): npy_format.read_array_header_1_0,
            (2, 0): npy_format.read_array_header_2_0,
        }[version]
        shape, fortran, dtype = read_header(
            stream, max_header_size=MAX_NPY_HEADER_BYTES
        )
    except ARCHIVE_ERRORS as error:
        raise bad_table(f"{source} is damaged", why=str(error)) from error
    except _HEADER_ERRORS as error:
        raise bad_table(f"{source} is not a .npy array", why=str(error)) from error
    if dtype.hasobject:
        raise bad_table(
            f"{source} holds Python objects", fix="Save plain numbers; no pickles here"
        )
    if fortran and len(shape) > 1:
        raise bad_table(
            f"{source} is in Fortran order", fix="Save np.ascontiguousarray(array)"
        )
    return dtype, shape


def read_rows(
    stream: IO[bytes],
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    count: int,
    source: str,
) -> Array:
    """Read the next ``count`` rows.

    Raises:
        MalformedError: if the stream ends before.
    """
    wanted = count * math.prod(shape[1:]) * dtype.itemsize
    content = bytearray()
    while len(content) < wanted:
        part = _read(stream, wanted - len(content), source)
        if not part:
            raise bad_table(f"{source} ends before its last row", fix="Save it again")
        content += part
    return np.frombuffer(content, dtype=dtype).reshape(count, *shape[1:])


def _read(stream: IO[bytes], size_bytes: int, source: str) -> bytes:
    try:
        return stream.read(size_bytes)
    except ARCHIVE_ERRORS as error:
        raise bad_table(f"{source} is damaged", why=str(error)) from error


def demand_end(stream: IO[bytes], source: str) -> None:
    """Refuse bytes after the last row; in an archive this also checks the sum."""
    if _read(stream, 1, source):
        raise bad_table(f"{source} has bytes after its last row", fix="Save it again")
