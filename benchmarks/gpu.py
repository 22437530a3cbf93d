"""Opening on a GPU beside the copy to it, and computing there beside plain torch.

Arms of one size run in turn; a ratio is that of medians. Sealed records lie in pinned
memory if that is proven, and the plain copy moves exactly their bytes from there. Without
a GPU one row says why, and what is computed is computed on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from benchmarks import computing
from benchmarks.report import BenchReport, interleaved, start_report
from sealift.channel.cuda.engine import CudaEngine
from sealift.channel.cuda.memory import CudaMemory
from sealift.channel.cuda.opening import open_cuda
from sealift.channel.cuda.transfer import CudaKey
from sealift.channel.device.device import RecordPlace
from sealift.crypto.aead import NONCE_BYTES, TAG_BYTES, Aead, Suite
from sealift.crypto.keys import SecretKey
from sealift.errors import UnavailableError

MIB: Final = 1 << 20
SIZES: Final = (1 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
QUICK_SIZES: Final = (16 * MIB, 256 * MIB)
RECORD_BYTES: Final = 1 * MIB
REPEATS: Final = 15
GOALS: Final = {Suite.AES_256_GCM: 150e9, Suite.CHACHA20_POLY1305: 300e9}
_SLOT_ALIGNED: Final = 256
_ASSOCIATED: Final = bytes(73)
HEADING: Final = "opening includes the table's crossing and the wait for the verdict"


class Transfer:
    """Sealed records of one size and suite, ready to cross.

    Args:
        engine: The GPU.
        suite: What they are sealed with.
        total_bytes: Their plaintext.
        record_bytes: Plaintext of each.
    """

    def __init__(
        self, engine: CudaEngine, suite: Suite, total_bytes: int, record_bytes: int
    ) -> None:
        self.total_bytes = total_bytes
        self._engine = engine
        secret = SecretKey.generate()
        self.stride = -(-(record_bytes + TAG_BYTES) // _SLOT_ALIGNED) * _SLOT_ALIGNED
        count = max(1, total_bytes // record_bytes)
        self.places = [
            RecordPlace(
                at.to_bytes(NONCE_BYTES, "big"), _ASSOCIATED,
                at * self.stride, at * record_bytes, record_bytes,
            )
            for at in range(count)
        ]  # fmt: skip
        block = engine.pinned(count * self.stride)
        own = bytearray(0 if block else count * self.stride)
        self.host = block.view if block else memoryview(own)
        cipher, text = (
            Aead(suite, secret),
            bytes(range(256)) * (record_bytes // 256 + 1),
        )
        for place in self.places:
            end = place.sealed_offset + record_bytes + TAG_BYTES
            room = self.host[place.sealed_offset : end]
            plain = text[:record_bytes]
            cipher.seal_into(place.nonce, plain, place.associated_data, room)
        self.key: CudaKey = engine.key(suite, secret)
        self.sealed: CudaMemory = engine.allocate(count * self.stride)
        self.plain: CudaMemory = engine.allocate(count * record_bytes)

    def copy(self) -> None:
        """The plain arm: the same bytes, nothing opened."""
        self._engine.upload(self.host, self.sealed).wait()

    def open(self) -> None:
        """All records, which lie on the GPU."""
        self._engine.open(self.key, self.sealed, self.plain, self.places).wait()

    def seal(self) -> None:
        """All records, on the GPU."""
        self._engine.seal(self.key, self.plain, self.sealed, self.places).wait()

    def pipelined(self) -> None:
        """One piece crosses while the one before it is opened, as links and loaders do."""
        groups = [(self.key, self.places)]
        parts = [(self.host, 0)]
        self._engine.transfer(parts, self.sealed, self.plain, groups).wait()

    def close(self) -> None:
        """Give the memory back."""
        for each in (self.key, self.sealed, self.plain):
            each.close()


def run(
    *,
    quick: bool = False,
    open_engine: Callable[[], CudaEngine] = open_cuda,
    sizes: Sequence[int] = (),
    record_bytes: int = RECORD_BYTES,
    compute: Callable[..., None] = computing.measure,
) -> BenchReport:
    """Measure; some minutes on a GPU, less with ``quick``."""
    report = start_report("gpu")
    _measure_opening(report, open_engine, sizes, record_bytes, quick=quick)
    compute(report, quick=quick)
    return report


def _measure_opening(
    report: BenchReport,
    open_engine: Callable[[], CudaEngine],
    sizes: Sequence[int],
    record_bytes: int,
    *,
    quick: bool,
) -> None:
    try:
        engine = open_engine()
    except UnavailableError as error:
        report.real = ["opening: nothing"]
        report.rows = [{"arm": "none", "why": str(error)}]
        return
    facts = engine.facts
    real = facts.name if facts.real else f"no GPU: {facts.name}"
    report.real = [real, HEADING, f"copies: {engine.copies.why}"]
    report.machine |= {"gpu": facts.name, "driver": facts.driver}
    try:
        for size in sizes or (QUICK_SIZES if quick else SIZES):
            for suite in engine.suites():
                _measure(report, engine, suite, size, min(size, record_bytes))
    finally:
        engine.close()


def _measure(
    report: BenchReport, engine: CudaEngine, suite: Suite, size: int, record_bytes: int
) -> None:
    transfer = Transfer(engine, suite, size, record_bytes)
    try:
        spent = interleaved(
            {
                "copy": transfer.copy,
                "open": transfer.open,
                "pipelined": transfer.pipelined,
                "seal": transfer.seal,  # under the same nonces: the same bytes again
            },
            REPEATS,
        )
    finally:
        transfer.close()
    report.rows += [
        {
            "arm": arm,
            "suite": suite.name,
            "mib": round(size / MIB, 3),
            "ms": round(each.median * 1e3, 4),
            "gb_per_s": each.gb_per_s(size),
        }
        for arm, each in spent.items()
    ]
    mib = f"{suite.name.lower()}_{size // MIB}mib"
    copy_s, open_s = spent["copy"].median, spent["open"].median
    report.ratios[f"open_vs_copy_{mib}"] = copy_s / open_s
    report.ratios[f"pipelined_vs_copy_{mib}"] = copy_s / spent["pipelined"].median
    report.ratios[f"open_vs_goal_{mib}"] = size / open_s / GOALS[suite]
