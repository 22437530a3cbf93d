"""Which modules a recipe needs that this machine has not: read off its text, of which nothing runs.

A recipe that cannot be imported fails once all have signed and the job has begun. What it
imports within ``try`` is not demanded if a handler takes the error and does not raise: then
what that handler imports is. Nor is what it imports where it asks what runs it, or in a file
that the entry does not reach. Versions are compared where a ``requirements.txt`` beside the
entry names some: lines like ``peft>=0.10`` or ``torch==2.13.0``, and nothing else.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Set
from importlib import metadata
from importlib.util import find_spec
from pathlib import PurePosixPath
from typing import Final

from sealift.errors import MalformedError, UnavailableError, quote_foreign

_NAMED: Final = 10
# Python's parser takes memory by the square of such a name's length.
_ENDLESS: Final = re.compile(
    r"""(?:\.(?:[ \t\f]++|\\[\r\n]{1,2}+)*+
        [^\s\\.,;:#()\[\]{}'"](?:[^\r\n\\.,;:#()\[\]{}'"]++|\\[\r\n]{1,2}+)*+){64}""",
    re.VERBOSE,
)
_VERSIONS: Final = "requirements.txt"
_NEEDED: Final = re.compile(
    r"([A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?)\s*(==|>=)\s*(\d{1,8}(?:\.\d{1,8}){0,5})",
    re.ASCII,
)
_RELEASE: Final = re.compile(r"\d{1,8}(?:\.\d{1,8}){0,5}", re.ASCII)
_CAUGHT: Final = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
_ASKS: Final = {"TYPE_CHECKING", "__name__", "platform", "version_info"}


def require_packages(files: Mapping[str, bytes], entry: str) -> None:
    """Demand what the recipe imports, beside its own modules.

    Args:
        files: Of the recipe, by path.
        entry: The path of the one that runs, and imports the others.

    Raises:
        UnavailableError: ``recipe-imports``, with the modules that are missing.
    """
    own = {path.split("/", 1)[0].removesuffix(".py") for path in files}
    missing = sorted(
        each for each in _reached(files, entry, own) - own if not _is_there(each)
    )
    if missing:
        named = ", ".join(map(quote_foreign, missing[:_NAMED]))
        more = len(missing) - _NAMED
        raise UnavailableError(
            f"the host's recipe imports {named}{f' and {more:,} more' if more > 0 else ''}",
            why="this machine has no module of that name"
            if len(missing) == 1
            else "this machine has no modules of these names",
            code="recipe-imports",
        )


def require_versions(files: Mapping[str, bytes]) -> None:
    """Demand the packages that a recipe's ``requirements.txt`` names, in these versions.

    Of a version its numbers count, and neither a mark of a build (``+cpu``) nor of a
    pre-release (``rc1``).

    Raises:
        MalformedError: ``bad-requirements``, with the line that is read by nobody.
        UnavailableError: ``recipe-imports``, with the first package that does not fit.
    """
    text = files.get(_VERSIONS, b"").decode("utf-8", "replace")
    for number, written in enumerate(text.splitlines(), 1):
        line = written.partition("#")[0].strip()
        if not line:
            continue
        needed = _NEEDED.fullmatch(line)
        if needed is None:
            raise MalformedError(
                f"{_VERSIONS}, line {number}: {quote_foreign(line)} is not read",
                why="a line names one package with == or >= and a version of numbers, like peft>=0.10",
                code="bad-requirements",
            )
        name, how, wanted = needed.groups()
        found = _version_of(name)
        here, least = _numbers(found), _numbers(wanted)
        if not found or not (here == least if how == "==" else here >= least):
            raise UnavailableError(
                f"the host's recipe needs {name}{how}{wanted}",
                why=f"this machine has {name} {quote_foreign(found)}"
                if found
                else "this machine has no package of that name",
                code="recipe-imports",
            )


def _version_of(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _numbers(version: str) -> tuple[int, ...]:
    """Of a release, without zeros at its end: 2.0 is 2."""
    found = _RELEASE.match(version)
    numbers = [int(each) for each in found[0].split(".")] if found else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _is_there(name: str) -> bool:
    known = name in sys.stdlib_module_names or name in sys.modules
    return known or find_spec(name) is not None


def _reached(files: Mapping[str, bytes], entry: str, own: Set[str]) -> set[str]:
    """First names of all modules that the entry, and files of the recipe by it, import."""
    depth = 1 + max((path.count("/") for path in files), default=0)
    found, left, seen = set[str](), [entry], {entry}
    while left:
        path = left.pop()
        for name, level in _imported(files.get(path, b""), own):
            if not level:
                found.add(name.split(".")[0])
            near = PurePosixPath(path).parts[:-level] if level else ()
            parts = (*near, *filter(None, name.split(".")))[:depth]
            for end in range(1, len(parts) + 1):
                module = "/".join(parts[:end])
                for each in (f"{module}.py", f"{module}/__init__.py"):
                    if each in files and each not in seen:
                        seen.add(each)
                        left.append(each)
    return found


def _imported(text: bytes, own: Set[str]) -> Iterator[tuple[str, int]]:
    """Modules that must be there, and how far up they are looked for: 0 is from the top.

    None of a text that is no Python, or not UTF-8: the recipe's run says so.
    """
    try:
        source = text.decode()  # as it is read here, whatever encoding it claims
        if _ENDLESS.search(source):
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they would quote the text as it is
            left: list[ast.AST] = [ast.parse(source)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    while left:
        node = left.pop()
        yield from _named(node)
        if isinstance(node, ast.Try | ast.TryStar):
            left += _tried(node, own)
        elif not _asks_what_runs_it(node):
            left += ast.iter_child_nodes(node)


def _named(node: ast.AST) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.Import):
        yield from ((each.name, 0) for each in node.names)
    elif isinstance(node, ast.ImportFrom):
        for each in node.names:  # each may be a module as well
            yield f"{node.module or ''}.{each.name}", node.level


def _tried(node: ast.Try | ast.TryStar, own: Set[str]) -> Iterator[ast.AST]:
    """What of a ``try`` must be there: its body, or what is done without that."""
    instead = [each for each in node.handlers if _does_without(each)]
    tried = (
        name for part in node.body for each in ast.walk(part) for name in _named(each)
    )
    first = ((name.split(".")[0], level) for name, level in tried)
    if not instead or all(up or name in own or _is_there(name) for name, up in first):
        yield from (*node.body, *node.orelse)
    else:
        yield from instead
    yield from node.finalbody


def _does_without(handler: ast.ExceptHandler) -> bool:
    """Whether it takes an import's error, and goes on."""
    if isinstance(handler.body[-1], ast.Raise):
        return False
    kinds = () if handler.type is None else ast.walk(handler.type)
    named = {getattr(each, "id", getattr(each, "attr", "")) for each in kinds}
    return handler.type is None or not named.isdisjoint(_CAUGHT)


def _asks_what_runs_it(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and any(
        getattr(each, "id", getattr(each, "attr", "")) in _ASKS
        for each in ast.walk(node.test)
    )
