"""Text from elsewhere, made fit for a terminal.

What is reviewed must be what runs, and what a peer says must not move our cursor: no
escape sequence may hide a line, no bidirectional character may reorder one.
"""

from __future__ import annotations


def ascii_only(text: str) -> str:
    """Like ``visible``, and every character that could look like another one escaped."""
    return "".join(
        char if char.isascii() else ascii(char)[1:-1] for char in visible(text)
    )


def visible(text: str) -> str:
    """``text`` with control and bidirectional characters written as escapes."""
    return "".join(
        char if char.isprintable() or char == "\t" else ascii(char)[1:-1]
        for char in text
    )
