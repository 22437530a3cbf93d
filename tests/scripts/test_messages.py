"""`make messages` lists the texts of errors, commands and tables, and no docstring."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
MODULE = '''
"""A docstring has many words in it."""
QUERY = "SELECT every word FROM texts"
SENTENCES = {"key": "the key was released"}

def refuse(what: str) -> NoReturn:
    """Raise an error that says something."""
    raise UsageError(what, why=f"{name} is " + text, fix="Give one", code="no-name")

refuse("no table has that name")
print("sealed" if done else f"reading {path}", end="")
parser.add_argument("--out", help="where it is written", metavar="DIR")
parser.add_flag("--json", "print one line")
'''


@pytest.fixture(scope="module")
def messages() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "messages", ROOT / "scripts/messages.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_kind_of_text_is_listed_once(messages: ModuleType) -> None:
    tree = ast.parse(MODULE)
    listed = messages.messages(tree, messages.error_makers([tree]))
    assert [(kind, text) for _, kind, text in sorted(listed)] == [
        ("text", "the key was released"),
        ("error", "{name} is {text}: Give one [no-name]"),
        ("error", "no table has that name"),
        ("line", "sealed | reading {path}"),
        ("help", "where it is written"),
        ("help", "print one line"),
    ]


def test_a_room_and_the_codes_can_be_listed_alone(
    messages: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    messages.main("cli/data.py")
    assert capsys.readouterr().out.split("\n", 2)[1] == "cli/data.py"
    messages.main("errors.toml")
    assert " codes  no-memory: " in capsys.readouterr().out
