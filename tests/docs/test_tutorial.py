"""The tutorial is a session: every box of it is typed, by its role, in its order."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cli.test_text import SOURCE
from tests.sim.ownaddress import own_address
from tests.sim.terminals import Box, read_boxes, session

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial" / "three-parties.md"
ADDRESS = "127.0.0.1:7410"  # of the tutorial's job
PARTIES = ("north", "east", "south")


def environment(place: Path) -> Mapping[str, str]:
    """A PATH on which `sealift` and `python` are those that are tested."""
    place.mkdir()
    for name, words in (("sealift", "-m sealift "), ("python", "")):
        program = place / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
        program.chmod(0o755)
    return {
        "PATH": f"{place}:{os.environ['PATH']}",
        "PYTHONPATH": f"{SOURCE}:{Path(__file__).parents[2]}",
        "PYTHONUNBUFFERED": "1",  # as at a terminal: lines come in their order
        "COLUMNS": "100",
    }


@pytest.mark.long
@pytest.mark.distributed
@pytest.mark.swtpm
def test_every_box_is_typed_and_says_so(tmp_path: Path) -> None:
    if shutil.which("swtpm_setup") is None:
        pytest.skip("there is no swtpm")
    text = TUTORIAL.read_text().replace(ADDRESS, own_address())
    boxes = read_boxes(text)
    place = tmp_path / "t"
    place.mkdir()
    with session(place, PARTIES, environment(tmp_path / "bin")) as terminals:
        for box in boxes:
            terminals.run(box)
        for name in PARTIES:
            terminals.settle(name)
    assert terminals.executed == [box.line for box in boxes]
    assert {box.role for box in boxes} == {"setup", "each", *PARTIES}


def one(text: str) -> Box:
    return read_boxes(text)[0]


@pytest.mark.parametrize(
    ("typed", "fits"),
    [
        ("$ echo one; echo two\none\ntwo\n", True),
        ("$ echo one\ntwo\n", False),
        ("$ echo one\n", False),
        ("$ true\none\n", False),
        ("$ false\n", False),
        ("$ echo 'sealift: no [code]'; false\nsealift: ... [code]\n", True),
        ("$ echo 'sealift: no [code]'\nsealift: ... [code]\n", False),
        ("$ echo a \\\n    b\na b\n", True),
        ("$ X=1\n$ echo $X $ME\n1 $ME\n", True),
    ],
)
def test_a_box_that_says_something_else_fails(
    tmp_path: Path, typed: str, fits: bool
) -> None:
    box = one(f"\n```console role=each\n{typed}```\n")
    with session(tmp_path, PARTIES, {"PATH": os.environ["PATH"]}) as terminals:
        try:
            terminals.run(box)
        except AssertionError:
            assert not fits
        else:
            assert fits


def test_who_stays_is_compared_later(tmp_path: Path) -> None:
    box = one("\n```console role=north stays\n$ sleep 0.1; echo late\nearly\n```\n")
    with session(tmp_path, PARTIES, {"PATH": os.environ["PATH"]}) as terminals:
        terminals.run(box)
        with pytest.raises(AssertionError, match="late"):
            terminals.settle("north")


@pytest.mark.parametrize("text", ["\n```\n$ x\n```\n", "\n```console role=a\n$ x\n"])
def test_a_box_that_nobody_would_type(text: str) -> None:
    with pytest.raises(AssertionError):
        read_boxes(text)
