"""What a role says of itself, in a small file of a folder of its own.

The role replaces the file about every second; whoever shows it reads nothing else. It
holds numbers and names of rules, no name of a peer, of a resource or of an address.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from sealift.codec import decode, encode
from sealift.errors import MalformedError, UnavailableError

FILE: Final = "status.json"
PARTIAL: Final = ".status.json.partial"
EVERY_S: Final = 1.0
MAX_BYTES: Final = 64 << 10
MAX_COUNTS: Final = 200  # rules are stable names, but strangers choose what fails
_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class Count:
    """How often something happened since the role's start.

    Attributes:
        kind: Of the event.
        rule: That failed, or empty.
    """

    kind: str
    rule: str
    number: int

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.kind) or not _NAME.fullmatch(self.rule or "none"):
            raise MalformedError("the name of a counter is not valid", field="counts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How a role is.

    Attributes:
        role: Which.
        at_s: When this was written, in seconds since 1970.
        unready: The rule for which it can release nothing now, or empty.
        counts: What happened.
        gauges: What is now, by name.
    """

    format: Literal["sealift-status"] = "sealift-status"
    version: Literal[1] = 1
    role: str
    at_s: float
    unready: str = ""
    counts: tuple[Count, ...] = ()
    gauges: dict[str, int]

    def __post_init__(self) -> None:
        names = (self.role, self.unready or "none", *self.gauges)
        if len(self.counts) > MAX_COUNTS or not all(map(_NAME.fullmatch, names)):
            raise MalformedError("the file is not the status of a role", field="status")


def write_status(folder: Path, status: Status) -> None:
    """Replace the file at once. It is not synced: a later one follows in a second.

    Raises:
        OSError: if the disk is full, or the folder gone.
    """
    partial = folder / PARTIAL
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(partial, flags, 0o644), "wb") as file:
        file.write(encode(status))
    partial.replace(folder / FILE)


def remove_status(folder: Path) -> None:
    """A role that has ended says nothing."""
    for name in (FILE, PARTIAL):
        with suppress(OSError):
            (folder / name).unlink()


def read_status(folder: Path) -> Status:
    """What the role said last.

    Raises:
        UnavailableError: ``no-status``: nothing is there, or it cannot be read.
        MalformedError: for anything else than a status.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(os.open(folder / FILE, flags), "rb", buffering=0) as file:
            raw = file.read(MAX_BYTES + 1) or b""
    except OSError as error:
        raise UnavailableError(
            f"{folder} has no status", why=error, code="no-status"
        ) from None
    if len(raw) > MAX_BYTES:
        raise MalformedError("the status is too long", code="too-large")
    return decode(Status, raw)
