"""Journeys and ARCHITECTURE name what is there; `make journeys` records the journeys."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def journeys() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "journeys", ROOT / "scripts/journeys.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def functions_of(node: ast.AST, above: str = "") -> Iterator[str]:
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.ClassDef | ast.FunctionDef):
            yield f"{above}{each.name}"
            yield from functions_of(each, f"{above}{each.name}.")


def test_each_leg_and_mark_is_a_function(journeys: ModuleType) -> None:
    legs = journeys.legs()
    names = {*legs, *(first for each in legs.values() for _, first in each)}
    for name in sorted(names):
        place, _, function = name.partition(":")
        path = ROOT / "src/sealift" / place
        assert path.is_file(), name
        assert function in functions_of(ast.parse(path.read_text())), name


def test_each_journey_has_a_bar_and_legs(journeys: ModuleType) -> None:
    found = {journey for each in journeys.legs().values() for journey, _ in each}
    assert found == set(journeys.BARS)


def test_architecture_names_files_that_are_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for place in re.findall(r"`([\w/]+/\w*\.?\w*)`", text):
        assert any((top / place).exists() for top in (ROOT / "src/sealift", ROOT)), (
            place
        )
