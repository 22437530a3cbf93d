"""Every command that a page shows is one that a named test runs, with these options.

Not the page's own line: its names and paths are the reader's. The tutorial, the README and
most how-tos are typed besides as they stand (the other files of this folder).
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.docs.test_boxes import NAMES, commands

ROOT = Path(__file__).resolve().parents[2]
# Typed as they stand, by these.
TYPED = {
    "docs/tutorial/three-parties.md": "tests/docs/test_tutorial.py",
    "docs/howto/serve-a-model.md": "tests/sim/servinghowto.py",
    "docs/howto/feed-a-device-process.md": "tests/docs/test_by_hand.py",
}
BY_HAND = "docs/howto/by-hand.md"
# Of that page, test_by_hand.py types these; the rest is in the table.
PREPARING = {
    "sealift key new", "sealift data schema", "sealift data seal", "sealift try",
    "sealift agreement new", "sealift agreement check", "sealift agreement show",
    "sealift agreement sign", "sealift agreement verify",
}  # fmt: skip
TABLE = Path(__file__).parent / "executed.toml"
EXECUTED: dict[str, list[str]] = tomllib.loads(TABLE.read_text())
OFFLINE = {"--index-url"}  # no test needs a network


def verb(words: list[str]) -> str:
    """The longest row of the table that a command begins with; its first word else."""
    named = (" ".join(words[:length]) for length in range(min(3, len(words)), 0, -1))
    return next((each for each in named if each in EXECUTED), " ".join(words[:2]))


@cache
def typed(name: str) -> str:
    """What tests type: a test's own text, or a page's boxes that it types."""
    return (ROOT / name).read_text("utf-8")


@pytest.mark.parametrize("page", [each for each in NAMES if each not in TYPED])
def test_every_command_is_run_by_a_test(page: str) -> None:
    for words in commands(page):
        row = verb(words)
        if page == BY_HAND and row in PREPARING:
            continue
        assert row in EXECUTED, f"{words}: executed.toml names no test that runs it"
        texts = "\n".join(typed(name) for name in EXECUTED[row])
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        lost = [each for each in sorted(options - OFFLINE) if each not in texts]
        assert lost == [], f"no test of {row!r} in executed.toml types {lost}"


@pytest.mark.parametrize("row", EXECUTED)
def test_every_test_of_the_table_types_its_command(row: str) -> None:
    assert EXECUTED[row]
    for name in EXECUTED[row]:
        lost = [w for w in row.split()[1:] if not re.search(rf"\b{w}\b", typed(name))]
        assert lost == [], f"{name} does not type {row!r}"


@pytest.mark.parametrize("page", TYPED)
def test_a_typed_page_has_its_test(page: str) -> None:
    assert Path(page).name in (ROOT / TYPED[page]).read_text("utf-8")
    assert list(commands(page))


def test_a_command_that_nobody_runs_is_seen() -> None:
    """The control: rows are found by their longest beginning."""
    assert verb(["sealift", "receipt", "verify", "x"]) == "sealift receipt verify"
    assert verb(["sealift", "receipt", "burn", "x"]) not in EXECUTED
