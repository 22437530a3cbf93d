"""Reads the test vectors of the package `cryptography_vectors`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files


def text(path: str) -> str:
    """The content of one file of the package."""
    return files("cryptography_vectors").joinpath(path).read_text("ascii")


def cases(path: str) -> Iterator[dict[str, str]]:
    """Cases of ``name = value`` lines; each starts at COUNT, in any spelling.

    Names come in lower case; a line without ``=`` (FAIL) is a name without a value.
    """
    case: dict[str, str] = {}
    for line in text(path).splitlines():
        if not line.strip() or line[0] in "#[":
            continue
        name, _, value = (part.strip() for part in line.partition("="))
        if name.lower() == "count" and case:
            yield case
            case = {}
        case[name.lower()] = value
    yield case
