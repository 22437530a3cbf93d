"""The texts: private, disjoint, the same every time, refused where they are not."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from sealift.data.schema.document import load_schema
from sealift.data.sources.table import open_table
from sealift.demo.tasks import (
    PACKAGES_OF,
    ROWS_OF,
    WINDOW,
    source_parts,
    write_sources,
)
from sealift.errors import UnavailableError

LIBRARY = Path(sysconfig.get_path("stdlib"))


def test_no_file_is_in_two_parts() -> None:
    parts = source_parts()
    files = [name for part in parts for name in part.files]
    assert len(files) == len(set(files))
    assert {(part.owner, part.part) for part in parts} == {
        (owner, part) for owner in PACKAGES_OF for part in ROWS_OF
    }


def test_every_owner_has_only_its_packages() -> None:
    for part in source_parts():
        tops = {name.split("/")[0] for name in part.files}
        assert tops <= set(PACKAGES_OF[part.owner])


def test_rows_are_windows_of_the_files_that_are_named() -> None:
    for part in source_parts():
        assert part.text.shape == (ROWS_OF[part.part], WINDOW)
        whole = b"".join((LIBRARY / name).read_bytes() for name in part.files)
        assert all(row.tobytes() in whole for row in part.text)


def test_they_are_the_same_every_time() -> None:
    first, second = source_parts(), source_parts()
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one.text, other.text)


def test_what_is_written_fits_its_schema(tmp_path: Path) -> None:
    write_sources(tmp_path)
    for owner in PACKAGES_OF:
        schema = load_schema(tmp_path / owner / "schema.toml")
        for part, rows in ROWS_OF.items():
            table = open_table(tmp_path / owner / f"{part}.npz", schema)
            assert len(b"".join(table.blocks())) == rows * WINDOW


def test_a_python_without_sources_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="0 rows for north; 768"):
        source_parts(tmp_path)


def test_too_few_sources_are_not_stretched(tmp_path: Path) -> None:
    shutil.copytree(LIBRARY / "json", tmp_path / "asyncio")
    with pytest.raises(UnavailableError, match="rows for north; 768") as caught:
        source_parts(tmp_path)
    assert caught.value.code == "sources-missing"
