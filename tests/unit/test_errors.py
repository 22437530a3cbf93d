"""The tree of errors: exit codes, stable names, one printable line each."""

from __future__ import annotations

import inspect
import io
import re
from pathlib import Path

import pytest

from sealift import errors
from sealift.errors import (
    AuthenticationError,
    MalformedError,
    RefusedError,
    SealiftError,
    UsageError,
    fold,
    for_screen,
    quote_foreign,
)

CLASSES = {
    name: kind
    for name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, SealiftError)
}
EXPECTED = {  # class: (exit code, default code)
    "SealiftError": (1, "error"),
    "UsageError": (2, "usage"),
    "UnavailableError": (3, "unavailable"),
    "PeerError": (4, "peer"),
    "RefusedError": (5, "refused"),
    "AuthenticationError": (5, "authentication"),
    "EvidenceError": (5, "evidence"),
    "PolicyError": (5, "policy"),
    "StaleError": (5, "stale"),
    "IntegrityError": (5, "integrity"),
    "MalformedError": (6, "malformed"),
    "JobError": (7, "job"),
}


FREE_SPACE = "Free some space and run it again; no partial file was left"


def test_exit_and_default_codes() -> None:
    found = {n: (k.exit_code, k.default_code) for n, k in CLASSES.items()}
    assert found == EXPECTED


def drawn_tree() -> dict[str, tuple[str, int]]:
    """Class -> (parent, exit code), read from the drawing in the module's docstring."""
    tree: dict[str, tuple[str, int]] = {}
    above = [("SealiftError", 1)]
    line = re.compile(r"^ {4}([│ ]*)[├└]─ (\w+)(?:.*?exit (\d))?", re.MULTILINE)
    for indent, name, code in line.findall(errors.__doc__ or ""):
        depth = len(indent) // 3 + 1
        parent, inherited = above[depth - 1]
        tree[name] = (parent, int(code or inherited))
        above[depth:] = [(name, int(code or inherited))]
    return tree


def test_docstring_draws_the_classes() -> None:
    real = {n: (k.__base__.__name__, k.exit_code) for n, k in CLASSES.items()}
    del real["SealiftError"]
    assert drawn_tree() == real


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (UsageError("no job"), "no job"),
        (UsageError("no job", why="none given"), "no job: none given"),
        (UsageError("no job", fix="Name one"), "no job. Name one"),
        (UsageError("a", why="b", fix="C"), "a: b. C"),
        (UsageError("a", code="disk-full"), f"a. {FREE_SPACE}"),
        (UsageError("a", why="b", fix="C", code="disk-full"), "a: b. C"),
        (UsageError("a", why=OSError(2, "No such file")), "a: No such file"),
        (UsageError("a", why=ValueError("odd")), "a: odd"),
        (UsageError("a", why=UsageError("b", why="c")), "a: b"),
        (UsageError("a\n  b", why="c\r\nd\te"), "a b: c d e"),
        (UsageError("red \x1b[31m", why="bell\x07"), "red ?[31m: bell?"),
        (MalformedError("bad", field="a.b"), "bad (at field a.b)"),
        (MalformedError("bad", offset=0), "bad (at offset 0)"),
        (MalformedError("bad", field="a", offset=7), "bad (at field a, offset 7)"),
        (MalformedError("bad", field="a\nb\x1b"), "bad (at field a b?)"),
    ],
)
def test_one_printable_line(error: SealiftError, line: str) -> None:
    assert str(error) == line


def test_a_line_without_its_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor is left, say: the remedy is missing, and nothing else."""
    monkeypatch.setattr(errors, "CATALOGUE", Path("/nowhere/errors.toml"))
    errors.catalogue.cache_clear()
    error = UsageError("a", why="b", code="disk-full")
    assert str(error) == "a: b"
    monkeypatch.undo()
    assert str(error) == f"a: b. {FREE_SPACE}"


def test_own_code_wins_over_the_default() -> None:
    assert RefusedError("no", code="wrong-passphrase").code == "wrong-passphrase"
    assert RefusedError("no").code == "refused"


def test_authentication_error_takes_no_detail() -> None:
    with pytest.raises(TypeError):
        AuthenticationError("tag of record 7")  # type: ignore[call-arg]
    assert str(AuthenticationError()) == str(AuthenticationError())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("age", "age"),
        ("Gr\u00f6\u00dfe", "Gr\u00f6\u00dfe"),
        ("e\u0301", "\u00e9"),  # composed, so that nothing is drawn over a letter
        ("", '""'),
        ("blood  \t\n pressure", '"blood pressure"'),
        ('a" or "b\\', '"a\\" or \\"b\\\\"'),
        ("x\x1b[2J", '"x\\x1b[2J"'),
        ("\u202ereversed", '"\\u202ereversed"'),
        ("\u05e9", '"\\u05e9"'),
        ("a\u200bb", '"a\\u200bb"'),
        ("a\u0301\u0302", '"\u00e1\\u0302"'),
        ("\u3164", '"\\u3164"'),  # a letter that is drawn as a blank
        ("a" * 60, "a" * 60),
        ("a" * 61, f'"{"a" * 60}"...'),
        ("\u5b57" * 31, '"' + "\u5b57" * 30 + '"...'),  # two columns each
        (" " * 10_000 + "verified", '""...'),
    ],
)
def test_text_of_others_stays_one_short_piece_of_a_line(text: str, shown: str) -> None:
    assert quote_foreign(text) == shown


DIGEST = f"sha256:{'0a' * 32}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one two", ["one two"]),
        ("", [""]),
        ("a long line of words", ["a long line of", "    words"]),
        ("verified" * 4, ["verifiedverified", "    verifiedveri", "    fied"]),
        ("\u5b57" * 9, ["\u5b57" * 8, "    \u5b57"]),  # two columns each
        (f"model {DIGEST}", ["model", f"    {DIGEST}"]),
    ],
)
def test_a_line_is_folded_before_a_terminal_breaks_it(
    text: str, shown: list[str]
) -> None:
    assert fold(text, 16) == shown


class Screen(io.StringIO):
    """A terminal that says nothing of its size."""

    def isatty(self) -> bool:
        return True


def test_lines_are_folded_for_terminals_alone() -> None:
    """What others wrote never stands at the beginning of a line."""
    line = f'sealift: north: "{"a" * 62} sealift: all is well"'
    assert for_screen(line, io.StringIO()) == line
    first, *rest = for_screen(line, Screen()).split("\n")
    assert len(first) <= 80
    assert rest
    assert all(each.startswith("    ") for each in rest)
