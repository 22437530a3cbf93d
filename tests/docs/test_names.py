"""What the pages call by name is there: files, tests, rules."""

from __future__ import annotations

import functools
import re
from fnmatch import filter as matching
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("ARCHITECTURE.md", "SECURITY.md", "README.md")),
    *(ROOT / "spec").glob("*.md"),
    *(ROOT / "docs").glob("*/*.md"),
]
CODE = re.compile(r"`([^`\n]+)`")
TOPS = ("src", "tests", "benchmarks", "scripts", "examples", "spec")
FILES = {path.name for top in TOPS for path in (ROOT / top).rglob("*.py")}
TESTS = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
FOREIGN = {"recipe.py", "train.py", "mine.py"}  # what readers write themselves


def named(page: Path) -> list[str]:
    return CODE.findall(page.read_text("utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_are_there(page: Path) -> None:
    words = [each for each in named(page) if re.fullmatch(r"[\w/*]+\.py", each)]
    names = {each.rpartition("/")[2] for each in words} - FOREIGN
    assert [each for each in sorted(names) if not matching(FILES, each)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_are_there(page: Path) -> None:
    words = {each for each in named(page) if re.fullmatch(r"test_[\w*]+", each)}
    lost = words - functions()
    assert [each for each in sorted(lost) if not matching(TESTS, each)] == []


@functools.cache
def functions() -> set[str]:
    texts = (path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py"))
    return {name for text in texts for name in re.findall(r"def (test_\w+)\(", text)}


def test_rules_are_there() -> None:
    listed = re.findall(
        r"^\| ([CHMN]\d+) \|", (ROOT / "docs/reference/rules.md").read_text(), re.M
    )
    said = re.findall(
        r"\brules? ([CHMN]\d+)\b", "\n".join(page.read_text("utf-8") for page in PAGES)
    )
    assert set(said) <= set(listed)
    assert len(said) > 10
