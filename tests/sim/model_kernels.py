"""Kernels as models: the same plans and memory layout, computed by the CPU engine.

They make the host's logic testable apart from the real kernels, and are the oracle of
what a kernel must leave in memory. An "expanded" key is the key itself.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence

from sealift.channel.cuda.compilers import CudaKernels
from sealift.channel.cuda.driver import Argument, GpuFacts, Grid
from sealift.channel.cuda.plan import (
    BatchShape,
    BufferName,
    KernelPlan,
    Launch,
    PiecePlan,
    Word32,
    Word64,
)
from sealift.channel.cuda.staging import view_at
from sealift.crypto.aead import Aead, Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import AuthenticationError

RECORD = struct.Struct("<QQIIQ12sI16s")
ONE = Grid(1, 128)
SEGMENT = 1024
NEVER = 0xFFFFFFFF


class ModelKernels(CudaKernels):
    """The plans; there is nothing to compile."""

    def __init__(self) -> None:
        self.origin = "models of the tests"

    def code(self, gpu: GpuFacts) -> bytes:
        return b"model"

    def suites(self) -> tuple[Suite, ...]:
        return (Suite.AES_256_GCM, Suite.CHACHA20_POLY1305)

    def key_bytes(self, suite: Suite) -> int:
        return 64

    def expand(self, suite: Suite) -> KernelPlan:
        return KernelPlan((Launch("model_expand", ONE, ("raw_key", "key")),))

    def open(self, suite: Suite, shape: BatchShape, gpu: GpuFacts) -> KernelPlan:
        return _plan("model_open", suite, shape, "verdicts", "scratch")

    def seal(self, suite: Suite, shape: BatchShape, gpu: GpuFacts) -> KernelPlan:
        return _plan("model_seal", suite, shape)

    def pieces(
        self, suite: Suite, shape: BatchShape, gpu: GpuFacts, piece_bytes: int
    ) -> PiecePlan:
        segments = max(1, -(-shape.longest_bytes // SEGMENT))
        count = Word32(shape.num_records)
        opening = Launch(
            "model_move", Grid(0, 128),
            ("records", count, Word32(segments), Word32(SEGMENT), Word32(0),
             "sealed", "plain"),
        )  # fmt: skip
        judge = Launch(
            "model_judge", ONE,
            ("records", count, "aad", "key", Word32(suite), "sealed", "plain",
             "verdicts", "scratch"),
        )  # fmt: skip
        return PiecePlan(segments, SEGMENT, (), opening, (judge,), 64)

    def count_nonzero(self, nbytes: int, gpu: GpuFacts) -> KernelPlan:
        arguments = ("target", Word64(nbytes), "count")
        return KernelPlan((Launch("model_count", ONE, arguments),))


def _plan(name: str, suite: Suite, shape: BatchShape, *more: BufferName) -> KernelPlan:
    count, which = Word32(shape.num_records), Word32(suite)
    places = ("records", count, "aad", "key", which, "sealed", "plain", *more)
    return KernelPlan((Launch(name, ONE, places),), scratch_bytes=64)


class ModelRunner:
    """Runs them (`cuda_standin.KernelRunner`)."""

    def __init__(self) -> None:
        self._kernels: dict[str, Callable[..., None]] = {
            "model_expand": _expand,
            "model_open": _open,
            "model_seal": _seal,
            "model_count": _count,
            "model_judge": _judge,
            "sealift_refuse_batch": _refuse,
        }

    def has(self, name: str) -> bool:
        return name in self._kernels or name == "model_move"

    def run(self, name: str, grid: Grid, arguments: Sequence[Argument]) -> None:
        numbers = [int(each.value) for each in arguments]
        if name == "model_move":
            _move(grid.blocks, *numbers)
        else:
            self._kernels[name](*numbers)


def _expand(raw: int, key: int) -> None:
    view_at(key, 64)[:] = view_at(raw, 32).tobytes() * 2


def _records(records: int, count: int) -> list[tuple[int, int, int, int, int, bytes]]:
    return [each[:6] for each in _table(records, count)]


def _table(records: int, count: int) -> list[tuple]:
    return list(RECORD.iter_unpack(view_at(records, RECORD.size * count)))


def _tag(record: tuple, sealed: int) -> bytes:
    origin, nbytes, has_tag, tag = record[0], record[2], record[6], record[7]
    return tag if has_tag else ctypes.string_at(sealed + origin + nbytes, 16)


def _open(
    records: int, count: int, aad: int, key: int, suite: int,
    sealed: int, plain: int, verdicts: int, scratch: int,
) -> None:  # fmt: skip
    cipher = Aead(Suite(suite), SecretKey(view_at(key, 32)))
    view_at(scratch, 64)[:] = bytes(range(64))
    for at, record in enumerate(_table(records, count)):
        origin, to, nbytes, aad_bytes, aad_at, nonce = record[:6]
        text = ctypes.string_at(aad + aad_at, aad_bytes)
        out = view_at(plain + to, nbytes) if nbytes else bytearray()
        lying = ctypes.string_at(sealed + origin, nbytes) + _tag(record, sealed)
        try:
            cipher.open_into(nonce, lying, text, out)
            view_at(verdicts + at, 1)[0] = 1
        except AuthenticationError:
            view_at(verdicts + at, 1)[0] = 0


def _move(
    items: int, records: int, count: int, segments: int, segment_bytes: int,
    first: int, sealed: int, plain: int,
) -> None:  # fmt: skip
    """The ciphertext of these items to where their plaintext goes, as it is now."""
    found = _records(records, count)
    for item in range(first, first + items):
        origin, to, nbytes, *_ = found[item // segments]
        start = item % segments * segment_bytes
        length = min(segment_bytes, nbytes - start)
        if length > 0:
            ctypes.memmove(plain + to + start, sealed + origin + start, length)


def _judge(
    records: int, count: int, aad: int, key: int, suite: int,
    sealed: int, plain: int, verdicts: int, scratch: int,
) -> None:  # fmt: skip
    """Open what was moved, under the tags of the sealed memory."""
    cipher = Aead(Suite(suite), SecretKey(view_at(key, 32)))
    view_at(scratch, 64)[:] = bytes(range(64))
    for at, record in enumerate(_table(records, count)):
        _, to, nbytes, aad_bytes, aad_at, nonce = record[:6]
        text = ctypes.string_at(aad + aad_at, aad_bytes)
        moved, tag = ctypes.string_at(plain + to, nbytes), _tag(record, sealed)
        out = view_at(plain + to, nbytes) if nbytes else bytearray()
        try:
            cipher.open_into(nonce, moved + tag, text, out)
            view_at(verdicts + at, 1)[0] = 1
        except AuthenticationError:
            view_at(verdicts + at, 1)[0] = 0


def _seal(
    records: int, count: int, aad: int, key: int, suite: int,
    sealed: int, plain: int,
) -> None:  # fmt: skip
    cipher = Aead(Suite(suite), SecretKey(view_at(key, 32)))
    for to, origin, nbytes, aad_bytes, aad_at, nonce in _records(records, count):
        if aad_bytes == NEVER:
            continue
        text = ctypes.string_at(aad + aad_at, aad_bytes)
        source = view_at(plain + origin, nbytes) if nbytes else b""
        cipher.seal_into(nonce, source, text, view_at(sealed + to, nbytes + 16))


def _count(target: int, nbytes: int, count: int) -> None:
    found = nbytes - ctypes.string_at(target, nbytes).count(0)
    cell = ctypes.c_uint64.from_address(count)
    cell.value += found


def _refuse(records: int, count: int, verdicts: int, plain: int) -> None:
    if all(view_at(verdicts, count)):
        return
    for _, to, nbytes, *_rest in _records(records, count):
        ctypes.memset(plain + to, 0, nbytes)
