"""What lies outside of some folders is refused by name; what lies nowhere is missing."""

from __future__ import annotations

import importlib.machinery
import json
import sys
from importlib.metadata import DistributionFinder
from pathlib import Path

import pytest

from sealift.train.sandbox.inventory import installed_places
from sealift.train.sandboxed.imports import (
    ForeignImportError,
    ImportGate,
)

PATH = importlib.machinery.PathFinder


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """An installed one and a foreign one, both in Python's path."""
    inside, outside = tmp_path / "inside", tmp_path / "inside-not"
    for folder in (inside, outside):
        (folder / f"{folder.name.replace('-', '_')}_package").mkdir(parents=True)
        (folder / f"{folder.name.replace('-', '_')}_module.py").write_text("")
    return inside, outside


@pytest.fixture
def gate(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> ImportGate:
    monkeypatch.setattr(sys, "path", [*map(str, folders), *sys.path])
    python = (importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter)
    return ImportGate([str(folders[0])], [*python, PATH])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "name", ["inside_module", "inside_package", "sys", "zipimport"]
)
def test_installed_modules_and_pythons_own_are_found(
    gate: ImportGate, name: str
) -> None:
    assert gate.find_spec(name, None) is not None


@pytest.mark.parametrize("name", ["inside_not_module", "inside_not_package", "json"])
def test_modules_elsewhere_are_refused(gate: ImportGate, name: str) -> None:
    """Control: without the gate they are found."""
    assert PATH.find_spec(name) is not None
    with pytest.raises(ForeignImportError):
        gate.find_spec(name, None)


def test_submodules_are_judged_by_where_they_lie(
    gate: ImportGate, folders: tuple[Path, Path]
) -> None:
    """A package inside whose path was changed leads nowhere else."""
    with pytest.raises(ForeignImportError):
        gate.find_spec("inside_package.inside_not_module", [str(folders[1])])
    dotted = f"{folders[0]}/../inside-not"
    with pytest.raises(ForeignImportError):
        gate.find_spec("inside_package.inside_not_module", [dotted])


def test_missing_modules_are_missing(gate: ImportGate) -> None:
    assert gate.find_spec("no_such_module", None) is None


def test_caches_of_the_finders_are_dropped(
    gate: ImportGate, folders: tuple[Path, Path]
) -> None:
    assert gate.find_spec("later", None) is None
    (folders[0] / "later.py").write_text("")
    gate.invalidate_caches()
    assert gate.find_spec("later", None) is not None


def test_what_is_written_of_packages_is_found_where_they_may_be_imported(
    gate: ImportGate, folders: tuple[Path, Path]
) -> None:
    """Many packages ask for a version as they load; none of elsewhere is named."""
    for folder, name in zip(folders, ("near", "far"), strict=True):
        written = folder / f"{name}-2.5.dist-info"
        written.mkdir()
        (written / "METADATA").write_text(f"Name: {name}\nVersion: 2.5\n")
    for name, found in {"near": ["2.5"], "far": []}.items():
        asked = DistributionFinder.Context(name=name)
        assert [each.version for each in PATH.find_distributions(asked)] == ["2.5"]
        assert [each.version for each in gate.find_distributions(asked)] == found


def test_installed_places_hold_library_packages_and_this_one() -> None:
    gate = ImportGate(installed_places())
    found = [gate.find_spec(name, None) for name in ("json", "pytest", "sealift")]
    assert [each.name for each in found if each] == ["json", "pytest", "sealift"]
    assert Path(json.__file__).parent.parent.as_posix() in installed_places()
