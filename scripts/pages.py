"""Make the documentation's site: `pages.py FOLDER [MKDOCS-OPTION...]`.

Pages stay where a reader of the repository finds them: README and its neighbours, `docs`,
`spec` and `results`. MkDocs wants one folder, so they are copied into one beside each
other, with every file that a page links to; a link to a folder becomes one to its list of
pages. `mkdocs build --strict` then refuses links to nothing, also those to headings.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README", "SECURITY", "ARCHITECTURE", "CHANGELOG", "CONTRIBUTING")
FOLDERS = ("docs", "spec", "results")
LINK = re.compile(r"(\]\()([^)#\s]+)(?=[)#])")


def pages() -> list[Path]:
    """All pages, relative to the repository."""
    named = [Path(f"{name}.md") for name in PAGES]
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")]
    return named + sorted(path.relative_to(ROOT) for path in found)


def heading(page: Path) -> str:
    """A page's first heading."""
    first = re.search(r"^# (.+)$", page.read_text(), re.MULTILINE)
    return first.group(1) if first else page.stem


def list_of(folder: Path) -> str:
    """What stands in for a folder that has no README: links to its files."""
    lines = [f"# {folder.relative_to(ROOT)}", ""]
    for path in sorted(folder.iterdir()):
        if path.is_file():
            shown = heading(path) if path.suffix == ".md" else path.name
            lines.append(f"* [{shown}]({path.name})")
    return "\n".join([*lines, ""])


def collect(site: Path) -> None:
    """Copy the pages and what they link to under ``site``."""
    shutil.rmtree(site, ignore_errors=True)
    wanted = set(pages())
    for page in pages():
        text = (ROOT / page).read_text()

        def resolve(link: re.Match[str], page: Path = page) -> str:
            before, target = link.groups()
            if ":" in target:
                return link.group()
            place = Path(os.path.normpath(page.parent / target))
            if (ROOT / place).is_dir():
                index, target = place / "README.md", f"{target.rstrip('/')}/README.md"
                if not (ROOT / index).exists():
                    (site / place).mkdir(parents=True, exist_ok=True)
                    (site / index).write_text(list_of(ROOT / place))
                    wanted.update(
                        each.relative_to(ROOT)
                        for each in (ROOT / place).iterdir()
                        if each.is_file()
                    )
            elif (ROOT / place).is_file():
                wanted.add(place)
            return before + target

        (site / page).parent.mkdir(parents=True, exist_ok=True)
        (site / page).write_text(LINK.sub(resolve, text))
    for file in wanted - set(pages()):
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, site / file)


def main() -> None:
    """Collect the pages, and become MkDocs."""
    folder, options = Path(sys.argv[1]).resolve(), sys.argv[2:]
    collect(ROOT / "build" / "site-pages")
    os.chdir(ROOT)
    os.environ["NO_MKDOCS_2_WARNING"] = "1"
    words = ("-m", "mkdocs", "build", "--strict", "--site-dir", str(folder), *options)
    os.execv(sys.executable, (sys.executable, *words))  # noqa: S606 - no shell is meant


if __name__ == "__main__":
    main()
