"""Parquet: a file, or a folder of them in the order of their names (extra ``tables``)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sealift.data.schema.rows import bad_table
from sealift.data.schema.schema import Schema
from sealift.data.sources.arrowtable import (
    ArrowTable,
    check_columns,
    demand_distinct,
    reading,
    schema_of_arrow,
)
from sealift.data.sources.extras import require
from sealift.data.sources.source import Source, SourceOptions, refuse_image_options

SUFFIXES = (".parquet", ".pq")


def _claims(place: str) -> bool:
    path = Path(place)
    if path.is_dir():
        return any(_is_parquet(each) for each in path.iterdir())
    return _is_parquet(path)


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def _open(place: str, schema: Schema, options: SourceOptions) -> ArrowTable:
    refuse_image_options(options, "Parquet")
    path = Path(place)
    files = _files(path)
    rows = sum(file.metadata.num_rows for file in _opened(files))
    check_columns(_kinds(files).names, schema, options, path.name)

    def batches(rows_per_batch: int, columns: list[str]) -> Iterator[Any]:
        for each, file in zip(files, _opened(files), strict=True):
            with reading(each.name):
                yield from file.iter_batches(rows_per_batch, columns=columns)

    return ArrowTable(path.name, schema, rows, batches, options)


def _infer(place: str, options: SourceOptions) -> Schema:
    path = Path(place)
    return schema_of_arrow(_kinds(_files(path)), options, path.name)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(each for each in path.iterdir() if _is_parquet(each))


def _opened(files: list[Path]) -> Iterator[Any]:
    parquet = require("pyarrow.parquet", extra="tables", what="Parquet")
    for path in files:
        with reading(path.name):
            file = parquet.ParquetFile(path, page_checksum_verification=True)
        with file:
            yield file


def _kinds(files: list[Path]) -> Any:
    """The one Arrow schema of all files."""
    first = None
    for path, file in zip(files, _opened(files), strict=True):
        kinds = file.schema_arrow.remove_metadata()
        if first is not None and kinds != first:
            raise bad_table(
                f"{path.name} has other columns than {files[0].name}",
                fix="Seal them one by one",
            )
        first = kinds
        demand_distinct(kinds.names, path.name)
    return first


SOURCE = Source("Parquet file or folder", _claims, _open, _infer)
