"""Say which packages this machine lacks: `python check.py brought.txt`; exit code 3 then.

Runs on the GPU machine (`gpu_run.sh`), before anything is installed: nothing but Python.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()


def lacking(lines: str) -> list[str]:
    """Return what is missing or too old, one line each; lines are NAME>=VERSION."""
    found = []
    for line in lines.split():
        name, _, least = line.partition(">=")
        try:
            has = version(name)
        except PackageNotFoundError:
            has = ""
        if not has or numbers(has) < numbers(least):
            found.append(f"{line} (here: {has or 'none'})")
    return found


def main() -> None:
    """Print what is lacking, and end."""
    if found := lacking(Path(sys.argv[1]).read_text()):
        print(f"gpu-bundle: this machine lacks {', '.join(found)}")
        raise SystemExit(3)


if __name__ == "__main__":
    main()
