"""Batches of records for the gcc build of the kernels, laid out in host memory."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sealift.channel.cuda import plan as geometry
from sealift.channel.cuda.driver import GpuFacts
from sealift.channel.cuda.plan import BatchShape
from sealift.crypto.aead import Suite
from tests.sim.gcc_kernels import run_plan

RECORD = struct.Struct("<QQIIQ12sI16s")
GPU = GpuFacts("a processor", (9, 0), 132, 1 << 34, 13000, 1, real=False)
SMALL_GPU = GpuFacts("a processor", (9, 0), 1, 1 << 34, 13000, 1, real=False)


class Memory:
    """Aligned memory with an address; ``shift`` bytes off where that is tried."""

    def __init__(self, nbytes: int, *, shift: int = 0, fill: int = 0xA5) -> None:
        self._owned = (ctypes.c_uint8 * (nbytes + 272))()
        start = ctypes.addressof(self._owned)
        self.nbytes = nbytes
        self.address = start + (-start % 256) + shift
        ctypes.memset(self.address, fill, nbytes)

    def write(self, content: bytes, offset: int = 0) -> None:
        assert offset + len(content) <= self.nbytes
        ctypes.memmove(self.address + offset, content, len(content))

    def read(self, offset: int = 0, nbytes: int | None = None) -> bytes:
        nbytes = self.nbytes - offset if nbytes is None else nbytes
        return ctypes.string_at(self.address + offset, nbytes)


@dataclass(frozen=True)
class Text:
    """One record: what goes in (plaintext, or ciphertext and tag), nonce, AAD."""

    content: bytes
    nonce: bytes
    aad: bytes = b""
    tag: bytes = b""


def expand(suite: Suite, key: bytes, library: ctypes.CDLL | None = None) -> Memory:
    """An expanded key."""
    raw, expanded = Memory(32), Memory(geometry.SHAPES[suite].key_bytes)
    raw.write(key)
    places = {"raw_key": raw.address, "key": expanded.address}
    run_plan(geometry.expand_plan(suite), places, library)
    return expanded


def open_all(
    suite: Suite, key: bytes, texts: Sequence[Text], **how: Any
) -> list[tuple[bool, bytes]]:
    """Open each; whether its tag verified, and its plaintext's memory."""
    batch = _Batch(texts, [len(text.content) - 16 for text in texts], **how)
    batch.fill(batch.sealed, batch.sealed_offsets)
    verdicts = Memory(len(texts))
    plan = geometry.open_plan(suite, batch.shape, batch.gpu)
    batch.run(plan, expand(suite, key, batch.library), verdicts)
    found = batch.cut(batch.plain, batch.plain_offsets, 0)
    assert set(verdicts.read()) <= {0, 1}
    return [
        (bool(good), text) for good, text in zip(verdicts.read(), found, strict=True)
    ]


def seal_all(
    suite: Suite, key: bytes, texts: Sequence[Text], **how: Any
) -> list[bytes]:
    """Seal each: ciphertext and tag."""
    batch = _Batch(texts, [len(text.content) for text in texts], **how)
    batch.fill(batch.plain, batch.plain_offsets)
    plan = geometry.seal_plan(suite, batch.shape, batch.gpu)
    batch.run(plan, expand(suite, key, batch.library), Memory(len(texts)))
    return batch.cut(batch.sealed, batch.sealed_offsets, 16)


class _Batch:
    """Records in memory; ``guard`` bytes between them must stay as they were."""

    def __init__(
        self,
        texts: Sequence[Text],
        lengths: list[int],
        *,
        shift: int = 0,
        gpu: GpuFacts = GPU,
        library: ctypes.CDLL | None = None,
        in_place: bool = False,
    ) -> None:
        self.texts, self.lengths, self.gpu = texts, lengths, gpu
        self.library = library
        self.shape = BatchShape(len(texts), max(lengths), sum(lengths))
        self.sealed_offsets, sealed_bytes = _offsets([n + 16 for n in lengths], shift)
        self.sealed = Memory(sealed_bytes, shift=shift)
        self.plain_offsets, self.plain = self.sealed_offsets, self.sealed
        if not in_place:
            self.plain_offsets, plain_bytes = _offsets(lengths, shift)
            self.plain = Memory(plain_bytes, shift=shift)

    def fill(self, memory: Memory, offsets: list[int]) -> None:
        for text, offset in zip(self.texts, offsets, strict=True):
            memory.write(text.content, offset)

    def run(self, plan, key: Memory, verdicts: Memory) -> None:
        records, aad = self._records()
        scratch = Memory(plan.scratch_bytes)
        memories = {
            "records": records, "aad": aad, "key": key, "sealed": self.sealed,
            "plain": self.plain, "verdicts": verdicts, "scratch": scratch,
        }  # fmt: skip
        places = {name: each.address for name, each in memories.items()}
        run_plan(plan, places, self.library)

    def cut(self, memory: Memory, offsets: list[int], extra: int) -> list[bytes]:
        end, behind = 0, 16 if self.plain is self.sealed else extra
        for offset, length in zip(offsets, self.lengths, strict=True):
            assert set(memory.read(end, offset - end)) <= {0xA5}, "outside of records"
            end = offset + length + behind
        assert set(memory.read(end)) <= {0xA5}, "behind the records"
        return [
            memory.read(offset, length + extra)
            for offset, length in zip(offsets, self.lengths, strict=True)
        ]

    def _records(self) -> tuple[Memory, Memory]:
        aad = Memory(sum(len(text.aad) for text in self.texts) + 1)
        packed, start = b"", 0
        for i, text in enumerate(self.texts):
            aad.write(text.aad, start)
            packed += RECORD.pack(
                self.sealed_offsets[i], self.plain_offsets[i], self.lengths[i],
                len(text.aad), start, text.nonce, bool(text.tag), text.tag,
            )  # fmt: skip
            start += len(text.aad)
        records = Memory(len(packed))
        records.write(packed)
        return records, aad


def _offsets(lengths: list[int], shift: int) -> tuple[list[int], int]:
    """Where texts go: 32 bytes apart at least, sixteen-byte places unless shifted."""
    offsets, at = [], 32
    for length in lengths:
        offsets.append(at)
        at = (at + length + 47) // 16 * 16 + shift
    return offsets, at
