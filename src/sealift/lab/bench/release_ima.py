"""How many IMA entries a second one core parses, replays and looks up."""

from __future__ import annotations

import hashlib
import struct
import time
from dataclasses import dataclass

from sealift.attest.tpm.ima import ImaState, advance
from sealift.attest.tpm.imalist import parse_list, replay
from sealift.attest.tpm.references import ImaReferences
from sealift.ids import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class ImaRate:
    """Entries a second.

    Attributes:
        entries: Length of the list.
        whole_per_s: The whole list: parsed, replayed, every entry looked up.
        renewal_s: Seconds that a re-attestation with ``renewal_entries`` new ones took.
        renewal_entries: New entries of that re-attestation.
    """

    entries: int
    whole_per_s: float
    renewal_s: float
    renewal_entries: int


def synthetic_list(entries: int) -> tuple[bytes, ImaReferences]:
    """A binary list as a kernel shows it (ima-sig), and references that allow it all."""
    parts: list[bytes] = []
    allow: dict[str, tuple[Digest, ...]] = {}
    for number in range(entries):
        path = f"/usr/lib/python3/dist-packages/package{number // 50}/module{number}.so"
        if not number:
            path = "boot_aggregate"
        found = Digest.of(path.encode())
        allow[path] = (found,)
        parts.append(_entry(path.encode(), found.raw))
    return b"".join(parts), ImaReferences(allow=allow, must=tuple(allow)[1:4])


def bench(entries: int = 200_000, renewal_entries: int = 100) -> ImaRate:
    """Measure once, with the list and the references already in memory."""
    raw, references = synthetic_list(entries)
    quoted = replay(parse_list(raw), bytes(32), bank="sha256")
    begin = time.perf_counter()
    state, _ = advance(ImaState.at_boot("sha256"), parse_list(raw), quoted, references)
    whole_s = time.perf_counter() - begin
    new = parse_list(raw).first(renewal_entries)
    later = replay(new, quoted, bank="sha256")
    begin = time.perf_counter()
    advance(state, new, later, references)
    return ImaRate(
        entries=entries,
        whole_per_s=entries / whole_s,
        renewal_s=time.perf_counter() - begin,
        renewal_entries=len(new),
    )


def _entry(path: bytes, found: bytes) -> bytes:
    fields = (b"sha256:\0" + found, path + b"\0", b"")
    content = b"".join(struct.pack("<I", len(each)) + each for each in fields)
    recorded = hashlib.sha1(content, usedforsecurity=False).digest()
    head = struct.pack("<I20sI7sI", 10, recorded, 7, b"ima-sig", len(content))
    return head + content
