"""The kernel's initramfs archive, written so that equal trees are equal bytes.

Source: Linux, Documentation/driver-api/early-userspace/buffer-format.rst (newc).
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

_MAGIC: Final = b"070701"
_END: Final = "TRAILER!!!"
FOLDER_MODE: Final = stat.S_IFDIR | 0o755


@dataclass(frozen=True, slots=True)
class Entry:
    """One file or folder.

    Attributes:
        path: Without a leading slash.
        mode: Type and permissions, as in ``st_mode``.
        content: Empty for a folder.
    """

    path: str
    mode: int
    content: bytes = b""


def file_entry(path: str, content: bytes, *, executable: bool = False) -> Entry:
    """A regular file that everybody may read."""
    return Entry(path, stat.S_IFREG | (0o755 if executable else 0o644), content)


def archive(entries: Iterable[Entry]) -> bytes:
    """The archive of ``entries`` and the folders above them, owned by root, at time 0."""
    chosen = {each.path: each for each in entries}
    folders = {str(up) for path in chosen for up in PurePosixPath(path).parents}
    for folder in folders - {"."} - chosen.keys():
        chosen[folder] = Entry(folder, FOLDER_MODE)
    ordered = [chosen[path] for path in sorted(chosen)]
    parts = [_member(each, number) for number, each in enumerate(ordered, 1)]
    return b"".join((*parts, _member(Entry(_END, 0), 0)))


def _member(entry: Entry, number: int) -> bytes:
    name = entry.path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    numbers = (
        *(number, entry.mode, 0, 0, links, 0, len(entry.content)),
        *(0, 0, 0, 0, len(name), 0),
    )
    header = _MAGIC + b"".join(b"%08x" % each for each in numbers) + name
    return _padded(header) + _padded(entry.content)


def _padded(raw: bytes) -> bytes:
    return raw + bytes(-len(raw) % 4)
