"""Every error's stable name stands once in the catalogue, and nothing that cannot occur."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import pytest

import sealift
from sealift.errors import catalogue, remedy

SOURCE = Path(sealift.__file__).parent
CLONE = Path(__file__).parents[2]
# Their errors are explained by the same command.
BESIDE = ("benchmarks", "tests/attacks/scenarios", "tests/guest", "tests/worlds")
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
# Made from parts in the source, so that reading it does not find them.
ELSEWHERE = {"bug"}
DEFAULT = "default_code"
# What looks like a code where one stands: a kind of event, an encoding.
NOT_CODES = {"code-bundle", "latin-1"}
# Tables by code, of what processes tell each other.
WIRES = (
    "sealift.meet.messages.REASONS",
    "sealift.session.relay.envelope._WHAT",
    "sealift.train.job.rejoin.CUT",
    "sealift.travel.visit.errors.NEVER_LATER",
    "sealift.travel.visit.errors._CODES",
)
# Places whose remedy is another one than what the catalogue says for their name.
MAX_OTHERS = 20


def codes_in(tree: ast.AST) -> Iterator[str]:
    """Literals given as ``code=``, also in either branch of a condition."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "code":
            yield from literals(node.value)
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == DEFAULT:
            yield from literals(node.value or ast.Constant(None))


def literals(node: ast.expr) -> Iterator[str]:
    for part in ast.walk(node):
        text = part.value if isinstance(part, ast.Constant) else None
        if isinstance(text, str) and NAME.fullmatch(text):  # or it is a code bundle
            yield text


class CodeReader:
    """Codes that the source names in any way, constants and messages included.

    Args:
        trees: All of the source: where functions and classes take a ``code``, and
            which texts its constants stand for.
    """

    def __init__(self, trees: Sequence[ast.AST]) -> None:
        self.constants: dict[str, str] = {}
        self.places: dict[str, int] = {}
        for node in (each for tree in trees for each in ast.walk(tree)):
            if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant):
                self.constants[ast.unparse(node.target)] = str(node.value.value)
            if isinstance(node, ast.FunctionDef):
                names = [each.arg for each in node.args.args if each.arg != "self"]
                self._remember(node.name, names)
            if isinstance(node, ast.ClassDef):
                fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
                kept = [f for f in fields if "ClassVar" not in ast.unparse(f)]
                self._remember(node.name, [ast.unparse(f.target) for f in kept])

    def _remember(self, name: str, parameters: list[str]) -> None:
        if "code" in parameters:
            self.places[name] = parameters.index("code")

    def codes_in(self, tree: ast.AST) -> set[str]:
        found = (
            t for n in ast.walk(tree) for v in self._values(n) for t in self._texts(v)
        )
        return {each for each in found if "-" in each} - NOT_CODES

    def _values(self, node: ast.AST) -> Iterator[ast.expr]:
        """Expressions whose value is a code."""
        if isinstance(node, ast.keyword) and node.arg == "code":
            yield node.value
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            yield from node.args[self.places.get(name, 99) :][:1]
        elif isinstance(node, ast.For) and isinstance(node.target, ast.Tuple):
            names = [ast.unparse(each) for each in node.target.elts]
            rows = node.iter.elts if isinstance(node.iter, ast.Tuple) else []
            if "code" in names:
                yield from (
                    row.elts[names.index("code")]
                    for row in rows
                    if isinstance(row, ast.Tuple)
                )
        elif isinstance(node, ast.Compare) and ast.unparse(node.left).endswith(".code"):
            yield from node.comparators
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(ast.unparse(t) in {"code", "self.code"} for t in targets):
                yield node.value

    def _texts(self, value: ast.expr) -> Iterator[str]:
        yield from literals(value)
        for part in ast.walk(value):
            if isinstance(part, ast.Name) and part.id in self.constants:
                yield from literals(ast.Constant(self.constants[part.id]))


@functools.cache
def trees() -> list[ast.Module]:
    return [ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")]


def fixes_in(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Code and remedy, where a place gives both as literals."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            given = {each.arg: each.value for each in node.keywords}
            if isinstance(given.get("fix"), ast.Constant):
                fix = ast.literal_eval(given["fix"])
                yield from ((c, fix) for c in codes_in(ast.Tuple([*node.keywords])))


def test_every_code_is_explained() -> None:
    everything = trees()
    reader = CodeReader(everything)
    found = {code for tree in everything for code in reader.codes_in(tree)}
    found |= {code for tree in everything for code in codes_in(tree)}
    assert found > {"rank-lost", "worker-gone", "tdx-xfam", "receipts-differ"}
    missing = found - catalogue().keys()
    assert not missing, f"add them to errors.toml: {sorted(missing)}"


@pytest.mark.parametrize("table", WIRES)
def test_every_code_that_crosses_a_wire_is_explained(table: str) -> None:
    """Names that a peer sends, or that tell a role what to do after it lost its peer."""
    module, _, name = table.rpartition(".")
    codes = getattr(import_module(module), name)
    sent = [*codes.values()] if table.endswith("._CODES") else [tuple(codes)]
    assert not {code for each in sent for code in each} - catalogue().keys()


def test_the_reader_finds_codes_behind_constants_and_in_messages() -> None:
    """Control of the search above, on a source of its own."""
    source = """
GONE: Final = "never-gone"
class Refuses:
    code: str
def check(holds, subject, code): ...
raise PeerError("gone", code=GONE)
send(Refuses("never-sent"))
check(True, "it", "never-checked")
for holds, code in ((True, "never-listed"), (False, GONE)): ...
if error.code in (GONE, "never-compared"): ...
code, why = "x", "y"
code = "never-set" if a else ""
"""
    tree = ast.parse(source)
    assert CodeReader([tree]).codes_in(tree) == {
        "never-gone", "never-sent", "never-checked", "never-listed", "never-compared",
        "never-set",
    }  # fmt: skip


def test_every_explanation_has_its_code() -> None:
    """A name that stands nowhere in the source explains nothing."""
    places = (SOURCE, *(CLONE / each for each in BESIDE))
    files = (path for place in places for path in place.rglob("*.py"))
    text = "\n".join(path.read_text() for path in files)
    unused = [
        name
        for name in catalogue().keys() - ELSEWHERE
        if not re.search(rf'["\']{name}["\']', text)
    ]
    assert not unused


def test_no_place_says_what_the_catalogue_says() -> None:
    others = [each for tree in trees() for each in fixes_in(tree) if remedy(each[0])]
    assert not [each for each in others if remedy(each[0]) == each[1]]
    assert len(others) <= MAX_OTHERS, others


def test_the_search_finds_a_code() -> None:
    """Control: a code that nobody explained is found, and a remedy at its place."""
    tree = ast.parse('raise PolicyError("x", fix="y", code="never" if a else "b-c")')
    assert set(codes_in(tree)) == {"never", "b-c"}
    assert set(fixes_in(tree)) == {("never", "y"), ("b-c", "y")}
    assert "never" not in catalogue()


def test_entries_are_text() -> None:
    for name, entry in catalogue().items():
        assert NAME.fullmatch(name), name
        assert set(entry) in ({"what", "fix"}, {"what", "do"}), name
        assert all(
            text.endswith((".", "?")) and text.isascii() for text in entry.values()
        )
