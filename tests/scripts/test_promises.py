"""`make check` notices a promise without a test, and a test that is not there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import promises  # noqa: E402 - a script, not a package

ATTACKS = """
| | claim | attack | tests | |
|---|---|---|---|---|
| T1 | rows stay | reads | `test_rows.py` | |
"""
SECURITY = """
| against | promise | test |
|---|---|---|
| a thief | nothing leaves | {} |
"""


def complaints(folder: Path, named: str) -> list[str]:
    (folder / "docs" / "explanation").mkdir(parents=True)
    (folder / "docs" / "explanation" / "attacks.md").write_text(ATTACKS)
    (folder / "tests" / "unit").mkdir(parents=True)
    (folder / "tests" / "unit" / "test_rows.py").write_text("def test_it_stays(): ...")
    (folder / "Makefile").write_text("check:\n")
    (folder / "SECURITY.md").write_text(SECURITY.format(named))
    return list(promises.faults(folder))


@pytest.mark.parametrize(
    "named",
    [
        "`test_rows`", "`test_it_stays`", "T1", "`make check`, T1", "`test_ro*`",
        "`tests/unit/test_rows.py`", "`tests/unit/test_*`", "`tests/unit/`",
    ],
)  # fmt: skip
def test_what_exists_may_be_named(tmp_path: Path, named: str) -> None:
    assert complaints(tmp_path, named) == []


@pytest.mark.parametrize(
    ("named", "fault"),
    [
        ("", "names no test"),
        ("by design", "names no test"),
        ("`test_columns`", "no test test_columns"),
        ("`test_rows`, `tests/unit/test_c*`", "no test tests/unit/test_c*"),
        ("`make sure`", "no test make sure"),
        ("T2", "no row T2"),
    ],
)
def test_what_does_not_exist_is_a_fault(tmp_path: Path, named: str, fault: str) -> None:
    (said,) = complaints(tmp_path, named)
    assert said.startswith("SECURITY.md:4: ")
    assert fault in said


def test_a_page_without_its_table_is_a_fault(tmp_path: Path) -> None:
    complaints(tmp_path, "T1")
    (tmp_path / "SECURITY.md").write_text("| against | promise |\n|---|---|\n")
    assert "no table has a column 'test'" in "".join(promises.faults(tmp_path))


@pytest.mark.parametrize(
    ("sentence", "fault"),
    [
        ("* **Against a thief.** Nothing leaves.", "'Against a thief.' names no test"),
        ("* **Against a thief.** Nothing\n  leaves (`test_rows`).", ""),
        ("* Thieves are not kept out.", ""),
        ("Nothing leaves (`test_columns`).", "SECURITY.md:6: there is no test"),
    ],
)
def test_sentences_outside_of_tables(tmp_path: Path, sentence: str, fault: str) -> None:
    complaints(tmp_path, "T1")
    page = tmp_path / "SECURITY.md"
    page.write_text(f"{page.read_text()}\n{sentence}\n")
    said = "".join(promises.faults(tmp_path))
    assert fault in said
    assert bool(fault) == bool(said)
