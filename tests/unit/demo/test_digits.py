from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sealift.data.schema.document import load_schema
from sealift.data.sources.table import open_table
from sealift.demo.tasks import (
    CLASSES_OF,
    ROW_BYTES,
    digits_parts,
    write_digits,
)
from sealift.errors import UnavailableError

pytest.importorskip("sklearn")


def test_parts_are_disjoint_and_nothing_is_lost() -> None:
    images = np.concatenate([part.images for part in digits_parts()])
    assert len(set(images.tolist())) == len(images) == 1797


def test_every_owner_lacks_classes_and_measures_what_it_has() -> None:
    for part in digits_parts():
        assert set(part.label.tolist()) == set(CLASSES_OF[part.owner])
        assert len(CLASSES_OF[part.owner]) < 7
        assert len(part.label) > (350 if part.part == "train" else 120)


def test_held_out_parts_cover_all_classes() -> None:
    heldout = [part.label for part in digits_parts() if part.part == "heldout"]
    assert set(np.concatenate(heldout).tolist()) == set(range(10))


def test_the_split_is_the_same_every_time() -> None:
    again = [part.images.tolist() for part in digits_parts()]
    assert [part.images.tolist() for part in digits_parts()] == again


def test_files_hold_the_rows_of_the_parts(tmp_path: Path) -> None:
    write_digits(tmp_path)
    for part in digits_parts():
        home = tmp_path / part.owner
        schema = load_schema(home / "schema.toml")
        table = open_table(home / f"{part.part}.npz", schema)
        assert len(b"".join(table.blocks())) == len(part.label) * ROW_BYTES


def test_without_scikit_learn_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sealift.demo.tasks.find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"pip install '\.\[demo\]'"):
        digits_parts()


def test_an_unwritable_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "north").write_text("a file where a folder should be")
    with pytest.raises(UnavailableError, match="write under"):
        write_digits(tmp_path)
