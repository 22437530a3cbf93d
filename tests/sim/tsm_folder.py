"""A stand-in for Linux's configfs-tsm: the rules of its files, without a platform.

It behaves as drivers/virt/coco/guest/report.c and fs/configfs/file.c do: a write takes
effect when the file is closed and its error is lost, each effective write counts the
generation, reports are made when ``outblob`` is read and the configuration changed.
Nothing here is signed by hardware; ``quoting`` says what the platform answers.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field

Quoting = Callable[[bytes, int], tuple[bytes, bytes]]


def refusal(number: int) -> OSError:
    return OSError(number, errno.errorcode[number])


@dataclass
class Entry:
    inblob: bytes = b""
    privlevel: int = 0
    written: int = 0
    read: int = 0
    outblob: bytes = b""
    auxblob: bytes = b""

    def advance(self) -> bool:
        """Count a write; refused if the count would catch up with the last read."""
        if self.written == self.read - 1:
            return False
        self.written += 1
        return True


@dataclass
class StandInTsmFolder:
    """Reports of a guest.

    Attributes:
        quoting: From inblob and privlevel to outblob and auxblob; may raise OSError.
        provider: As the kernel names it; None on a machine that has none.
        meddle: Called before each read, with the entry and the attribute.
    """

    quoting: Quoting
    provider: str | None = "tdx_guest"
    meddle: Callable[[Entry, str], None] = lambda entry, attribute: None
    privlevel_floor: int = 0
    entries: dict[str, Entry] = field(default_factory=dict)
    made: int = 0

    def make(self, entry: str) -> None:
        if self.provider is None:
            raise refusal(errno.ENXIO)
        if entry in self.entries:
            raise refusal(errno.EEXIST)
        self.entries[entry] = Entry()
        self.made += 1

    def remove(self, entry: str) -> None:
        self._find(entry)
        del self.entries[entry]

    def write(self, entry: str, attribute: str, content: bytes) -> None:
        found = self._find(entry)
        if attribute == "inblob":  # binary: stored at close, errors lost
            if len(content) <= 64 and found.advance():
                found.inblob = content
        elif attribute == "privlevel" and self.provider == "sev_guest":
            level = int(content)
            if not self.privlevel_floor <= level <= 3:
                raise refusal(errno.EINVAL)
            if not found.advance():
                raise refusal(errno.EBUSY)
            found.privlevel = level
        else:
            raise refusal(errno.ENOENT if attribute == "privlevel" else errno.EACCES)

    def read(self, entry: str, attribute: str) -> bytes:
        found = self._find(entry)
        self.meddle(found, attribute)
        if attribute == "generation":
            return f"{found.written}\n".encode()
        if attribute == "provider":
            return f"{self.provider}\n".encode()
        if attribute == "auxblob" and self.provider != "sev_guest":
            raise refusal(errno.ENOENT)
        if attribute not in {"outblob", "auxblob"}:
            raise refusal(errno.EACCES)
        self._refresh(found)
        return found.outblob if attribute == "outblob" else found.auxblob

    def _refresh(self, found: Entry) -> None:
        if not found.inblob:
            raise refusal(errno.EINVAL)
        if not found.outblob or found.read != found.written:
            found.outblob, found.auxblob = self.quoting(found.inblob, found.privlevel)
            found.read = found.written

    def _find(self, entry: str) -> Entry:
        if entry not in self.entries:
            raise refusal(errno.ENOENT)
        return self.entries[entry]
