"""Every box of README and docs: its commands parse, its targets and files are there.

What a page's commands come to is for the tests that type them: the tutorial's and most
how-tos' have one each beside this file or in ``tests/distributed``.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sealift.cli.main import build_parser, joined

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*/*.md")])
BOX = re.compile(r"^```([a-z]*)([^\n]*)\n(.*?)^```$", re.M | re.S)
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def boxes(page: str) -> Iterator[tuple[str, str]]:
    """Kind and content of each."""
    for kind, _, content in BOX.findall((ROOT / page).read_text("utf-8")):
        yield kind, content


def commands(page: str) -> Iterator[list[str]]:
    """Words of every line that a shell would run."""
    for kind, content in boxes(page):
        if kind not in ("", "sh", "console"):
            continue
        whole = re.sub(r"\\\n\s*", "", content)
        for line in re.sub(r"\$\(.*?\)", "WORD", whole).splitlines():
            if "[--" in line or " ..." in line:
                continue  # a synopsis
            line = line.removeprefix("$ ").split("  #")[0].rstrip("& ")
            line = re.split(r" (?:[|]|>>?) ", line)[0]
            if re.match(r"(sealift|make|pip|python3? -m) [a-z\"'-]", line):
                yield shlex.split(line, comments=True)


@pytest.mark.parametrize("page", NAMES)
def test_every_command_is_one(page: str) -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for program, *words in commands(page):
        if program == "make":
            assert words[0] in targets, words
        elif program == "pip":
            for extra in re.findall(r"\[([a-z,-]+)\]", " ".join(words)):
                assert set(extra.split(",")) <= set(extras["optional-dependencies"])
        elif program == "sealift":
            whole = joined(words)
            build_parser(whole).parse_args(whole)


@pytest.mark.parametrize("page", NAMES)
def test_every_other_box_parses(page: str) -> None:
    for kind, content in boxes(page):
        if kind == "python" and content.startswith(" "):  # out of an example
            examples = (ROOT / "examples").rglob("*.py")
            assert any(content in each.read_text("utf-8") for each in examples)
        elif kind == "python":
            ast.parse(content)
        elif kind == "toml":
            tomllib.loads(content)
        elif kind == "json":
            json.loads(content)


def test_a_mistyped_option_is_seen() -> None:
    """The control: the parser refuses what no command has."""
    words = ["receipt", "verify", "receipts/", "--agreemnt", "agreement.json"]
    with pytest.raises(Exception, match="agreemnt"):
        build_parser(words).parse_args(words)
    assert len(list(commands("docs/howto/by-hand.md"))) > 15
