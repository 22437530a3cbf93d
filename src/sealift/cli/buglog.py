"""A bug of ours: its traceback goes into a file, one line goes to the screen.

The file may name paths and source lines, never values of variables: no exception's text,
which may quote a row. Only its owner can read it.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import traceback
from pathlib import Path


def record_bug(error: Exception) -> str:
    """Write the traceback; the line for the screen."""
    kind = type(error).__name__
    text = "\n".join(_without_text(error))
    for folder in (_state_folder(), Path(tempfile.gettempdir())):
        try:
            place = _write(folder, text)
        except OSError:
            continue
        return f"a bug in sealift: {kind}. Please report it with {place} [bug]"
    return f"a bug in sealift: {kind}, and no place to write its traceback [bug]"


def _without_text(error: BaseException) -> list[str]:
    """The errors that led here, the last one first: types and places."""
    chain: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in chain:
        chain.append(each)
        each = each.__cause__ or each.__context__
    return [
        f"{type(each).__name__}\nTraceback (most recent call last):\n"
        + "".join(traceback.format_tb(each.__traceback__))
        for each in chain
    ]


def _state_folder() -> Path:
    root = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(root, "sealift")


def _write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"bug-{secrets.token_hex(6)}.log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return path
