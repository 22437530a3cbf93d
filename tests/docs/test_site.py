"""The documentation's site: every page is in it, no link ends nowhere, nothing is fetched."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOADED = re.compile(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=.?https?://", re.I)


@pytest.mark.long
def test_the_site_holds_together_and_loads_nothing_from_elsewhere(
    tmp_path: Path,
) -> None:
    python = ROOT / ".venv/site/bin/python"
    assert python.exists(), "make setup installs what makes the site"
    built = subprocess.run(
        [python, ROOT / "scripts/pages.py", tmp_path / "site"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 60
    loading = [page.name for page in pages if LOADED.search(page.read_text())]
    assert loading == []
    assert (tmp_path / "site/search/search_index.json").exists()


def test_readme_and_docs_stay_short() -> None:
    """Words as `wc -w` counts them; SECURITY, ARCHITECTURE, formats and results stand beside."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert sum(len(page.read_text("utf-8").split()) for page in pages) <= 45_000
