"""IMA lists as a kernel writes them, made by hand: lines and records, and registers."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

HASH_IDS = {"sha256": 4, "sha384": 5, "sha512": 6}


@dataclass(frozen=True)
class Measured:
    """One entry: what the kernel would hash, and how it would show it."""

    template: str
    fields: tuple[bytes, ...]
    violation: bool = False

    @property
    def content(self) -> bytes:
        if self.template == "ima":
            return self.fields[0] + self.fields[1].ljust(256, b"\0")
        return b"".join(struct.pack("<I", len(each)) + each for each in self.fields)

    @property
    def recorded(self) -> bytes:
        made = hashlib.sha1(self.content, usedforsecurity=False).digest()
        return bytes(20) if self.violation else made

    def binary(self, register: int = 10) -> bytes:
        name = self.template.encode()
        head = struct.pack("<I20sI", register, self.recorded, len(name)) + name
        if self.template == "ima":
            path = self.fields[1]
            return head + self.fields[0] + struct.pack("<I", len(path)) + path
        return head + struct.pack("<I", len(self.content)) + self.content

    def ascii(self) -> bytes:
        words = [b"10", self.recorded.hex().encode(), self.template.encode()]
        return b" ".join(words + [self._shown(i) for i in range(len(self.fields))])

    def _shown(self, place: int) -> bytes:
        raw = self.fields[place]
        if place == 1:
            return raw.rstrip(b"\0")
        name, mark, digest = raw.partition(b":\0")
        if mark:
            return name + b":" + digest.hex().encode()
        return raw.hex().encode()


def measured(
    path: str,
    content: bytes = b"content",
    *,
    template: str = "ima-sig",
    algorithm: str = "sha256",
    rest: tuple[bytes, ...] | None = None,
    violation: bool = False,
) -> Measured:
    """An entry of a file with that content."""
    found = hashlib.new(algorithm, content).digest()
    if rest is None:
        rest = (b"",) if template == "ima-sig" else ()
    digest = algorithm.encode() + b":\0" + found
    fields = (digest, path.encode() + b"\0", *rest)
    return Measured(template, fields, violation)


def file_digest(content: bytes = b"content") -> bytes:
    return hashlib.sha256(content).digest()


def binary(*entries: Measured) -> bytes:
    return b"".join(each.binary() for each in entries)


def ascii_list(*entries: Measured) -> bytes:
    return b"".join(each.ascii() + b"\n" for each in entries)


def register(
    *entries: Measured, bank: str = "sha256", start: bytes | None = None
) -> bytes:
    """PCR 10 of a kernel from 5.8 on."""
    size = hashlib.new(bank).digest_size
    value = bytes(size) if start is None else start
    for each in entries:
        extended = hashlib.new(bank, each.content).digest()
        if each.violation:
            extended = b"\xff" * size
        value = hashlib.new(bank, value + extended).digest()
    return value


def padded_register(*entries: Measured, bank: str = "sha256") -> bytes:
    """PCR 10 of a kernel before 5.8: SHA-1 and zeros."""
    size = hashlib.new(bank).digest_size
    value = bytes(size)
    for each in entries:
        value = hashlib.new(bank, value + each.recorded.ljust(size, b"\0")).digest()
    return value


def signature(raw: bytes, algorithm: str = "sha256") -> bytes:
    """A signature as security.ima holds it, version 2."""
    head = bytes([3, 2, HASH_IDS[algorithm]]) + b"keyi"
    return head + len(raw).to_bytes(2, "big") + raw
