"""``python -m sealift.demo.tables DIR``: three owners' tables, and a recipe, to try with.

Writes ``DIR/OWNER/train.npz``, ``heldout.npz`` and ``schema.toml`` for each owner, and
``DIR/recipe/recipe.py``: what the owners of the tutorial bring.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sealift.demo.tasks import DIGITS
from sealift.errors import SealiftError, UnavailableError


def _write_example(folder: Path) -> tuple[Path, ...]:
    """Write tables and recipe; returns what was written.

    Raises:
        UnavailableError: without scikit-learn, or if the disk refuses.
    """
    DIGITS.write_tables(folder)
    recipe = folder / "recipe" / "recipe.py"
    try:
        recipe.parent.mkdir(exist_ok=True)
        recipe.write_bytes(DIGITS.recipe)
    except OSError as error:
        raise UnavailableError(
            f"cannot write {recipe}", why=error, code="disk"
        ) from None
    return (*sorted(folder.glob("*/*.npz")), recipe)


def main(arguments: list[str]) -> int:
    """Write them, and say what they are."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m sealift.demo.tables DIR\n")
        return 2
    try:
        for path in _write_example(Path(arguments[0])):
            sys.stdout.write(f"{path}\n")
    except SealiftError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
