"""One refused record of a batch takes the plaintext of all with it, wherever it stands."""

from __future__ import annotations

import pytest

from sealift.channel.cuda.plan import KernelPlan
from sealift.channel.cuda.transfer import refusal
from tests.sim.gcc_kernels import run_plan
from tests.sim.kernel_batches import RECORD, Memory

pytestmark = pytest.mark.gcc
LENGTH = 20


def left(verdicts: bytes, shift: int = 0) -> bytes:
    """The plaintext of all records, after the kernel saw these verdicts."""
    count = len(verdicts)
    records = b"".join(
        RECORD.pack(0, LENGTH * i, LENGTH, 0, 0, bytes(12), 0, b"")
        for i in range(count)
    )
    table, plain = Memory(len(records)), Memory(LENGTH * count, fill=0x77)
    told = Memory(count + 32, shift=shift, fill=0)  # zeroes behind the last verdict
    table.write(records)
    told.write(verdicts)
    places = {
        "records": table.address, "plain": plain.address, "verdicts": told.address,
    }  # fmt: skip
    run_plan(KernelPlan((refusal(count),)), places)
    return plain.read()


@pytest.mark.parametrize("shift", [0, 3])
@pytest.mark.parametrize("count", [1, 15, 16, 17, 33, 300])
def test_all_or_nothing(count: int, shift: int) -> None:
    assert left(b"\1" * count, shift) == b"\x77" * LENGTH * count
    for wrong in {0, count // 2, count - 1}:
        for value in (0, 2, 0x81):
            verdicts = bytearray(b"\1" * count)
            verdicts[wrong] = value
            assert not any(left(bytes(verdicts), shift))
