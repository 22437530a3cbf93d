"""A .npz file: one .npy array per field."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from sealift.data.schema.rows import Columns, bad_table
from sealift.data.schema.schema import Schema
from sealift.data.sources.arrays import (
    ARCHIVE_ERRORS,
    ArrayTable,
    Layout,
    block_lengths,
    check_layouts,
    chosen_layouts,
    demand_end,
    read_layout,
    read_rows,
    schema_from_layouts,
)
from sealift.data.sources.source import (
    Source,
    SourceOptions,
    refuse_image_options,
    with_suffix,
)


def _open(place: str, schema: Schema, options: SourceOptions) -> ArrayTable:
    refuse_image_options(options, "a .npz file")
    path = Path(place)
    layouts = chosen_layouts(_layouts(path), options)
    rows = check_layouts(layouts, schema, path.name)

    def read(rows_per_block: int) -> Iterator[Columns]:
        with ExitStack() as stack:
            archive = stack.enter_context(_archive(path))
            streams = {
                field.name: stack.enter_context(
                    archive.open(f"{options.column(field.name)}.npy")
                )
                for field in schema.fields
            }
            for name, stream in streams.items():
                if read_layout(stream, path.name) != layouts[name]:
                    raise bad_table(f"{path.name} changed while it was read")
            for count in block_lengths(rows, rows_per_block):
                yield {
                    name: read_rows(stream, *layouts[name], count, path.name)
                    for name, stream in streams.items()
                }
            for stream in streams.values():
                demand_end(stream, path.name)

    return ArrayTable(rows, read)


def _infer(place: str, options: SourceOptions) -> Schema:
    path = Path(place)
    return schema_from_layouts(chosen_layouts(_layouts(path), options), path.name)


def _layouts(path: Path) -> dict[str, Layout]:
    with _archive(path) as archive:
        return {
            _array_name(entry, path.name): _member_layout(
                archive, entry.filename, path.name
            )
            for entry in archive.infolist()
        }


def _array_name(entry: zipfile.ZipInfo, source: str) -> str:
    """The array's name; demands what numpy writes.

    Other ways to compress expand some thousand bytes to any size in one step.
    """
    if not entry.filename.endswith(".npy"):
        raise bad_table(f"{source}: {entry.filename[:80]} is not a .npy array")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise bad_table(
            f"{source}: {entry.filename[:80]} is compressed in a way that numpy does "
            "not write",
            fix="Save it with numpy.savez or savez_compressed",
        )
    return entry.filename.removesuffix(".npy")


def _archive(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (*ARCHIVE_ERRORS, ValueError) as error:
        raise bad_table(f"{path.name} is not a .npz file", why=str(error)) from error


def _member_layout(archive: zipfile.ZipFile, member: str, source: str) -> Layout:
    try:
        with archive.open(member) as stream:
            return read_layout(stream, source)
    except ARCHIVE_ERRORS as error:
        raise bad_table(f"{source} is damaged", why=str(error)) from error


SOURCE = Source(".npz file", with_suffix(".npz"), _open, _infer)
