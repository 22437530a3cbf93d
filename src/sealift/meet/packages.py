"""Which packages a recipe needs that this machine has not: read off its text, of which nothing runs.

A recipe that cannot be imported fails once all have signed and the job has begun. An import
within ``try`` is the recipe's own way to do without, and is not demanded.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from sealift.errors import UnavailableError


def require_packages(files: Mapping[str, bytes]) -> None:
    """Demand what the recipe's modules import, beside each other.

    Args:
        files: Of the recipe, by path.

    Raises:
        UnavailableError: ``recipe-imports``, with the packages that are missing.
    """
    own = {path.split("/", 1)[0].removesuffix(".py") for path in files}
    found = {
        name
        for path, text in files.items()
        if path.endswith(".py")
        for name in _imported(text)
    }
    missing = sorted(each for each in found - own if not _is_there(each))
    if missing:
        raise UnavailableError(
            f"the host's recipe imports {', '.join(missing)}",
            why="this machine has no package of that name"
            if len(missing) == 1
            else "this machine has no packages of these names",
            code="recipe-imports",
        )


def _is_there(name: str) -> bool:
    known = name in sys.stdlib_module_names or name in sys.modules
    return known or find_spec(name) is not None


def _imported(text: bytes) -> Iterator[str]:
    """Names of packages and modules; none of a text that is no Python: the recipe's run says so."""
    try:
        left: list[ast.AST] = [ast.parse(text)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    while left:
        node = left.pop()
        if isinstance(node, ast.Import):
            yield from (each.name.split(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.split(".")[0]
        elif not isinstance(node, ast.Try):
            left += ast.iter_child_nodes(node)
