"""Rule M10: neither branches nor addresses of the kernels depend on secrets.

The kernels' sources, compiled without optimisation so that every choice in them is a
branch, run twice on the same memory with other keys, nonces and texts of the same
lengths; every basic block and every address is noted. What gcc's build does is what the
sources say; that NVIDIA's compiler adds neither branch nor lookup is not shown here.
"""

from __future__ import annotations

import ctypes
import os

import pytest

from sealift.channel.cuda import plan as geometry
from sealift.channel.cuda.plan import BatchShape
from sealift.crypto.aead import Aead, Suite
from sealift.crypto.keys import SecretKey
from tests.sim.gcc_kernels import prepare, tracing_library
from tests.sim.kernel_batches import GPU, RECORD, Memory

pytestmark = pytest.mark.gcc
LENGTHS = [0, 5, 17_003, 4096]
AAD_BYTES = 73


def trace() -> tuple[int, int]:
    library, length = tracing_library(), ctypes.c_uint64()
    library.sealift_host_trace.restype = ctypes.c_uint64
    return library.sealift_host_trace(ctypes.byref(length)), length.value


class Rig:
    """One batch in memory that stays where it is; secrets change, lengths do not."""

    def __init__(self, suite: Suite, operation: str) -> None:
        self.suite = suite
        shape = BatchShape(len(LENGTHS), max(LENGTHS), sum(LENGTHS))
        plan_of = geometry.open_plan if operation == "open" else geometry.seal_plan
        plan, expand = plan_of(suite, shape, GPU), geometry.expand_plan(suite)
        self.memories = {
            "records": Memory(RECORD.size * len(LENGTHS)), "aad": Memory(AAD_BYTES * len(LENGTHS)),
            "raw_key": Memory(32), "key": Memory(geometry.SHAPES[suite].key_bytes),
            "sealed": Memory(32768), "plain": Memory(32768),
            "verdicts": Memory(len(LENGTHS)), "scratch": Memory(plan.scratch_bytes),
        }  # fmt: skip
        places = {name: each.address for name, each in self.memories.items()}
        library = tracing_library()
        self._calls = [
            *prepare(expand, places, library),
            *prepare(plan, places, library),
        ]

    def fill(self, flipped_bits: int = 0) -> None:
        """Fresh key, nonces, AAD and texts; sealed under the key but for some bits."""
        key, at = os.urandom(32), 0
        self.memories["raw_key"].write(key)
        for i, length in enumerate(LENGTHS):
            nonce, aad, text = os.urandom(12), os.urandom(AAD_BYTES), os.urandom(length)
            sealed = Aead(self.suite, SecretKey(key)).seal(nonce, text, aad)
            sealed = sealed[:-1] + bytes([sealed[-1] ^ flipped_bits])
            record = (at, at, length, AAD_BYTES, AAD_BYTES * i, nonce, 0, b"")
            self.memories["records"].write(RECORD.pack(*record), RECORD.size * i)
            self.memories["aad"].write(aad, AAD_BYTES * i)
            self.memories["plain"].write(text, at)
            self.memories["sealed"].write(sealed, at)
            at += (length + 47) // 16 * 16

    def run(self) -> tuple[int, int]:
        trace()
        for call in self._calls:
            call()
        return trace()


@pytest.mark.parametrize("operation", ["open", "seal"])
@pytest.mark.parametrize("suite", list(Suite), ids=lambda suite: suite.name)
def test_kernels_go_the_same_way_for_all_secrets(suite: Suite, operation: str) -> None:
    rig, found = Rig(suite, operation), set()
    for _ in range(3):
        rig.fill()
        found.add(rig.run())
    assert len(found) == 1
    assert min(length for _, length in found) > 100_000  # it did note something


# Positive controls: what is not secret is seen, and what leaks is seen.
@pytest.mark.parametrize("suite", list(Suite), ids=lambda suite: suite.name)
def test_a_failed_verdict_shows(suite: Suite) -> None:
    rig, found = Rig(suite, "open"), []
    for bits in (0, 1, 2):
        rig.fill(bits)
        found.append(rig.run())
    assert found[0] != found[1]
    assert found[1] == found[2]  # and which bits differed does not show


@pytest.mark.parametrize(
    ("name", "leaks"),
    [("leak_by_address", True), ("leak_by_branch", True), ("keep_secret", False)],
)
def test_leaks_are_noted(name: str, leaks: bool) -> None:
    secret, found = Memory(1), set()
    leak = getattr(tracing_library(), name)
    for value in (b"\x02", b"\x07"):
        secret.write(value)
        trace()
        leak(ctypes.c_void_p(secret.address))
        found.add(trace())
    assert len(found) == (2 if leaks else 1)
